"""Graphs: values, and the layers that make them (remat/graph.h, remat/layers.h)."""

from __future__ import annotations

import ctypes as c
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import _abi
from ._builders import Builders
from ._library import check, invalid, lib

_DTYPES = {_abi.Dtype.F32: "float32", _abi.Dtype.F64: "float64", _abi.Dtype.I32: "int32"}


class Init:
    """Initial values of a parameter: zeros(), constant(), normal(), uniform(), or another kind of remat_init by its
    name, such as Init("time_step", 0.1)."""

    def __init__(self, kind: str, scale: float = 0.0) -> None:
        self.kind, self.scale = _named(_abi.InitKind, kind), scale

    def __repr__(self) -> str:
        return f"Init({_abi.InitKind(self.kind).name.lower()!r}, {self.scale})"


def zeros() -> Init:
    return Init("zero")


def constant(value: float) -> Init:
    return Init("constant", value)


def normal(deviation: float = 1.0) -> Init:
    return Init("normal", deviation)


def uniform(bound: float) -> Init:
    """Uniform in [-bound, bound]."""
    return Init("uniform", bound)


class Value:
    """A value of a graph: an input, a parameter, or the result of a layer."""

    __slots__ = ("graph", "id")

    def __init__(self, graph: Graph, id: int) -> None:
        self.graph, self.id = graph, id

    def _info(self) -> _abi.remat_value_info:
        info = _abi.remat_value_info()
        check(lib.remat_value_describe(self.graph._pointer, _abi.remat_value(self.id), c.byref(info)))
        return info

    @property
    def name(self) -> str | None:
        """Of an input, parameter or buffer; None for results."""
        name = self._info().name
        return name.decode() if name else None

    @property
    def shape(self) -> tuple[int, ...]:
        info = self._info()
        return tuple(info.dim[: info.rank])

    @property
    def dtype(self) -> str:
        """ "float32" or "int32"."""
        return _DTYPES[_abi.Dtype(self._info().dtype)]

    @property
    def is_sequence(self) -> bool:
        """The first axis is time."""
        return self._info().axis == _abi.Axis.SEQUENCE

    def __add__(self, other: Value) -> Value:
        return self.graph.add(self, other)

    def __sub__(self, other: Value) -> Value:
        return self.graph.sub(self, other)

    def __mul__(self, other: Value | float) -> Value:
        return self.graph.mul(self, other) if isinstance(other, Value) else self.graph.scale(self, other)

    __rmul__ = __mul__

    def __repr__(self) -> str:
        name = f"{self.name} " if self.name else ""
        shape = ", ".join(map(str, self.shape))
        return f"<remat.Value {name}{self.dtype} ({shape}){' sequence' if self.is_sequence else ''}>"


@dataclass
class Cell:
    """A recurrent layer of your own, for Graph.scan: `body` is a graph that describes one timestep."""

    name: str
    body: Graph
    inputs: Sequence[Value]
    states: Sequence[Value]
    next_states: Sequence[Value]
    output: Value
    weights: Sequence[Value] = ()


# ---- Arguments, from Python to C ------------------------------------------------------------------------------------


def _values(graph: Graph, values: Sequence[Value]) -> Any:
    return (_abi.remat_value * len(values))(*(_abi.remat_value(graph._id(v)) for v in values))


def _cell(cell: Cell) -> Any:
    body = cell.body
    given = {
        "inputs": _values(body, cell.inputs),
        "weights": _values(body, cell.weights),
        "states": _values(body, cell.states),
        "next_states": _values(body, cell.next_states),
    }
    return c.pointer(
        _abi.remat_cell(
            struct_bytes=c.sizeof(_abi.remat_cell),
            name=cell.name.encode(),
            body=body._pointer,
            n_inputs=len(cell.inputs),
            n_weights=len(cell.weights),
            n_states=len(cell.states),
            output=_abi.remat_value(body._id(cell.output)),
            **given,
        )
    )


def _named(enum: Any, name: str) -> int:
    try:
        return int(enum[name.upper()])
    except (KeyError, AttributeError):
        raise invalid(f"there is no {name!r}; use one of {', '.join(repr(m.name.lower()) for m in enum)}") from None


