"""Recurrent networks as operators of PyTorch: remat_nn::forward, its backward, and remat_nn::loss.

A session computes in torch's memory: inputs, parameters, outputs and gradients are external arrays. Its arena holds what
backward needs between a forward and its backward pass. The sessions of a layer are in a pool (Pool), which the operators
find by a number; this number is their first argument, as a constant tensor.

A forward pass returns a ticket beside its results: an empty tensor whose storage names the pass. While the ticket lives
in a graph of autograd, the session is kept for that pass. If a session was given up meanwhile (memory_budget), or the
saved tensors were moved, backward runs the forward pass again; the bits are the same.
"""

from __future__ import annotations

import contextlib
import ctypes as c
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from . import _abi
from ._library import check, lib
from .errors import Error
from .graph import Graph, Value, zeros
from .session import Session, size

Kind = _abi.Kind


class Cell(NamedTuple):
    builder: str
    gates: int
    states: int
    matrices: bool
    """It has w_hh, and biases if the layer has; else w_ih alone."""


CELLS = {
    "LSTM": Cell("lstm", 4, 2, True),
    "GRU": Cell("gru", 3, 1, True),
    "RNN_TANH": Cell("rnn_tanh", 1, 1, True),
    "RNN_RELU": Cell("rnn_relu", 1, 1, True),
    "MIN_GRU": Cell("min_gru", 2, 1, False),
}


@dataclass(frozen=True)
class Network:
    """Layers of recurrent cells, and for a loss a linear layer and the cross entropy."""

    mode: str
    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool
    bidirectional: bool
    dropout: float
    classes: int = 0
    """0: no loss."""
    head_bias: bool = False
    ignore_index: int = -100
    label_smoothing: float = 0.0
    class_weights: bool = False

    @property
    def cell(self) -> Cell:
        return CELLS[self.mode]

    @property
    def directions(self) -> int:
        return 1 + self.bidirectional

    def weights(self) -> list[tuple[str, tuple[int, ...]]]:
        """PyTorch's names and shapes, in its order."""
        wide, width = self.cell.gates * self.hidden_size, self.input_size
        named: list[tuple[str, tuple[int, ...]]] = []
        for layer in range(self.num_layers):
            for end in ("", "_reverse")[: self.directions]:
                named.append((f"weight_ih_l{layer}{end}", (wide, width)))
                if self.cell.matrices:
                    named.append((f"weight_hh_l{layer}{end}", (wide, self.hidden_size)))
                if self.bias:
                    named += [(f"bias_{part}_l{layer}{end}", (wide,)) for part in ("ih", "hh")]
            width = self.directions * self.hidden_size
        return named

    def head(self) -> list[tuple[str, tuple[int, ...]]]:
        weight = ("head.weight", (self.classes, self.directions * self.hidden_size))
        bias = ("head.bias", (self.classes,))
        return [weight, bias][: 1 + self.head_bias] if self.classes else []

    def built(self, shape: Shape) -> Built:
        return _Layers(self, shape).built(shape)


def check_tensor(name: str, x: Tensor, casts: bool = False) -> None:
    """Sessions read a tensor's memory as float32. casts: autocast converts it before, all but float64."""
    if x.device.type != "cpu":
        raise ValueError(f"{name} is on the device {x.device}; Remat's layers compute on the CPU: move it there")
    if x.dtype != torch.float32 and not (casts and x.is_floating_point() and x.dtype != torch.float64):
        raise ValueError(f"{name} is {x.dtype}; Remat's layers compute in float32: convert it")


def check_weights(named: Sequence[tuple[str, tuple[int, ...]]], weights: Sequence[Tensor], casts: bool = False) -> None:
    """Refuses weights that were replaced or converted since the layer was made."""
    for (name, shape), weight in zip(named, weights, strict=True):
        check_tensor(name, weight, casts)
        if weight.shape != shape:
            raise RuntimeError(f"{name} has the shape {tuple(weight.shape)}; the layer wants {shape}")


class Shape(NamedTuple):
    """What a session is made for."""

    timesteps: int
    rows: int
    trains: bool
    drops: bool
    input_gradient: bool
    threads: int


