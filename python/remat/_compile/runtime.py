"""Runs a translated model. PyTorch owns parameters, buffers and .grad; the session reads and writes them where they lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from .. import distributed, errors
from .._library import invalid
from ..plan import Plan
from ..session import Session
from . import ops as _ops  # registers the translations
from .capture import export
from .translate import Host, Program, translate

assert _ops

Shapes = tuple[tuple[int, ...], ...]


class _Shape:
    """The program and the session for batches of one shape."""

    def __init__(self, step: Step, batch: tuple[Any, ...], named: dict[str, Any]) -> None:
        exported = export(step.model, step.loss_fn, batch, named)
        self.exported = exported
        self.program: Program = translate(exported)
        program = self.program
        if program.loss is None:
            raise invalid("the model has no loss")
        trained = [n for n, p in program.parameters.items() if p.requires_grad]
        frozen = [n for n in program.parameters if n not in trained]
        if any(f.startswith(t) for f in frozen for t in trained):
            raise invalid("a frozen parameter's name begins like a trained one's; rename it")
        frozen += program.constants
        config = dict(step.config)
        if frozen:
            config["train_only"] = ",".join(trained)
        external: dict[str, dict[str, Any]] = {
            "parameters": {n: _array(p) for n, p in (program.parameters | program.constants).items()},
            "buffers": {n: _array(b) for n, b in program.buffers.items()},
            "inputs": dict.fromkeys(program.inputs),
        }
        self.own_gradients = distributed.is_initialized()  # ranks exchange them where they lie
        if not step.updates and not self.own_gradients:
            external["gradients"] = {n: _array(step.gradient(program.parameters[n])) for n in trained}
        self.session = Session(program.graph, program.loss, external=external, share=step.first, **config)
        self.address = {n: p.data_ptr() for n, p in program.parameters.items()}
        self.given = {
            spec.arg.name: exported.state_dict.get(spec.target, exported.constants.get(spec.target))
            for spec in exported.graph_signature.input_specs
            if spec.target is not None
        }
        self.feeds: dict[str, np.ndarray[Any, Any]] = {}

    def feed(self, batch: list[Any]) -> None:
        host = Host(self.exported, self.given, batch)
        with torch.no_grad():
            for name, compute in self.program.inputs.items():
                value = compute(host)
                value = value.float() if value.dtype.is_floating_point else value.to(torch.int32)
                self.feeds[name] = value.contiguous().numpy()
                self.session.set_external("inputs", name, self.feeds[name])

    def follow(self, step: Step) -> None:
        """Parameters may have moved to other memory since the last pass; gradients belong to .grad."""
        for name, parameter in self.program.parameters.items():
            if parameter.data_ptr() != self.address[name]:
                if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
                    raise invalid(f"{name} became {parameter.dtype} on {parameter.device}; keep the model in float32 on the CPU")
                if not parameter.is_contiguous():
                    raise invalid(f"{name} is not contiguous any more; store it so")
                self.session.set_external("parameters", name, _array(parameter))
                self.address[name] = parameter.data_ptr()
            if not step.updates and parameter.requires_grad:
                own = self.own_gradients
                parameter.grad = torch.from_numpy(self.session.gradients[name]) if own else step.gradient(parameter)


class Step:
    """A model's training step within a memory budget. See remat.compile."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., torch.Tensor] | None,
        example_batch: Any,
        lr: float | None,
        config: dict[str, Any],
    ) -> None:
        self.model, self.loss_fn, self.config = model, loss_fn, config
        self.updates = config.get("optimizer") is not None
        if self.updates and lr is None:
            raise invalid(f"optimizer={config['optimizer']!r} needs a learning rate; give lr")
        if lr is not None and not self.updates:
            raise invalid("lr is given without an optimizer; give optimizer, or leave the update to PyTorch's")
        self.lr = lr
        self._gradients: dict[torch.Tensor, torch.Tensor] = {}
        self._shapes: dict[Any, _Shape] = {}
        self._kinds: Any = None
        self.first: Session | None = None
        batch, named = _batch(example_batch)
        self._shape(batch, named)

    # ---- Passes

    def __call__(self, *batch: Any, **named: Any) -> torch.Tensor:
        """One training step. Returns the loss. Without `optimizer` the gradients are in .grad, which each call replaces."""
        shape = self._ready(batch, named)
        shape.follow(self)
        if self.updates:
            result = shape.session.step(lr=self.lr or 0.0)
        else:
            result = shape.session.forward_backward()
            for weight, row in shape.program.frozen_rows:
                weight.grad[row] = 0
        with torch.no_grad():
            for counter in shape.program.counters:
                counter += 1
        return torch.tensor(result.loss)

    def evaluate(self, *batch: Any, **named: Any) -> torch.Tensor:
        """The loss, without dropout, with batch norm's running statistics, and without gradients."""
        shape = self._ready(batch, named)
        shape.follow(self)
        return torch.tensor(shape.session.evaluate().loss)

    # ---- What there is to read

    @property
    def session(self) -> Session:
        """The session of example_batch's shape."""
        assert self.first is not None
        return self.first

    @property
    def plan(self) -> Plan:
        return self.session.plan

    def state_dict(self) -> Mapping[str, Any]:
        """The model's, which always has the current values."""
        return self.model.state_dict()

    # ---- Inside

    def gradient(self, parameter: torch.Tensor) -> torch.Tensor:
        """The memory of .grad that sessions write to."""
        if parameter not in self._gradients:
            self._gradients[parameter] = torch.zeros_like(parameter, requires_grad=False)
        return self._gradients[parameter]

    def _ready(self, batch: tuple[Any, ...], named: dict[str, Any]) -> _Shape:
        shape = self._shape(batch, named)
        shape.feed([*batch, *named.values()])
        return shape

    def _shape(self, batch: tuple[Any, ...], named: dict[str, Any]) -> _Shape:
        tensors = [*batch, *named.values()]
        for x in tensors:
            if isinstance(x, torch.Tensor) and x.device.type != "cpu":
                raise invalid(f"a tensor of the batch is on {x.device}; compile works on the CPU")
        key = (tuple(named), tuple((tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else x for x in tensors))
        if key not in self._shapes:
            self._shapes[key] = self._make(batch, named)
        return self._shapes[key]

    def _make(self, batch: tuple[Any, ...], named: dict[str, Any]) -> _Shape:
        try:
            made = _Shape(self, batch, named)
        except errors.Error as error:
            if self.first is None or "share" not in str(error) and "arena" not in str(error):
                raise
            if self.updates:
                raise invalid(f"{error}; compile with the largest batch as example_batch") from None
            self._shapes, self.first = {}, None  # gradients and parameters are PyTorch's: begin anew with the larger one
            made = _Shape(self, batch, named)
        self.first = self.first or made.session
        return made


def _batch(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example), {}) if isinstance(example, tuple | list) else ((example,), {})


def _array(x: torch.Tensor) -> np.ndarray[Any, Any]:
    """The tensor's own memory, with at least one axis."""
    return np.atleast_1d(x.detach().numpy())
