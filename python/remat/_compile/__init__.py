"""remat.compile: a PyTorch model and its loss as one training step within a memory budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from .._builders import Config

if TYPE_CHECKING:
    import torch

    from .runtime import Step


def compile(
    model: torch.nn.Module,
    loss_fn: Callable[..., torch.Tensor] | None,
    example_batch: Any,
    *,
    lr: float | None = None,
    **config: Unpack[Config],
) -> Step:
    """A PyTorch model and its loss as one training step within a memory budget.

        step = remat.compile(model, nn.CrossEntropyLoss(), (x, y), memory_budget="512MiB")
        for x, y in loader:
            loss = step(x, y)
            optimizer.step()                    # gradients are in .grad, which each call replaces

    loss_fn: the loss is loss_fn(model(*batch[:-1]), batch[-1]). None: the model returns it, or an object with `.loss`;
        example_batch may then be a dict, and batches are keyword arguments.
    example_batch: tensors of the largest shape. Other shapes work, too: each is planned when it first comes, and all
        use the same memory. Every batch has the example's arguments, dtypes and numbers of axes.
    optimizer="adamw", lr=1e-3, ..: the whole update happens in the step; `step.lr` may change. Otherwise lr is None.
    config: settings of the session (remat.Config): memory_budget, strategy, seed, .. micro_steps=K averages the gradients
        of K calls of one shape, only without optimizer; these return the mean loss of the update's calls so far.
        seed: of dropout's masks; without it, the number given to torch.manual_seed.

    The model stays as it is: its parameters, buffers and .grad are used where they lie, in float32 on the CPU. It is
    captured once for each shape and mode (train() or eval()) that a training call has. Each training call draws new
    dropout masks, which are Remat's. What cannot be translated raises Error with the module's path, the op and the line.
    """
    from .runtime import Step

    return Step(model, loss_fn, example_batch, lr, dict(config))