class _Layers:
    """The graph of a network."""

    def __init__(self, network: Network, shape: Shape) -> None:
        self.network, self.graph = network, Graph()
        T, B, cell = shape.timesteps, shape.rows, network.cell
        self.x = self.graph.input("x", "f32", "sequence", (T, B, network.input_size))
        if shape.trains and shape.input_gradient:
            self.graph.requires_grad(self.x)
        slots = range(network.num_layers * network.directions)
        self.initial = [[self._state(f"{k}.{s}", B, shape.trains) for s in slots] for k in range(cell.states)]
        weights = [*network.weights(), *network.head()]
        self.parameters = {name: self.graph.param(name, dims, zeros()) for name, dims in weights}
        self.final: list[list[Value]] = [[] for _ in range(cell.states)]
        self.y = self._stack(shape.drops)
        self.loss: Value | None = None
        if network.classes:
            self.targets = self.graph.input("targets", "i32", "sequence", (T, B))
            logits = self.graph.linear(self.y, self.parameters["head.weight"], self.parameters.get("head.bias"))
            per_class = self.graph.input("class_weights", "f32", "static", (network.classes,)) if network.class_weights else None
            self.loss = self.graph.softmax_cross_entropy_weighted(
                logits, self.targets, per_class, network.ignore_index, network.label_smoothing
            )

    def _state(self, name: str, rows: int, trains: bool) -> Value:
        value = self.graph.input(f"initial.{name}", "f32", "static", (rows, self.network.hidden_size))
        return self.graph.requires_grad(value) if trains else value

    def _stack(self, drops: bool) -> Value:
        x = self.x
        for layer in range(self.network.num_layers):
            if layer and drops:
                x = self.graph.dropout(x, self.network.dropout)
            ends = ("", "_reverse")[: self.network.directions]
            made = [self._direction(x, f"_l{layer}{end}", reverse=bool(end)) for end in ends]
            x = self.graph.concat(made) if len(made) > 1 else made[0]
        return x

    def _direction(self, x: Value, name: str, reverse: bool) -> Value:
        graph, cell, slot = self.graph, self.network.cell, len(self.final[0])
        x = graph.reverse(x) if reverse else x
        w_ih = self.parameters["weight_ih" + name]
        if cell.matrices:
            others = (self.parameters.get(part + name) for part in ("weight_hh", "bias_ih", "bias_hh"))
            y = getattr(graph, cell.builder)(x, w_ih, *others)
        else:
            y = getattr(graph, cell.builder)(graph.linear(x, w_ih))
        for k in range(cell.states):
            graph.initial_state(y, k, self.initial[k][slot])
        for k in range(cell.states):
            self.final[k].append(graph.final_state(y, k))
        return graph.reverse(y) if reverse else y

    def built(self, shape: Shape) -> Built:
        finals = [value for values in self.final for value in values]
        states = [f"initial.{k}.{s}" for k, values in enumerate(self.initial) for s in range(len(values))]
        inputs = ["x", *states, *["targets"][: bool(self.loss)], *["class_weights"][: self.network.class_weights]]
        gradients = [*["x"][: shape.input_gradient], *states, *self.parameters]
        return Built(self.graph, finals if self.loss else [self.y, *finals], inputs, list(self.parameters), gradients, self.loss)


@dataclass
class Built:
    """A graph, its results, and the names of its other arrays in the order in which the operators pass them."""

    graph: Graph
    results: list[Value]
    inputs: list[str]
    parameters: list[str]
    gradients: list[str]
    loss: Value | None = None

    def external(self, trains: bool) -> dict[str, list[str]]:
        outputs = [f"output.{i}" for i in range(len(self.results))]
        return {
            "inputs": self.inputs, "parameters": self.parameters, "outputs": outputs,
            "gradients": self.gradients if trains else [],
            "output_gradients": outputs if trains and not self.loss else [],
        }  # fmt: skip

    def session(self, shape: Shape, **config: Any) -> Session:
        external = self.external(shape.trains)
        results = dict(zip(external["outputs"], self.results))
        differ = shape.trains and not self.loss
        return Session(
            self.graph,
            self.loss,
            outputs={} if differ else results,
            differentiated=results if differ else {},
            external={kind: dict.fromkeys(names) for kind, names in external.items()},
            inference=not shape.trains,
            threads=shape.threads,
            alone=True,  # torch sums the gradients of its ranks
            **config,
        )


class Layer(Protocol):
    """What a pool makes sessions of: its parameters, and those of a head, by name and shape, and its graph."""

    def weights(self) -> list[tuple[str, tuple[int, ...]]]: ...
    def head(self) -> list[tuple[str, tuple[int, ...]]]: ...
    def built(self, shape: Shape) -> Built: ...


