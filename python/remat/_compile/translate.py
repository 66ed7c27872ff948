"""Translates an exported program into a graph: one function a kind of op (ops.py), and what they share."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import math
import operator
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Node

from .._library import invalid
from ..errors import Error
from ..graph import Graph, Value
from ..graph import zeros as init_zeros
from .capture import READS_VALUES, Sizes, concrete, is_view, op_name, place
from .tensors import (
    BATCH,
    TIME,
    Again,
    Atom,
    Axis,
    Complex,
    Data,
    MaskedBias,
    Missing,
    Positions,
    Refused,
    Scores,
    Stack,
    Tensor,
    Unfused,
    leaves,
    length,
    new_dims,
    real,
    shape,
    together,
    unite_all,
)

OPS: dict[str, Callable[..., Any]] = {}
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def op(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the translation of ATen ops. It gets the translator and the op's arguments under ATen's names."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            OPS[name if "::" in name else f"aten::{name}"] = function
        return function

    return register


def view(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The same for ops that only change axes; they work on the batch's own tensors, too."""
    VIEWS.update(f"aten::{name}" for name in names)
    return op(*names)


VIEWS: set[str] = set()
ALL = "all products"


@dataclass
class Program:
    """What a translation yields: the graph, and what the runtime fills it with."""

    graph: Graph
    loss: Value | None = None
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    constants: dict[str, torch.Tensor | Callable[[], torch.Tensor]] = field(default_factory=dict)
    inputs: dict[str, Callable[[Host], torch.Tensor]] = field(default_factory=dict)
    counters: list[torch.Tensor] = field(default_factory=list)  # num_batches_tracked
    frozen_rows: list[tuple[torch.Tensor, int]] = field(default_factory=list)  # padding_idx of embeddings
    read: list[tuple[str, torch.Tensor, int]] = field(default_factory=list)  # buffers that became constants, and their versions


class Host:
    """Runs the part of the program that depends on the batch alone, in PyTorch, as far as it is asked for."""

    def __init__(
        self, program: torch.export.ExportedProgram, given: dict[str, Any], batch: Sequence[Any], sizes: Sizes
    ) -> None:
        self._order, self.sizes = list(program.graph.nodes), sizes
        self._values: dict[str, Any] = dict(given)
        for name, value in zip(program.graph_signature.user_inputs, batch, strict=True):
            if isinstance(name, str):
                self._values[name] = value

    def value(self, name: str) -> Any:
        if name not in self._values:
            node = next(n for n in self._order if n.name == name)
            value = node.meta["val"]
            self._values[name] = concrete(value, self.sizes) if isinstance(value, _SYMBOLIC) else self._run(node)
        return self._values[name]

    def _run(self, node: Node) -> Any:
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: self.value(n.name))
        return node.target(*args, **kwargs)  # type: ignore[operator]


def random_or_in_place(target: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()) or getattr(getattr(target, "_schema", None), "is_mutable", False)