_Kind = _abi.ArgumentKind
_CONVERT: dict[int, Callable[[Graph, Any], Any]] = {
    _Kind.VALUE: lambda graph, value: _abi.remat_value(graph._id(value)),
    _Kind.VALUES: _values,
    _Kind.INT: lambda graph, number: int(number),
    _Kind.INT64: lambda graph, number: int(number),
    _Kind.INT64S: lambda graph, numbers: (c.c_int64 * len(numbers))(*numbers),
    _Kind.DOUBLE: lambda graph, number: float(number),
    _Kind.BOOL: lambda graph, flag: bool(flag),
    _Kind.TEXT: lambda graph, text: text.encode(),
    _Kind.INIT: lambda graph, init: _abi.remat_init(init.kind, init.scale),
    _Kind.DTYPE: lambda graph, name: _named(_abi.Dtype, name),
    _Kind.AXIS: lambda graph, name: _named(_abi.Axis, name),
    _Kind.UPSAMPLE: lambda graph, name: _named(_abi.Upsample, name),
    _Kind.CELL: lambda graph, cell: _cell(cell),
}


@dataclass(frozen=True)
class _Argument:
    name: str
    kind: int
    optional: bool
    length: int
    length_is: str | None


def _table() -> dict[str, list[_Argument]]:
    """The library's own table of builders."""
    table, builder = {}, _abi.remat_builder()
    for i in range(lib.remat_builder_count()):
        check(lib.remat_builder_info(i, c.byref(builder)))
        name: bytes = builder.name or b""
        table[name.decode().removeprefix("remat_")] = [
            _Argument(a.name.decode(), a.kind, a.optional, a.length, a.length_is.decode() if a.length_is else None)
            for a in builder.arguments[: builder.n_arguments]
        ]
    return table


_BUILDERS = _table()


def _convert(graph: Graph, argument: _Argument, given: Any) -> Any:
    if given is None and argument.optional:
        return _abi.remat_value(0) if argument.kind == _Kind.VALUE else None
    if argument.length and isinstance(given, int):
        given = (given,) * argument.length
    if argument.length and len(given) != argument.length:
        raise invalid(f"{argument.name} has {len(given)} entries; give {argument.length}, or one number for all")
    try:
        return _CONVERT[argument.kind](graph, given)
    except (TypeError, ValueError, AttributeError) as error:
        raise TypeError(f"{argument.name} cannot be {given!r}") from error


class Graph(Builders):
    """A network: inputs, parameters, and layers under the names that they have in remat.h.

    A layer that is refused raises Error and leaves the graph as it was. Shapes are (T,B,C): timesteps, batch, features.
    """

    def __init__(self) -> None:
        pointer = c.c_void_p()
        check(lib.remat_graph_create(c.byref(pointer)))
        self._adopt(pointer)

    def _adopt(self, pointer: c.c_void_p, origin: Graph | None = None) -> None:
        self._pointer, self._origin = pointer, origin
        weakref.finalize(self, lib.remat_graph_free, pointer)

    def _id(self, value: Value) -> int:
        """The value's number, which a resized graph has from the first."""
        graph: Graph | None = self
        while graph is not None:
            if value.graph is graph:
                return value.id
            graph = graph._origin
        raise invalid(f"{value!r} is a value of another graph")

    def _build(self, name: str, *arguments: object) -> Value:
        given: Iterator[Any] = iter(arguments)
        lengths: dict[str | None, int] = {a.length_is: 0 for a in _BUILDERS[name]}
        values = {}
        for argument in _BUILDERS[name]:
            if argument.name not in lengths:
                value = values[argument.name] = next(given)
                if argument.length_is:
                    lengths[argument.length_is] = len(value)
        if name == "scan":
            _check_cell(values["cell"], lengths)
        passed = [
            lengths[a.name] if a.name in lengths else _convert(self, a, values[a.name]) for a in _BUILDERS[name]
        ]
        made = getattr(lib, f"remat_{name}")(self._pointer, *passed).id
        if not made:
            try:
                check(lib.remat_graph_check(self._pointer))
            finally:
                lib.remat_graph_forget_mistake(self._pointer)
        return Value(self, made)

    def resized(self, timesteps: tuple[int, int] | None = None, rows: tuple[int, int] | None = None) -> Graph:
        """The same network for another length or batch: timesteps=(old, new), rows=(old, new). Values of this graph are
        values of the result."""
        pointer = c.c_void_p()
        t, b = timesteps or (0, 0), rows or (0, 0)
        check(lib.remat_graph_resized(self._pointer, t[0], t[1], b[0], b[1], c.byref(pointer)))
        graph = Graph.__new__(Graph)
        graph._adopt(pointer, self)
        return graph


def _check_cell(cell: Cell, lengths: dict[str | None, int]) -> None:
    for name, wanted in (("inputs", len(cell.inputs)), ("weights", len(cell.weights))):
        if lengths[f"n_{name}"] != wanted:
            raise invalid(f"the cell {cell.name} has {wanted} {name}, but {lengths[f'n_{name}']} were given")