class Prepared:
    """A session and its external arrays: for each kind (index, bytes) in the operators' order."""

    def __init__(self, layer: Layer, shape: Shape, **config: Any) -> None:
        built = layer.built(shape)
        self.shape, self.session = shape, built.session(shape, **config)
        self.pointer = self.session._pointer
        self.bytes = int(self.session.plan.budgeted_bytes)
        self.busy = False
        self.lease: StorageWeakRef | None = None
        self.seen: tuple[int, ...] = ()
        self._lent: dict[str, list[int]] = {}
        self._arrays = {}
        for kind, names in built.external(shape.trains).items():
            arrays = getattr(self.session, kind)._arrays
            self._arrays[kind] = [(int(arrays[name].index), int(arrays[name].bytes)) for name in names]

    def lend(self, kind: int, name: str, addresses: list[int]) -> None:
        """Says where the arrays of a kind lie now."""
        before = self._lent.get(name)
        if before == addresses:
            return
        self._lent.pop(name, None)
        set_external, pointer = lib.remat_set_external, self.pointer
        for (index, bytes), address, old in zip(self._arrays[name], addresses, before or [0] * len(addresses), strict=True):
            if address != old:
                check(set_external(pointer, kind, index, address, bytes))
        self._lent[name] = addresses

    def idle(self) -> bool:
        dropped = self.lease is None or self.lease.expired()  # type: ignore[no-untyped-call]
        return not self.busy and dropped


class Pool:
    """The sessions of one layer, the least recently used first.

    With a memory_budget all of them together stay within it: sessions that no call is using are given up, also if a graph
    waits for their backward pass. Without, a layer keeps as many as graphs wait for, and of the idle ones at most as many
    bytes as the session that was made last.
    """

    def __init__(self, layer: Layer, segments: int | None, memory_budget: int | str | None) -> None:
        self.layer, self.named = layer, [*layer.weights(), *layer.head()]
        self.budget = size(memory_budget) if memory_budget else 0
        self.config: dict[str, Any] = {"segments": segments} if segments else {}
        self.prepared: list[Prepared] = []
        self.changed = threading.Condition()
        self.closed = False
        self.repeated = 0
        self.number = next(_numbers)
        self.tensor = torch.tensor(self.number, device="cpu")
        _pools[self.number] = self

    def make(self, shape: Shape, plan_only: bool = False) -> Prepared:
        limit = {"memory_budget": self.budget} if self.budget else {}
        return Prepared(self.layer, shape, plan_only=plan_only, **limit, **self.config)

    def take(self, shape: Shape) -> Prepared:
        """A session for this shape, which no other call uses until give()."""
        with self.changed:
            for prepared in reversed(self.prepared):
                if prepared.shape == shape and prepared.idle():
                    break
            else:
                prepared = self._new(shape)
                self.prepared.append(prepared)
            prepared.busy, prepared.lease = True, None
            return prepared

    def _new(self, shape: Shape) -> Prepared:
        if not self.budget:
            prepared = self.make(shape)
            self._free([p for p in self.prepared if p.idle()], prepared.bytes)
            return prepared
        others = bool(self.prepared)
        room = self.budget - self.make(shape, plan_only=True).bytes if others else 0
        while others and sum(p.bytes for p in self.prepared) > room:
            free = [p for p in self.prepared if not p.busy]
            waiting = [p for p in free if not p.idle()]
            self._free([p for p in free if p.idle()] + waiting, room - sum(p.bytes for p in self.prepared if p.busy))
            if sum(p.bytes for p in self.prepared) > room:
                self.changed.wait()
        return self.make(shape)

    def _free(self, candidates: list[Prepared], most: int) -> None:
        """Gives candidates up from the first on, until the rest has at most so many bytes."""
        bytes = sum(p.bytes for p in candidates)
        for prepared in candidates:
            if bytes > most:
                self.prepared.remove(prepared)
                bytes -= prepared.bytes

    def give(self, prepared: Prepared, ticket: Tensor | None = None) -> None:
        """Ends a call. With a ticket the session is kept for the ticket's graph."""
        with self.changed:
            prepared.busy = False
            if ticket is not None:
                prepared.lease = StorageWeakRef(ticket.untyped_storage())  # type: ignore[no-untyped-call]
            self.prepared.remove(prepared)
            if not self.closed:
                self.prepared.append(prepared)
            self.changed.notify_all()

    def find(self, ticket: Tensor, seen: tuple[int, ...]) -> Prepared | None:
        """The session that still holds the pass of this ticket, on the same memory."""
        storage = ticket.untyped_storage()._cdata
        with self.changed:
            for prepared in self.prepared:
                if prepared.lease is not None and prepared.lease.cdata == storage and not prepared.busy:
                    if prepared.seen != seen:
                        return None
                    prepared.busy = True
                    return prepared
        return None

    @contextlib.contextmanager
    def forward(self, shape: Shape, ticket: Tensor | None = None) -> Iterator[Prepared]:
        """A session for one call. With a ticket it is then kept for the ticket's graph, unless the call failed."""
        prepared, kept = self.take(shape), None
        try:
            yield prepared
            kept = ticket
        finally:
            self.give(prepared, kept)

    @contextlib.contextmanager
    def backward(
        self, shape: Shape, ticket: Tensor, seen: tuple[int, ...], again: Callable[[Prepared], object]
    ) -> Iterator[Prepared]:
        """The session that holds the ticket's forward pass, or another, in which `again` has run it again."""
        found = self.find(ticket, seen)
        prepared = found or self.take(shape)
        try:
            if not found:
                self.repeated += 1
                again(prepared)
            yield prepared
        except Error as error:
            if "remat_forward" not in error.sentence:
                raise
            what = error.sentence.partition(";")[0]
            raise RuntimeError(f"{what}; {_CHANGED}") from None
        finally:
            prepared.lease = None
            self.give(prepared)

    def close(self) -> None:
        """The layer is gone."""
        with self.changed:
            self.closed = True
            self.prepared = [p for p in self.prepared if p.busy]