class Translator:
    """One translation. From try to try live `inputs`, the axes of the batch's tensors, and `computed`, the products that are no
    part of a fused attention, and why. One of these does not go with time, which another attention may read: then it is ALL."""

    def __init__(
        self, program: torch.export.ExportedProgram, inputs: dict[str, list[Axis]], computed: dict[str, str], example: Host, updates: bool
    ) -> None:
        self.exported, self.axes_of, self.computed, self.example, self.updates = program, inputs, computed, example, updates
        self.graph = Graph()
        self.out = Program(self.graph)
        self.env: dict[Node, Any] = {}
        self._made: dict[Any, Tensor] = {}
        self._stored: list[torch.Tensor] = []  # all of them stay, so that no other tensor gets the id of one
        self._held = {id(x): n for n, x in (*program.state_dict.items(), *program.constants.items()) if type(x) is torch.Tensor}
        self._read: dict[int, torch.Tensor] = {}  # of these, the ones that ops were given
        self._folded_ids: set[int] = set()
        self._own: set[int] = set()  # the memory of constants that the program makes
        self._given: list[torch.Tensor] = []  # constants that ops were given
        self.node: Node | None = None
        self.fused = False  # an attention reads its axis as time
        self._before = self._before_the_graph()

    def _before_the_graph(self) -> set[Node]:
        """Ops that Remat does not have, of the batch's tensors and constants alone, such as the sines of a diffusion model's time,
        and the ops that lead to them: no gradient flows there, and PyTorch computes them."""
        trained = self.exported.graph_signature.inputs_to_parameters
        of_batch: set[Node] = set()
        found: list[Node] = []
        for node in self.exported.graph.nodes:
            if node.op == "placeholder" and node.name not in trained:
                of_batch.add(node)
            elif node.op == "call_function" and node.all_input_nodes and of_batch.issuperset(node.all_input_nodes):
                if random_or_in_place(node.target):
                    continue
                of_batch.add(node)
                if op_name(node) not in OPS and node.target is not operator.getitem:
                    found.append(node)
        for node in found:
            found += [n for n in node.all_input_nodes if n.op == "call_function" and n not in found]
        return set(found)

    def sizes(self, value: torch.Tensor) -> tuple[int, ...]:
        """The shape of a value of the program."""
        return tuple(concrete(n, self.example.sizes) for n in value.shape)

    # ---- The program

    def run(self) -> Program:
        for visit, node in itertools.product((self._refuse_mutation, self._node), self.exported.graph.nodes):
            self.node = node
            try:
                visit(node)
            except Refused as refused:
                raise invalid(f"{place(node)}: {op_name(node)} cannot be translated: {refused}") from None
            except Error as error:
                raise invalid(f"{place(node)}: {op_name(node)} cannot be translated: {error}") from None
        counters = {id(x) for x in self.out.counters}
        for key, x in self._read.items():
            if key not in counters and (key in self._folded_ids or key not in self._made):
                self.out.read.append((self._held[key].removeprefix("model."), x, x._version))
        return self.out

    def _node(self, node: Node) -> None:
        if node.op == "placeholder":
            self.env[node] = self._placeholder(node)
        elif node.op == "output":
            self._output(node)
        elif node.op == "call_function":
            self.env[node] = self._call(node)

    def _placeholder(self, node: Node) -> Any:
        signature = self.exported.graph_signature
        name = node.name
        for table in (signature.inputs_to_parameters, signature.inputs_to_buffers):
            if name in table:
                return self._state(table[name])
        if name in signature.inputs_to_lifted_tensor_constants:
            return self.exported.constants[signature.inputs_to_lifted_tensor_constants[name]]
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return value
        return self.data(node.name, value.dtype, self.sizes(value), lambda host: host.value(name))

    def _state(self, name: str) -> Any:
        """A parameter or a buffer, which stays PyTorch's until an op reads it."""
        return self.exported.state_dict.get(name, self.exported.constants.get(name))

    def _output(self, node: Node) -> None:
        loss = node.args[0][0]  # type: ignore[index]
        made = self.env[loss]  # type: ignore[index]
        if not isinstance(made, Tensor) or made.dims:
            raise Refused(f"the loss has the shape {shape(made.dims) if isinstance(made, Tensor) else ()}; return a scalar")
        self.out.loss = made.value if not made.value.shape else self.graph.mean(made.value, 1)

    def _refuse_mutation(self, node: Node) -> None:
        """An in-place op on a buffer, a parameter or an attribute of the model. Batch norm's counter is counted by the step."""
        if not getattr(getattr(node.target, "_schema", None), "is_mutable", False):
            return
        source = node.args[0]
        while isinstance(source, Node) and source.op == "call_function" and is_view(source):
            source = source.args[0]
        if not isinstance(source, Node) or source.op != "placeholder" or op_name(node) == "aten::detach_":
            return
        signature = self.exported.graph_signature
        held = signature.inputs_to_parameters | signature.inputs_to_buffers | signature.inputs_to_lifted_tensor_constants
        name = held.get(source.name)
        if name is not None and not name.endswith("num_batches_tracked"):
            raise Refused(f"it changes {name.removeprefix('model.')} in forward; change it outside of the model, after the step")

    def _call(self, node: Node) -> Any:
        name = op_name(node)
        if isinstance(node.meta.get("val"), _SYMBOLIC):
            made = concrete(node.meta["val"], self.example.sizes)
            return made if isinstance(made, int | float) else Missing(READS_VALUES, [])
        if node.target is operator.getitem:
            made = self.env[node.args[0]]  # type: ignore[index]
            return made[node.args[1]]
        args = torch.fx.node.map_arg(node.args, lambda n: self.env[n])
        kwargs = torch.fx.node.map_arg(node.kwargs, lambda n: self.env[n])
        if name in _OF_SHAPE and isinstance(args[0], Data | Tensor):
            args = (torch.empty(shape(args[0].dims), dtype=getattr(args[0], "dtype", torch.float32)), *args[1:])
        given = [a for a in _flat((*args, *kwargs.values())) if isinstance(a, torch.Tensor | Tensor | Complex | Data | Stack | Scores | MaskedBias | Positions | Missing)]
        self._read |= {id(a): a for a in given if isinstance(a, torch.Tensor) and id(a) in self._held}
        if not [a for a in given if not isinstance(a, torch.Tensor)] and not self._reads_parameter(given):
            return self._folded(node, args, kwargs)
        self._given += [a for a in given if isinstance(a, torch.Tensor)]
        if name not in VIEWS and self._of_batch(node, given):
            return self._on_host(node)
        if name in ("aten::zero_", "aten::fill_"):
            return self._filled(node, *args[1:])
        base = name.removesuffix("_")
        function = OPS.get(name) or OPS.get(base)
        if function is None:
            raise Refused(_HINTS.get(name, "Remat has no such layer"))
        try:
            made = self._apply(function, args, kwargs)
        except Refused as refused:
            scores = next((a for a in given if isinstance(a, Scores)), None)
            if (reason := self.why_computed(node)) is not None:
                raise (refused if ALL in self.computed else Unfused(ALL, reason)) from None
            if scores is None:
                raise
            raise Unfused(scores.node, str(refused)) from None
        self._check_shapes(node, made)
        if name.endswith("_") and not name.startswith("aten::__"):
            self._replace(node, made)
        return made

    def why_computed(self, node: Node) -> str | None:
        """Why the product of a node is no part of a fused attention; None: it may be."""
        return self.computed.get(node.name, self.computed.get(ALL))

    def _apply(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        known = inspect.signature(function).parameters
        try:
            return function(self, *args, **{k: v for k, v in kwargs.items() if k in known})
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                raise
            raise Refused(f"of its arguments: {error}") from None

    def _check_shapes(self, node: Node, made: Any) -> None:
        """A translation has PyTorch's shape, or is refused."""
        values = node.meta["val"]
        pairs = zip(made, values, strict=False) if isinstance(values, list | tuple) else [(made, values)]
        for one, value in pairs:
            if isinstance(value, torch.Tensor) and hasattr(one, "dims") and shape(one.dims) != self.sizes(value):
                raise Refused(f"the result would have the shape {shape(one.dims)} instead of {self.sizes(value)}")

    def _replace(self, node: Node, made: Any) -> None:
        """An in-place op: later readers of its operand see the result."""
        first: Node = node.args[0]  # type: ignore[assignment]
        if isinstance(made, Data) and made is not self.env[first]:  # PyTorch computes from the batch as it was given
            raise Refused("it changes the batch's own tensor in place; use the op that returns a result")
        order = {n: i for i, n in enumerate(self.exported.graph.nodes)}
        same = [self._views(first)[1]]
        for n in same:
            same += [u for u in n.users if order[u] < order[node] and u.args[0] is n and is_view(u)]
        if any(n is not first and any(order[u] > order[node] for u in n.users) for n in same):
            raise Refused(_SEEN_LATER)
        self.env[first] = made

    def _filled(self, node: Node, number: Any = 0) -> Any:
        """x[..] = number, where x is computed: later readers of x see it."""
        views, whole = self._views(node.args[0])  # type: ignore[arg-type]
        order = {n: i for i, n in enumerate(self.exported.graph.nodes)}
        same = [whole]
        for n in same:
            same += [u for u in n.users if order[u] < order[node] and u.args[0] is n and is_view(u)]
        if (views and node.users) or any(order[u] > order[node] for n in same[1:] for u in n.users):
            raise Refused(_SEEN_LATER)
        kept = torch.ones(shape(self.tensor(self.env[whole]).dims), dtype=torch.bool)
        part = kept
        for each in views[::-1]:
            rest, given = torch.fx.node.map_arg((each.args[1:], each.kwargs), lambda n: self.env[n])
            part = each.target(part, *rest, **given)  # type: ignore[operator]
        part.fill_(False)
        self.env[whole] = made = self._apply(OPS["aten::where"], (kept, self.env[whole], number), {})
        return made

    @staticmethod
    def _views(node: Node) -> tuple[list[Node], Node]:
        """The views through which a node is seen, the last one first, and what they show."""
        views: list[Node] = []
        while node.op == "call_function" and is_view(node):
            views.append(node)
            node = node.args[0]  # type: ignore[assignment]
        return views, node

    def is_trained(self, node: Node) -> bool:
        """A trained parameter reaches the node."""
        seen, open_nodes = set(), [node]
        while open_nodes:
            each = open_nodes.pop()
            made = self.env.get(each)
            if isinstance(made, torch.nn.Parameter) and made.requires_grad:
                return True
            if isinstance(made, Data):
                continue
            open_nodes += [n for n in each.all_input_nodes if n not in seen]
            seen.update(each.all_input_nodes)
        return False

    @staticmethod
    def _reads_parameter(given: Iterable[Any]) -> bool:
        return any(isinstance(a, torch.nn.Parameter) for a in given)

    def _folded(self, node: Node, args: Any, kwargs: Any) -> Any:
        """Constants stay constants. The counters of batch norm are PyTorch's, and counted after each step."""
        if torch.Tag.nondeterministic_seeded in node.target.tags and not _is_idle_dropout(node):  # type: ignore[union-attr]
            if op_name(node) == "aten::bernoulli_":
                self.env[node.args[0]] = made = self._apply(OPS["aten::bernoulli"], args, kwargs)  # type: ignore[index]
                return made
            raise Refused("it would draw random numbers once, at capture; draw them outside, and pass them in the batch")
        if op_name(node) == "aten::add_" and isinstance(args[1], int) and args[1] == 1 and node.args[0].op == "placeholder":  # type: ignore[union-attr]
            self.out.counters.append(args[0])
            return args[0]
        self._folded_ids |= {id(a) for a in _flat((*args, *kwargs.values()))}
        if node.target._schema.is_mutable and self._is_own(args[0]):  # type: ignore[union-attr]
            return node.target(*args, **kwargs)  # type: ignore[operator]
        if node.target._schema.is_mutable:  # type: ignore[union-attr]
            args = torch.fx.node.map_aggregate(args, lambda a: a.clone() if isinstance(a, torch.Tensor) else a)
        with torch.no_grad():
            made = node.target(*args, **kwargs)  # type: ignore[operator]
        memory = {a.untyped_storage().data_ptr() for a in _flat((*args, *kwargs.values())) if isinstance(a, torch.Tensor)}
        self._own |= {a.untyped_storage().data_ptr() for a in _flat([made]) if isinstance(a, torch.Tensor)} - memory
        if node.target._schema.is_mutable:  # type: ignore[union-attr]
            self._replace(node, made)
        return made

    def _is_own(self, x: torch.Tensor) -> bool:
        """A constant that the program makes, and that no op has read: it changes in place as in PyTorch."""
        memory = x.untyped_storage().data_ptr()
        return memory in self._own and all(a.untyped_storage().data_ptr() != memory for a in self._given)

    def _of_batch(self, node: Node, given: Sequence[Any]) -> bool:
        """Integers, and what is made of them, describe the batch, and so do comparisons of its numbers, and sums, such as that of a
        mask of numbers: no gradient flows there, and PyTorch computes them."""
        known = all(isinstance(a, Data | torch.Tensor) and not isinstance(a, torch.nn.Parameter) for a in given)
        integers = all(a.integers or not a.dtype.is_floating_point for a in given if isinstance(a, Data))
        value = node.meta["val"]
        compared = isinstance(value, torch.Tensor) and not (value.dtype.is_floating_point or value.dtype.is_complex)
        return known and (integers or compared or node in self._before or op_name(node) in _OF_BATCH)

    def _on_host(self, node: Node) -> Any:
        value = node.meta["val"]
        name = node.name
        if getattr(getattr(node.target, "_schema", None), "is_mutable", False):
            raise Refused("it changes integers in place that are the batch's own or are read through a view; use the op that returns a result")
        if isinstance(value, torch.Tensor):
            made = self.data(name, value.dtype, self.sizes(value), lambda host: host.value(name))
            made.integers = True
            return made

        def part(i: int) -> Callable[[Host], Any]:
            return lambda host: host.value(name)[i]

        return [self.data(f"{name}.{i}", v.dtype, self.sizes(v), part(i)) for i, v in enumerate(value)]

    # ---- Tensors of the batch, constants, parameters

    def data(self, name: str, dtype: Any, sizes: Sequence[int], compute: Callable[[Host], Any]) -> Data:
        if name not in self.axes_of:
            self.axes_of[name] = new_dims(sizes, of_input=True)
        axes = self.axes_of[name]
        return Data(name, dtype, axes, compute, list(axes))

    def tensor(self, x: Any) -> Tensor:
        """The value of anything that an op reads."""
        if isinstance(x, Tensor):
            return x
        if isinstance(x, Data):
            return self._input(x)
        if isinstance(x, torch.Tensor):
            return self.stored(x)
        if isinstance(x, Positions):
            rows, width = shape(x.dims)[-2:]
            table = self.graph.reshape(x.table.value, [math.prod(x.table.value.shape)])
            value = self.graph.reshape(self.graph.slice(table, 0, rows * width), [rows, width])
            return Tensor(value, x.dims[-2:], x.dims)
        if isinstance(x, Missing):
            raise Refused(x.reason)
        if isinstance(x, Stack):
            parts = [OPS["aten::unsqueeze"](self, part, 0) for part in x.parts]
            return OPS["aten::cat"](self, parts, 0)  # type: ignore[no-any-return]
        if isinstance(x, Scores):
            raise Unfused(x.node, "a product along time can only be attention: q k^T, scaled, masked, put through softmax and dropout, and multiplied by v; others need the same leading axes")
        if isinstance(x, Complex):
            raise Refused("complex numbers, which only products with constants and view_as_real take")
        if isinstance(x, MaskedBias):
            if x.mask.dtype == torch.bool:
                return OPS["remat::chosen"](self, x.mask, x.bias, -x.fill)  # type: ignore[no-any-return]
            return self.broadcast(self.graph.add, x.bias, x.mask)
        raise Refused(f"a tensor was expected, not {x!r}")

    def _input(self, data: Data) -> Tensor:
        """The batch's tensor as an input of the graph, with time and batch first if it has a time axis."""
        atoms = [a for axis in data.source for a in leaves(axis)]
        time = [a for a in atoms if a.role == TIME]
        batch = [a for a in atoms if a.role == BATCH and time]
        if len(time) > 1 or len(batch) > 1:
            raise Refused(f"{data.name} has {len(time)} time axes and {len(batch)} batch axes")
        rest = [a for a in atoms if a not in (*time, *batch) and (a.size > 1 or not time)]
        order = [*time, *batch, *rest]
        axes: list[Axis] = [(a,) for a in order]
        if time and not batch:
            axes.insert(1, ())
        if data.name not in self._made:
            kept = [a for a in atoms if a in order]
            sizes, swap = tuple(a.size for a in kept), [kept.index(a) for a in order]
            integer = not data.dtype.is_floating_point
            lengths = shape(axes) or (1,)
            value = self.graph.input(data.name, "i32" if integer else "f32", "sequence" if time else "static", lengths)
            if data.dtype in (torch.float64, torch.complex64):
                raise Refused(f"{data.name} is {data.dtype}; use float32")
            self.out.inputs[data.name] = lambda host: data.compute(host).reshape(sizes).permute(swap).reshape(lengths)
            self._made[data.name] = Tensor(value, axes, list(data.source), bool(time))
        made = self._made[data.name]
        return Tensor(made.value, made.axes, list(data.dims), made.sequence)

    def stored(self, x: torch.Tensor, statistics: bool = False) -> Tensor:
        """A parameter, or a constant, which is a parameter that is not trained. Statistics are those of batch norm."""
        key = id(x)
        if key not in self._made:
            self._stored.append(x)
            if x.dtype != torch.float32:
                raise Refused(f"a constant is {x.dtype}; use float32")
            self._made[key] = self._store(x, statistics)
        made = self._made[key]
        return Tensor(made.value, list(made.axes), list(made.dims))

    def _store(self, x: torch.Tensor, statistics: bool) -> Tensor:
        names = [n.removeprefix("model.") for n, t in self.exported.state_dict.items() if t is x]
        sizes = tuple(x.shape) or (1,)
        dims = new_dims(x.shape)
        if x.device.type != "cpu":
            raise Refused(f"{names[0] if names else 'a constant'} is on {x.device}; move the model to the CPU")
        if names and not x.is_contiguous():
            raise Refused(f"{names[0]} is not contiguous; store it so")
        if names and isinstance(x, torch.nn.Parameter):
            name = names[0] if x.requires_grad else self._frozen(names[0])
            value = self.graph.param(name, sizes, init_zeros())
            self.out.parameters[name] = x
        elif statistics:
            name = names[0] if names else f"statistics.{len(self.out.buffers)}"
            value = self.graph.buffer(name, sizes, init_zeros())
            self.out.buffers[name] = x
        elif names:
            name = self._frozen(names[0])
            value = self.graph.param(name, sizes, init_zeros())
            self.out.constants[name] = x
        else:
            x = x.contiguous()
            name = self._frozen(f"constant.{_digest(x)}")
            if name in self.out.constants:
                return self._made[name]
            value = self.graph.param(name, sizes, init_zeros())
            self.out.constants[name] = x
            self._made[name] = Tensor(value, list(dims), list(dims))
        return Tensor(value, list(dims), list(dims))

    def _frozen(self, name: str) -> str:
        """The name of what is not trained. A session trains the parameters whose names begin like those it is given."""
        trained = [n.removeprefix("model.") for n, x in self.exported.state_dict.items() if x.requires_grad]
        return f"(frozen) {name}" if any(name.startswith(n) for n in trained) else name

    # ---- Layouts

    def arrange(self, x: Tensor, axes: Sequence[Axis]) -> Value:
        """The value with these axes. A sequence's first two are its time and batch. Copies only if the order differs."""
        have = [a for axis in x.axes for a in leaves(axis) if a.size > 1]
        want = [a for axis in axes for a in leaves(axis) if a.size > 1]
        if len({id(a) for a in have}) < len(have):
            raise Refused(f"two axes of a tensor of shape {shape(x.dims)} were taken for one, as in x + x.T; Remat cannot tell them apart")
        if any(a.repeats for a in want):
            raise Refused("a tensor is expanded here, which Remat does only in add, sub and mul")
        if len(have) != len(want) or {id(a) for a in have} != {id(a) for a in want}:
            raise Refused(f"a tensor of shape {shape(x.dims)} meets one whose axes come from other tensors, such as a constant that varies over time")
        value = x.value
        if have != want:
            value = self._reordered(x, have, want)
        sizes = shape(axes)
        if value.shape != sizes:
            value = self.graph.reshape(value, sizes)
        return value

    def _reordered(self, x: Tensor, have: list[Atom], want: list[Atom]) -> Value:
        fixed = 2 if x.sequence else 0
        first = [a for a in (x.time(), x.batch()) if a is not None and a.size > 1] if x.sequence else []
        if want[: len(first)] != first:
            raise Refused("time and batch are not the first axes")
        have, want = have[len(first) :], want[len(first) :]
        runs: list[list[Atom]] = []
        for atom in have:
            previous = runs[-1][-1] if runs else None
            follows = previous is not None and want.index(atom) == want.index(previous) + 1
            runs[-1].append(atom) if follows else runs.append([atom])
        value = self.graph.reshape(x.value, [*x.value.shape[:fixed], *(length(r) for r in runs)])
        wanted = sorted(runs, key=lambda r: want.index(r[0]))
        for i, run in enumerate(wanted):
            j = runs.index(run)
            if i != j:
                value = self.graph.transpose(value, fixed + i, fixed + j)
                runs[i], runs[j] = runs[j], runs[i]
        return value

    def spread(self, x: Tensor, all_of_it: bool = True) -> Tensor:
        """x with memory for the axes along which it is expanded; or only for those that an element-wise layer cannot repeat."""
        there = [a for axis in x.axes for a in leaves(axis)]
        for atom in [a for d in x.dims for a in leaves(d) if all_of_it or not a.repeats or real(d)]:
            if atom.size == 1 or atom.role or atom in there:
                continue
            at = 2 if x.sequence else 0
            zeros = self.stored(torch.zeros(atom.size, *[1] * (len(x.axes) - at)))
            if atom.repeats:
                atom.unite(Atom(atom.size))
            value = self.graph.reshape(x.value, [*x.value.shape[:at], 1, *x.value.shape[at:]])
            x = Tensor(self.graph.add(value, zeros.value), [*x.axes[:at], (atom,), *x.axes[at:]], x.dims, x.sequence)
        return x

    def plain(self, x: Any) -> Plain:
        """The value with PyTorch's axes in PyTorch's order, but for a sequence's time and batch, which come first."""
        x = self.spread(self.tensor(x))
        axes: list[Axis] = [(x.time(),), tuple(a for a in (x.batch(),) if a)] if x.sequence else []
        at: dict[int, int] = {}
        for i, dim in enumerate(x.dims):
            inner = without(dim, x.time(), x.batch())
            if inner is not None:
                if not any(a.size > 1 for a in leaves(dim) if a is x.time() or a is x.batch()):
                    at[i] = len(axes)
                axes.append(inner)
        return Plain(x, self.arrange(x, axes), axes, at)

    def broadcast(self, f: Callable[[Value, Value], Value], one: Any, other: Any) -> Tensor:
        """An element-wise layer of two values, by NumPy's rules for shapes."""
        pair = [self.tensor(self._along_time(x, y)) for x, y in ((one, other), (other, one))]
        pair = [self.spread(x, all_of_it=False) for x in pair]
        rank = max(len(x.dims) for x in pair)
        dims = [[()] * (rank - len(x.dims)) + list(x.dims) for x in pair]
        for one_side, other_side in (dims, dims[::-1]):  # an expanded axis repeats along the real one
            one_side[:] = [() if d and not real(d) and real(o) else d for d, o in zip(one_side, other_side, strict=True)]
        out: list[Axis] = []
        both = [(a, b) for a, b in zip(*dims, strict=True) if length(a) > 1 and length(b) > 1]
        unite_all([a for a, _ in both], [b for _, b in both])
        for a, b in zip(*dims, strict=True):
            out.append(a if length(real(a)) >= length(real(b)) and length(a) >= length(b) else b)
        lead = next((x for x in pair if x.sequence), None)
        time, batch = (lead.time(), lead.batch()) if lead else (None, None)
        for i, x in enumerate(pair):
            if time and not x.sequence and time in [a for d in x.dims for a in leaves(d)]:
                pair[i] = self.as_sequence(x, (time,), (batch,) if batch else ())
        values = []
        for x, own in zip(pair, dims, strict=True):
            pairs = [d for d, o in zip(own, out, strict=True) if without(o, time, batch) is not None]
            axes = [real(without(d, time, batch) or ()) for d in pairs]
            has_batch = batch is not None and batch in [a for d in own for a in leaves(d)]
            first: list[Axis] = [(time,), (batch,) if batch else ()] if x.sequence else [(batch,)] if has_batch else []  # type: ignore[list-item]
            while not first and axes and not axes[0]:
                axes.pop(0)
            values.append(self.arrange(x, [*first, *axes]) if first or axes else x.value)
        value = f(*values)
        rest = [a for a in (without(o, time, batch) for o in out) if a is not None]
        head: list[Axis] = [(time,), (batch,) if batch else ()] if time else []
        return Tensor(value, [*head, *rest], out, bool(lead))

    def _along_time(self, x: Any, partner: Any) -> Any:
        """A constant, or a tensor of the batch without rows, that has a number for each of its partner's timesteps: an input with
        the same number for each row."""
        trained = isinstance(x, torch.nn.Parameter) and x.requires_grad
        if not isinstance(x, Data | torch.Tensor) or trained or not isinstance(partner, Tensor) or not partner.sequence:
            return x
        sizes = shape(x.dims) if isinstance(x, Data) else tuple(x.shape)
        time, row = (self._place_of(atom, partner.dims) if atom else 0 for atom in (partner.time(), partner.batch()))
        if len(sizes) < -time or sizes[time] == 1:
            return x
        name: str
        compute: Callable[[Host], torch.Tensor]
        if isinstance(x, torch.Tensor):
            constant = x.detach()
            name, compute = self._held.get(id(x)) or f"constant.{_digest(x)}", lambda host: constant
        else:
            has_rows = row == 0 or (len(sizes) >= -row and sizes[row] > 1)
            if has_rows or [a for d in x.source for a in leaves(d)] != [a for d in x.dims for a in leaves(d)]:
                return x
            name, compute = x.name, x.compute
        whole = [1] * (-row - len(sizes)) + list(sizes)
        if row:
            whole[row] = shape(partner.dims)[row]
        given = [1] * (len(whole) - len(sizes)) + list(sizes)
        name = f"{name} along time {'x'.join(map(str, whole))}"
        return self.data(name, x.dtype, whole, lambda host: compute(host).reshape(given).expand(whole))

    @staticmethod
    def _place_of(atom: Atom, dims: Sequence[Axis]) -> int:
        """The number of its axis, from the end; 0: it has none."""
        return next((i for i, d in enumerate(dims) if atom in leaves(d)), len(dims)) - len(dims)

    def freeze_row(self, weight: torch.Tensor, row: int) -> bool:
        """Of an embedding's padding_idx: PyTorch gives its row no gradient. False: others use the weight, or the step updates it."""
        if self.updates or sum(len(n.users) for n, made in self.env.items() if made is weight) > 1:
            return False
        self.out.frozen_rows.append((weight, row))
        return True

    def fixed_row(self, weight: torch.Tensor, row: int) -> Tensor:
        """The row as a parameter that is not trained, which lies in the weight's memory."""
        key, name = f"row {row} {id(weight)}", next(n for n, x in self.exported.state_dict.items() if x is weight)
        if key not in self._made:
            name = self._frozen(f"{name.removeprefix('model.')}.row{row}")
            value = self.graph.param(name, weight.shape[1:], init_zeros())
            self.out.constants[name] = lambda: weight[row]
            dims = new_dims(weight.shape[1:])
            self._made[key] = Tensor(value, dims, dims)
        return self._made[key]

    def has_time(self, x: Tensor, axis: int) -> bool:
        """Whether the axis is time, and nothing else."""
        return x.sequence and [a for a in leaves(x.dims[axis]) if a.size > 1 or a is x.time()] == [x.time()]

    def mark(self, x: Any, time: Axis, batch: Axis) -> None:
        """Here an axis is read as time and another as batch."""
        t = [a for a in leaves(time) if a.size > 1 or a.of_input] or list(leaves(time))
        b = [a for a in leaves(batch) if a.size > 1 or a.of_input]
        if len(t) != 1 or len(b) > 1:
            raise Refused(f"an axis of {length(time)} timesteps or {length(batch)} rows is a product of axes")
        together(lambda: t[0].give(TIME), *(lambda atom=a: atom.give(BATCH) for a in b))

    def as_sequence(self, x: Any, time: Axis, batch: Axis) -> Tensor:
        """x with a time axis, which an op reads as time."""
        made = self.tensor(x)
        if not made.sequence and length(time) > 1 and not real(time):  # the same at all timesteps
            sizes = [length(d) if leaves(d) in (leaves(time), leaves(batch)) else 1 for d in made.dims]
            zeros = self.data(f"zeros along time {'x'.join(map(str, sizes))}", torch.float32, sizes, lambda host: torch.zeros(sizes))
            once = replace(made, dims=[() if leaves(d) == leaves(time) else d for d in made.dims])
            for own in (time, batch):
                unite_all([own], [z for z, d in zip(zeros.dims, made.dims, strict=True) if leaves(d) == leaves(own)])
            self.mark(zeros, time, batch)
            return self.broadcast(self.graph.add, zeros, once)
        made = made if made.sequence else self.spread(made)
        self.mark(x, time, batch)
        if made.sequence:
            return made
        rest = [d for d in made.dims if leaves(d) not in (leaves(time), leaves(batch))]
        axes = [time, batch, *rest]
        if real(batch) and not any(a in leaves(d) for d in made.dims for a in real(batch)):  # the same for all rows
            rows = self.graph.reshape(self.arrange(made, [time, *rest]), [length(time), 1, *shape(rest)])
            every = self.stored(torch.zeros(length(batch), *[1] * len(rest)))
            return Tensor(self.graph.as_sequence(self.graph.add(rows, every.value)), axes, list(made.dims), True)
        value = self.graph.as_sequence(self.arrange(made, axes))
        return Tensor(value, axes, list(made.dims), True)


@dataclass
class Plain:
    """A value with its axes, and which of them each of PyTorch's axes is. Those that are time or batch have none, nor have those
    that time or batch, of more than one element, is a factor of."""

    x: Tensor
    value: Value
    axes: list[Axis]
    at: dict[int, int]

    def result(self, value: Value, changed: dict[int, int] | None = None, dropped: Iterable[int] = ()) -> Tensor:
        """A value of the same axes, where some have another size or are gone. They are PyTorch's numbers."""
        if any(axis not in self.at for axis in (*(changed or {}), *dropped)):
            raise Refused("time or batch is a factor of the axis")
        dims, axes = list(self.x.dims), list(self.axes)
        for axis, size in (changed or {}).items():
            dims[axis] = axes[self.at[axis]] = (Atom(size),)
        for axis in sorted(dropped, reverse=True):
            del dims[axis]
            del axes[self.at[axis]]
        return Tensor(value, axes, dims, self.x.sequence)

    def last(self, *axes: int) -> bool:
        """These are the last axes of the value, in this order."""
        n = len(self.axes)
        return [self.at.get(a) for a in axes] == list(range(n - len(axes), n))


def without(axis: Axis, time: Atom | None, batch: Atom | None) -> Axis | None:
    """An axis without time and batch; None if it is nothing else."""
    atoms = leaves(axis)
    inner = tuple(a for a in atoms if a is not time and a is not batch)
    return None if len(inner) < len(atoms) and not real(inner) else inner


def _digest(x: torch.Tensor) -> str:
    return hashlib.sha1(x.contiguous().numpy().tobytes() + str(tuple(x.shape)).encode()).hexdigest()[:12]


def _is_idle_dropout(node: Node) -> bool:
    return "dropout" in op_name(node) and bool(node.args[1] == 0 or (len(node.args) > 2 and node.args[2] is False))


def _flat(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


_SEEN_LATER = "it changes a tensor in place that is read through a view later; use the op that returns a result"
# Ops that PyTorch computes where all they are given is of the batch.
_OF_BATCH = {f"aten::{name}" for name in ("sum", "mean", "where", "masked_fill", "nan_to_num")}
# Constants for a batch of one shape.
_OF_SHAPE = {f"aten::{name}" for name in ("ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full", "new_empty")}
_HINTS = {
    "aten::lstm_cell": "a loop of cells has no plan; use nn.LSTM over the whole sequence",
    "aten::gru_cell": "a loop of cells has no plan; use nn.GRU over the whole sequence",
    "aten::rnn_tanh_cell": "a loop of cells has no plan; use nn.RNN over the whole sequence",
    "aten::rnn_relu_cell": "a loop of cells has no plan; use nn.RNN over the whole sequence",
}


def _warn(message: str) -> None:
    """At the line of the user's code."""
    level, package = 1, os.path.dirname(__file__)
    frame = sys._getframe()
    while frame.f_back and frame.f_code.co_filename.startswith(package):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def translate(program: torch.export.ExportedProgram, example: Host, updates: bool) -> Program:
    """example: a batch, whose shape the translation is for. updates: the session updates the parameters."""
    inputs: dict[str, list[Axis]] = {}
    computed: dict[str, str] = {}
    refused, fused = None, False
    while True:
        translator = Translator(program, inputs, computed, example, updates)
        try:
            made = translator.run()
            if ALL in computed:
                _warn(f"attention's scores are kept as tensors, and its axis is not cut into tiles: {computed[ALL]}")
            return made
        except Again:
            fused |= translator.fused
            continue
        except Unfused as found:
            computed[found.node] = found.reason
        except Error as error:
            if ALL in computed or not fused:
                raise refused or error from None
            refused, computed[ALL] = error, str(error)  # it may be the axis that only attention takes for time
        inputs.clear()  # roles that only a fused attention gave
