"""Recurrent layers for PyTorch that keep only a part of their activations: change one import line of a script.

    import remat.nn                                     # instead of torch.nn
    lstm = remat.nn.LSTM(256, 256, num_layers=2, segments=32)
    y, (h, c) = lstm(x)

Arguments, names, shapes and initial weights are PyTorch's, so a state_dict goes both ways. Backward recomputes what
forward dropped; gradients have the same bits for any `segments` and `memory_budget`. The layers compute in float32 on the
CPU, in PyTorch's own memory. They work under torch.compile, DistributedDataParallel, autocast and no_grad.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from . import _recurrent
from .plan import Plan

__all__ = ["GRU", "LSTM", "LSTMCrossEntropy", "MinGRU", "RNN"]

_SETTINGS = ("dropout", "segments", "memory_budget", "ignore_index", "label_smoothing")
_HOLD = 1e4  # sigmoid is exactly 1 there, and exactly 0 at its negative


class _Recurrent(nn.Module):
    """Layers of one cell. segments: keep the activations of 1 of so many segments at a time, and recompute the others.
    memory_budget: bytes that the layer may use beside PyTorch's tensors, such as "64MiB"; the fastest plan within them is
    chosen. With neither, all activations are kept, as PyTorch does."""

    mode: str

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        segments: int | None = None,
        memory_budget: int | str | None = None,
    ) -> None:
        super().__init__()
        _check_arguments(self, num_layers, dropout, proj_size, dtype, segments, memory_budget)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.bidirectional = bias, batch_first, bidirectional
        self.dropout, self.proj_size = float(dropout), 0
        self.segments, self.memory_budget = segments, memory_budget
        for name, shape in self._network().weights():
            self.register_parameter(name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        self._flat_weights_names = [name for name, _ in self._network().weights()]
        self.reset_parameters()
        self._open()

    def _network(self) -> _recurrent.Network:
        return _recurrent.Network(
            self.mode, self.input_size, self.hidden_size, self.num_layers, self.bias, self.bidirectional, self.dropout
        )

    def _open(self) -> None:
        """A layer has its own sessions; a copy and an unpickled layer, too."""
        self._pool = _recurrent.Pool(self._network(), self.segments, self.memory_budget)
        self._named = [*self._network().weights(), *self._network().head()]
        self._number = self._pool.tensor
        self._parts: dict[int, _recurrent.Pool] = {}
        weakref.finalize(self, self._pool.close)

    def __setattr__(self, name: str, value: Any) -> None:
        """Scripts change dropout from epoch to epoch; sessions are made with the settings of their time."""
        changed = name in _SETTINGS and "_pool" in self.__dict__ and getattr(self, name) != value
        super().__setattr__(name, value)
        if changed:
            self._pool.close()
            for part in self._parts.values():
                part.close()
            self._open()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_pool", "_number", "_parts")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._open()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for weight in self.parameters():
            nn.init.uniform_(weight, -bound, bound)

    def flatten_parameters(self) -> None:
        """Does nothing; for scripts written for torch.nn."""

    @property
    def all_weights(self) -> list[list[nn.Parameter]]:
        """The parameters of each layer and direction."""
        n = len(self._flat_weights_names) // (self.num_layers * self._directions)
        return [[getattr(self, name) for name in names] for names in zip(*[iter(self._flat_weights_names)] * n)]

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def plan(self, timesteps: int, batch: int) -> Plan:
        """The plan of a training step at this size: what it keeps, recomputes and takes."""
        drops = self.dropout > 0 and self.num_layers > 1
        shape = _recurrent.Shape(timesteps, batch, True, drops, True, torch.get_num_threads())
        return self._pool.make(shape, plan_only=True).session.plan

    def extra_repr(self) -> str:
        shown = [str(self.input_size), str(self.hidden_size)]
        defaults = {
            "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False,
            "segments": None, "memory_budget": None,
        }  # fmt: skip
        return ", ".join(shown + [f"{k}={getattr(self, k)!r}" for k, v in defaults.items() if getattr(self, k) != v])

    # ---- Forward

    def _weights(self, head: Sequence[Tensor] = ()) -> list[Tensor]:
        """The parameters, checked at each call: a script may have replaced or converted them."""
        weights = [*(getattr(self, name) for name in self._flat_weights_names), *head]
        _recurrent.check_weights(self._named[: len(weights)], weights, torch.is_autocast_enabled("cpu"))
        return weights

    def _seed(self) -> Tensor | None:
        """The seed of dropout, drawn from PyTorch's generator; None: no dropout."""
        drops = self.training and self.dropout > 0 and self.num_layers > 1
        return torch.randint(2**31, (), device="cpu") if drops else None

    def _run(self, x: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        width = self._directions * self.hidden_size
        return _call(self._number, x, states, self._weights(), self._seed(), width)

    def _states(self, hx: Any, batch: int, x: Tensor, batched: bool) -> Tensor:
        n = _recurrent.CELLS[self.mode].states
        slots = self.num_layers * self._directions
        if hx is None:
            return torch.zeros(n, slots, batch, self.hidden_size, dtype=x.dtype, device=x.device)
        given = tuple(hx) if n > 1 else (hx,)
        if len(given) != n:
            raise RuntimeError(f"hx has {len(given)} tensors; give {n}")
        wanted = (slots, batch, self.hidden_size) if batched else (slots, self.hidden_size)
        for name, state in zip("hc", given):
            if state.shape != wanted:
                raise RuntimeError(f"Expected hidden size {wanted} of {name}_0, got {tuple(state.shape)}")
            _check_tensor(f"{name}_0", state)
        stacked = torch.stack(given).to(x.dtype)
        return stacked if batched else stacked.unsqueeze(2)

    def _results(self, final: Tensor) -> Any:
        return (final[0], final[1]) if final.shape[0] == 2 else final[0]

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        if isinstance(input, PackedSequence):
            return self._packed(input, hx)
        x, batched = self._time_first(input)
        y, final = self._run(x, self._states(hx, x.shape[1], x, batched))
        if not batched:
            return y.squeeze(1), self._results(final.squeeze(2))
        return y.transpose(0, 1) if self.batch_first else y, self._results(final)

    def _time_first(self, x: Tensor) -> tuple[Tensor, bool]:
        """(T,B,C), and whether the caller's input has a batch."""
        if x.dim() not in (2, 3):
            raise ValueError(f"{type(self).__name__}: Expected input to be 2D or 3D, got {x.dim()}D instead")
        if x.shape[-1] != self.input_size:
            raise RuntimeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {x.shape[-1]}"
            )
        _check_tensor("input", x)
        if x.dim() == 2:
            return x.unsqueeze(1), False
        return x.transpose(0, 1) if self.batch_first else x, True

    # ---- Rows of different lengths: each layer and direction runs as a layer of its own, and PyTorch reverses rows

    def _packed(self, packed: PackedSequence, hx: Any) -> tuple[PackedSequence, Any]:
        _check_tensor("input", packed.data)
        self._weights()  # refuses wrong weights, by name
        rows = _Rows(packed.batch_sizes)
        x = rows.pad(packed.data)
        states = self._states(hx, x.shape[1], x, batched=True)
        if packed.sorted_indices is not None:
            states = states.index_select(2, packed.sorted_indices)
        if rows.equal:
            x, final = self._run(x, states)
        else:
            x, final = self._layers(x, rows, states)
        if packed.unsorted_indices is not None:
            final = final.index_select(2, packed.unsorted_indices)
        return packed._replace(data=rows.take(x)), self._results(final)

    def _layers(self, x: Tensor, rows: _Rows, states: Tensor) -> tuple[Tensor, Tensor]:
        finals, made = [], [x]
        for slot, weights in enumerate(self.all_weights):
            end = slot % self._directions
            if slot and not end and self.dropout:
                x = nn.functional.dropout(x, self.dropout, self.training)
            y, final = self._one(slot, rows.reverse(x) if end else x, rows, states[:, slot : slot + 1], weights)
            finals.append(final)
            made = [made[0], rows.reverse(y)] if end else [y]
            if end == self._directions - 1:
                x = torch.cat(made, -1) if end else y
        return x, torch.cat(finals, 1)

    def _one(self, slot: int, x: Tensor, rows: _Rows, states: Tensor, weights: Any) -> tuple[Tensor, Tensor]:
        """One layer in one direction. An LSTM holds c from the end of a row on: a feature that is 1 there closes the
        input gate and opens the forget gate. h at the end of a row is read from y."""
        weights = list(weights)
        if states.shape[0] > 1:
            closed, open, zeros = (x.new_full((self.hidden_size, 1), v) for v in (-_HOLD, _HOLD, 0.0))
            weights[0] = torch.cat([weights[0], torch.cat([closed, open, zeros, zeros])], 1)
            x = torch.cat([x, rows.padding.to(x.dtype)], -1)
        y, final = _call(self._part(slot, x.shape[2]).tensor, x, states, weights, None, self.hidden_size)
        return y, torch.cat([rows.last(y).view(1, 1, -1, self.hidden_size), final[1:]])

    def _part(self, slot: int, width: int) -> _recurrent.Pool:
        network = _recurrent.Network(self.mode, width, self.hidden_size, 1, self.bias, False, 0.0)
        return self._other(slot, network, self._pool.budget // (self.num_layers * self._directions))

    def _other(self, key: int, network: _recurrent.Network, budget: int) -> _recurrent.Pool:
        """The pool of sessions of another network with this layer's weights."""
        if key not in self._parts:
            self._parts[key] = _recurrent.Pool(network, self.segments, budget)
            weakref.finalize(self, self._parts[key].close)
        return self._parts[key]


class _Rows:
    """Rows of different lengths, the longest first, as (T,B,..) with padding at their ends."""

    def __init__(self, batch_sizes: Tensor) -> None:
        self.T, self.B = len(batch_sizes), int(batch_sizes[0])
        t, b = torch.arange(self.T).unsqueeze(1), torch.arange(self.B)
        self.lengths = (batch_sizes.unsqueeze(1) > b).sum(0)
        self.equal = bool(self.lengths[-1] == self.T)
        inside = t < self.lengths
        self.padding = ~inside.unsqueeze(2)
        self._inside = inside.flatten().nonzero().squeeze(1)
        self._reversed = (torch.where(inside, self.lengths - 1 - t, t) * self.B + b).flatten()
        self._last = (self.lengths - 1) * self.B + b

    def pad(self, data: Tensor) -> Tensor:
        padded = data.new_zeros(self.T * self.B, data.shape[1])
        return padded.index_copy(0, self._inside, data).view(self.T, self.B, -1)

    def take(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1).index_select(0, self._inside)

    def reverse(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1).index_select(0, self._reversed).view_as(x)

    def last(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1).index_select(0, self._last)


def _call(
    pool: Tensor, x: Tensor, states: Tensor, weights: list[Tensor], seed: Tensor | None, width: int
) -> tuple[Tensor, Tensor]:
    """x (T,B,C), states (states, layers * directions, B, H) -> y (T,B,width) and the final states."""
    keeps = _keeps(x, states, *weights)
    weights = [w if w.is_contiguous() else w.contiguous() for w in weights]
    y, final, _ = _recurrent.forward(
        pool, x.contiguous(), states.contiguous(), weights, seed, width, keeps, x.requires_grad
    )
    return y, final


def _keeps(*given: Tensor) -> bool:
    """Whether a backward pass will follow."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in given)


def _check_tensor(name: str, x: Tensor) -> None:
    _recurrent.check_tensor(name, x, torch.is_autocast_enabled("cpu"))


def _check_arguments(
    layer: nn.Module, num_layers: int, dropout: float, proj_size: int, dtype: Any, segments: Any, budget: Any
) -> None:
    name = type(layer).__name__
    if num_layers < 1:
        raise ValueError(f"num_layers is {num_layers}; it must be at least 1")
    if not 0 <= dropout <= 1:
        raise ValueError(f"dropout is {dropout}; it must be between 0 and 1")
    if proj_size:
        raise ValueError(f"proj_size is {proj_size}; remat.nn.{name} has no projections: leave it out, or use torch.nn.LSTM")
    if dtype not in (None, torch.float32):
        raise ValueError(f"dtype is {dtype}; remat.nn.{name} computes in float32")
    if segments and budget:
        raise ValueError("segments and memory_budget are both given; give one of them")


class LSTM(_Recurrent):
    """torch.nn.LSTM."""

    mode = "LSTM"


class GRU(_Recurrent):
    """torch.nn.GRU."""

    mode = "GRU"


class RNN(_Recurrent):
    """torch.nn.RNN."""

    def __init__(self, *args: Any, nonlinearity: str = "tanh", **keywords: Any) -> None:
        given = list(args)
        if len(given) > 3 and isinstance(given[3], str):
            nonlinearity = given.pop(3)
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity is {nonlinearity!r}; it must be 'tanh' or 'relu'")
        self.nonlinearity, self.mode = nonlinearity, f"RNN_{nonlinearity.upper()}"
        super().__init__(*given, **keywords)


class MinGRU(_Recurrent):
    """minGRU (Feng et al. 2024) with the arguments of torch.nn.GRU. weight_ih_l0 (2 H, C) is to_hidden_and_gate.weight of
    minGRU-pytorch: rows of the hidden part, then rows of the gate. There are no biases."""

    mode = "MIN_GRU"

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **keywords: Any) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias=False, **keywords)


class LSTMCrossEntropy(_Recurrent):
    """LSTM, a linear layer `head` and the cross entropy in one: logits exist for a few timesteps at a time.

        loss, (h, c) = layer(x, targets)                # x (T,B,C), targets (T,B), int64 or int32

    The loss is torch.nn.functional.cross_entropy's mean over the targets that are not ignore_index, with a `weight` for
    each class (num_classes), ignore_index and label_smoothing as there; if all are ignored, it is 0, where PyTorch's is NaN. Forward computes the
    gradients, too, and backward multiplies them by the loss's gradient. The final states have no gradient: pass them to
    the next call for truncated back-propagation. logits(x, hx) returns the logits whole, for sampling.
    """

    mode = "LSTM"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_classes: int,
        num_layers: int = 1,
        *args: Any,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        head_bias: bool = True,
        weight: Tensor | None = None,
        **keywords: Any,
    ) -> None:
        if not -(2**31) <= ignore_index < 2**31:
            raise ValueError(f"ignore_index is {ignore_index}; give a number of 32 bits")
        if weight is not None and weight.shape != (num_classes,):
            raise ValueError(f"weight has the shape {tuple(weight.shape)}; give a weight for each of {num_classes} classes")
        self.num_classes, self.ignore_index, self.label_smoothing = num_classes, ignore_index, label_smoothing
        self.head_bias, self._has_weight = head_bias, weight is not None
        super().__init__(input_size, hidden_size, num_layers, *args, **keywords)
        self.head = nn.Linear(
            self._directions * hidden_size, num_classes, head_bias, keywords.get("device"), keywords.get("dtype")
        )
        self.weight: Tensor | None
        self.register_buffer("weight", weight)

    def _network(self) -> _recurrent.Network:
        return dataclasses.replace(
            super()._network(),
            classes=self.num_classes,
            head_bias=self.head_bias,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            class_weights=self._has_weight,
        )

    def forward(self, input: Tensor, targets: Tensor, hx: Any = None) -> tuple[Tensor, Any]:  # type: ignore[override]
        x, batched = self._time_first(input)
        if targets.shape != input.shape[:-1]:
            raise ValueError(f"targets has the shape {tuple(targets.shape)}; input requires {tuple(input.shape[:-1])}")
        if targets.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"targets is {targets.dtype}; give class numbers in int64 or int32")
        if targets.device.type != "cpu":
            raise ValueError(f"targets is on the device {targets.device}; move it to the CPU")
        targets = targets.unsqueeze(1) if not batched else targets.t() if self.batch_first else targets
        states = self._states(hx, x.shape[1], x, batched)
        bias = [] if self.head.bias is None else [self.head.bias]
        weights = [w.contiguous() for w in self._weights([self.head.weight, *bias])]
        loss, final, *_ = _recurrent.forward_loss(
            self._number, x.contiguous(), targets.contiguous(), states, weights, self._seed(),
            _keeps(x, states, *weights), x.requires_grad, self._class_weights(),
        )  # fmt: skip
        return loss, self._results(final if batched else final.squeeze(2))

    def _class_weights(self) -> Tensor | None:
        if self.weight is None:
            return None
        _recurrent.check_tensor("weight", self.weight)
        return self.weight.contiguous()

    def logits(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        """The logits (T,B,num_classes) and the final states, with gradients."""
        x, batched = self._time_first(input)
        pool = self._other(-1, super()._network(), self._pool.budget)
        states, width = self._states(hx, x.shape[1], x, batched), self._directions * self.hidden_size
        y, final = _call(pool.tensor, x, states, self._weights(), self._seed(), width)
        y = self.head(y)
        if not batched:
            return y.squeeze(1), self._results(final.squeeze(2))
        return y.transpose(0, 1) if self.batch_first else y, self._results(final)