_numbers = itertools.count(1)
_pools: dict[int, Pool] = {}


# ---- One call -------------------------------------------------------------------------------------------------------


def _parts(tensor: Tensor) -> list[int]:
    """The addresses of a (states, slots, B, H) tensor's (B, H)."""
    start, (states, slots, rows, width) = tensor.data_ptr(), tensor.shape
    step = rows * width * 4
    return list(range(start, start + states * slots * step, step)) if step else [start] * (states * slots)


def _shape(x: Tensor, trains: bool, seed: Tensor | None, input_gradient: bool) -> Shape:
    drops = seed is not None
    return Shape(x.shape[0], x.shape[1], trains, drops, trains and input_gradient, torch.get_num_threads())


def _seen(x: Tensor, states: Tensor, weights: Sequence[Tensor], seed: Tensor | None) -> tuple[int, ...]:
    number = int(seed) if seed is not None else -1
    return (x.data_ptr(), states.data_ptr(), number, *(w.data_ptr() for w in weights))


def _lend_inputs(
    p: Prepared, x: Tensor, states: Tensor, weights: Sequence[Tensor], seed: Tensor | None, *more: Tensor
) -> None:
    p.lend(Kind.INPUT, "inputs", [x.data_ptr(), *_parts(states), *(m.data_ptr() for m in more)])
    p.lend(Kind.PARAM, "parameters", [w.data_ptr() for w in weights])
    if seed is not None:
        lib.remat_set_step_count(p.pointer, int(seed))


def _run_forward(
    p: Prepared, x: Tensor, states: Tensor, weights: Sequence[Tensor], seed: Tensor | None, width: int
) -> tuple[Tensor, Tensor]:
    y, final = x.new_empty(x.shape[0], x.shape[1], width), torch.empty_like(states)
    _lend_inputs(p, x, states, weights, seed)
    p.lend(Kind.OUTPUT, "outputs", [y.data_ptr(), *_parts(final)])
    check(lib.remat_forward(p.pointer) if p.shape.trains else lib.remat_evaluate(p.pointer, None))
    p.seen = _seen(x, states, weights, seed)
    return y, final


@torch.library.custom_op("remat_nn::forward", mutates_args=())
def recurrent(
    pool: Tensor, x: Tensor, states: Tensor, weights: Sequence[Tensor], seed: Tensor | None, width: int, keeps: bool,
    input_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """x (T,B,C), states (states, layers * directions, B, H) -> y (T,B,width), final states, a ticket.

    seed: of dropout; None: no dropout. keeps: backward will follow.
    """
    pools = _pools[int(pool)]
    ticket = torch.zeros(1 if keeps else 0, dtype=torch.uint8)
    with pools.forward(_shape(x, keeps or seed is not None, seed, input_gradient), ticket if keeps else None) as prepared:
        y, final = _run_forward(prepared, x, states, weights, seed, width)
    return y, final, ticket


@recurrent.register_fake
def _(
    pool: Tensor, x: Tensor, states: Tensor, weights: Sequence[Tensor], seed: Tensor | None, width: int, keeps: bool,
    input_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    ticket = torch.empty(1 if keeps else 0, dtype=torch.uint8, device=x.device)
    return x.new_empty(x.shape[0], x.shape[1], width), torch.empty_like(states), ticket


def _compute_backward(
    pool: Tensor, dy: Tensor, dfinal: Tensor, x: Tensor, states: Tensor, weights: Sequence[Tensor],
    seed: Tensor | None, y: Tensor, ticket: Tensor, input_gradient: bool,
) -> list[Tensor]:  # fmt: skip
    """The gradients of x, states and weights; that of x is empty without input_gradient."""
    pools = _pools[int(pool)]
    check_saved(pools.named, weights)
    dx, dstates = torch.empty_like(x) if input_gradient else x.new_empty(0), torch.empty_like(states)
    dweights = [torch.empty_like(w) for w in weights]
    seen = _seen(x, states, weights, seed)
    kept: list[Any] = []  # backward reads results, too

    def again(prepared: Prepared) -> None:
        kept.append(_run_forward(prepared, x, states, weights, seed, y.shape[2]))

    with pools.backward(_shape(x, True, seed, input_gradient), ticket, seen, again) as prepared:
        given = [dx.data_ptr()] if input_gradient else []
        prepared.lend(Kind.GRADIENT, "gradients", [*given, *_parts(dstates), *(w.data_ptr() for w in dweights)])
        prepared.lend(Kind.OUTPUT_GRADIENT, "output_gradients", [dy.data_ptr(), *_parts(dfinal)])
        check(lib.remat_backward(prepared.pointer, None))
    return [dx, dstates, *dweights]


recurrent_backward = torch.library.custom_op("remat_nn::backward", _compute_backward, mutates_args=())


_CHANGED = "call the layer again, and change its weights after backward"


def check_saved(named: Sequence[tuple[str, tuple[int, ...]]], weights: Sequence[Tensor]) -> None:
    """`.data` may have changed the type of weights after the forward pass."""
    check_weights(named, weights)
    for (name, _), weight in zip(named, weights):
        if not weight.is_contiguous():
            raise RuntimeError(f"{name} is not contiguous any more; {_CHANGED}")


@recurrent_backward.register_fake
def _(
    pool: Tensor, dy: Tensor, dfinal: Tensor, x: Tensor, states: Tensor, weights: Sequence[Tensor],
    seed: Tensor | None, y: Tensor, ticket: Tensor, input_gradient: bool,
) -> list[Tensor]:  # fmt: skip
    dx = torch.empty_like(x) if input_gradient else x.new_empty(0)
    return [dx, torch.empty_like(states), *(torch.empty_like(w) for w in weights)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    pool, x, states, weights, seed, _, _, ctx.input_gradient = inputs
    y, final, ticket = output
    ctx.seeded = [] if seed is None else [seed]
    ctx.save_for_backward(pool, x, states, y, final, ticket, *ctx.seeded, *weights)
    ctx.seeded = len(ctx.seeded)


def _differentiate(ctx: Any, dy: Tensor, dfinal: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    pool, x, states, y, _, ticket, *rest = ctx.saved_tensors
    seed, weights = (rest[0], rest[1:]) if ctx.seeded else (None, rest)
    needed = ctx.needs_input_grad
    dx, dstates, *dweights = _backward(
        pool, dy.contiguous(), dfinal.contiguous(), x, states, weights, seed, y, ticket, ctx.input_gradient
    )
    return None, dx if needed[1] else None, dstates if needed[2] else None, dweights, None, None, None, None


def _backward(*given: Any) -> list[Tensor]:
    """Dispatching the operator takes a tenth of a call at tiny sizes: without tracing or second derivatives the function
    runs directly."""
    watched = type(given[1]) is not Tensor or torch.is_grad_enabled() or is_in_torch_dispatch_mode()
    return torch.ops.remat_nn.backward.default(*given) if watched else _compute_backward(*given)


def refuse_second_derivative(ctx: Any, *gradients: Any) -> Any:
    raise RuntimeError(
        "Remat's layers are differentiated once; they have no second derivatives: leave out create_graph=True, or "
        "use the layer of torch.nn"
    )


recurrent.register_autograd(_differentiate, setup_context=_save)
recurrent_backward.register_autograd(refuse_second_derivative)
recurrent.register_autocast("cpu", torch.float32)


# ---- With the loss --------------------------------------------------------------------------------------------------


@torch.library.custom_op("remat_nn::loss", mutates_args=())
def recurrent_loss(
    pool: Tensor, x: Tensor, targets: Tensor, states: Tensor, weights: Sequence[Tensor], seed: Tensor | None,
    keeps: bool, input_gradient: bool, class_weights: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The loss, final states, and the loss's gradients: of x, of states, and of all weights side by side.

    Forward and backward run as one pass, so that logits exist for one tile at a time. Without keeps gradients are empty.
    """
    pools = _pools[int(pool)]
    trains = keeps or seed is not None  # evaluations drop nothing
    final = torch.empty_like(states)
    gradients = _loss_gradients(x, states, weights, trains, input_gradient)
    narrow = _narrow(targets)
    result = _abi.remat_step_result()
    with pools.forward(_shape(x, trains, seed, input_gradient)) as prepared:
        _lend_inputs(prepared, x, states, weights, seed, narrow, *([] if class_weights is None else [class_weights]))
        prepared.lend(Kind.OUTPUT, "outputs", _parts(final))
        if trains:
            prepared.lend(Kind.GRADIENT, "gradients", _loss_places(*gradients, weights))
        check((lib.remat_gradients if trains else lib.remat_evaluate)(prepared.pointer, c.byref(result)))
    loss = torch.full((), result.loss, dtype=torch.float32)
    return loss, final, *(gradients if keeps else _loss_gradients(x, states, weights, False, False))


def _narrow(targets: Tensor) -> Tensor:
    """In int32; refuses numbers that would wrap around."""
    narrow = targets.to(torch.int32)
    wrong = targets[narrow != targets] if targets.dtype != torch.int32 else targets[:0]
    if wrong.numel():
        raise ValueError(f"targets has the class {int(wrong[0])}; give numbers below num_classes, or ignore_index")
    return narrow


def _loss_gradients(
    x: Tensor, states: Tensor, weights: Sequence[Tensor], trains: bool, input_gradient: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Room for the gradients of x, of states, and of all weights side by side; what is not wanted is empty."""
    dx = torch.empty_like(x) if trains and input_gradient else x.new_empty(0)
    dstates = torch.empty_like(states) if trains else x.new_empty(0)
    return dx, dstates, x.new_empty(sum(w.numel() for w in weights) if trains else 0)


def _loss_places(dx: Tensor, dstates: Tensor, dweights: Tensor, weights: Sequence[Tensor]) -> list[int]:
    firsts = itertools.accumulate((w.numel() for w in weights[:-1]), initial=0)
    return [*[dx.data_ptr()][: dx.numel()], *_parts(dstates), *(dweights.data_ptr() + 4 * first for first in firsts)]


@recurrent_loss.register_fake
def _(
    pool: Tensor, x: Tensor, targets: Tensor, states: Tensor, weights: Sequence[Tensor], seed: Tensor | None,
    keeps: bool, input_gradient: bool, class_weights: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return x.new_empty(()), torch.empty_like(states), *_loss_gradients(x, states, weights, keeps, input_gradient)


def _save_loss(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.shapes = [w.shape for w in inputs[4]]
    ctx.save_for_backward(*output[2:])


def _scale(ctx: Any, dloss: Tensor, *_: Any) -> tuple[Any, ...]:
    dx, dstates, dweights = ctx.saved_tensors
    needed, scaled = ctx.needs_input_grad, dweights * dloss
    parts = scaled.split([math.prod(shape) for shape in ctx.shapes])
    return (
        None, dx * dloss if needed[1] else None, None, dstates * dloss if needed[3] else None,
        [part.view(shape) for part, shape in zip(parts, ctx.shapes)], None, None, None, None,
    )  # fmt: skip


recurrent_loss.register_autograd(_scale, setup_context=_save_loss)
recurrent_loss.register_autocast("cpu", torch.float32)

forward, forward_loss = torch.ops.remat_nn.forward.default, torch.ops.remat_nn.loss.default
