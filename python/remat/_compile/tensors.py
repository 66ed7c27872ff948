"""Axes: which of a tensor's axes is time, which is batch, and how PyTorch's axes lie in Remat's.

Every axis of a tensor is a product of atoms. Views and transpositions only regroup and reorder atoms, so they cost nothing;
`arrange` (translate.py) copies where an op needs another order. An axis of an input becomes time where an op treats it as
time: the role is noted at the input's atom, and the translation starts again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..graph import Value

TIME, BATCH = "time", "batch"


class Refused(Exception):
    """A construct that cannot be translated. The translator adds its place in the model."""


class Again(Exception):
    """An axis of an input turned out to be time or batch: translate again, with its role known."""


class Unfused(Exception):
    """Scores of attention that the fused layer cannot take, and why: translate again, with the product of this node computed."""

    def __init__(self, node: str, reason: str) -> None:
        self.node, self.reason = node, reason


class Atom:
    """A factor of an axis. Atoms that are known to be equal have one root."""

    def __init__(self, size: int, of_input: bool = False, repeats: bool = False) -> None:
        self.size = size
        self.of_input = of_input  # an input's axis: its role decides how the input is laid out
        self.repeats = repeats  # from expand: its elements repeat, so it has no memory
        self.role: str | None = None
        self._same: Atom | None = None
        self._parts: tuple[Atom, ...] | None = None

    def root(self) -> Atom:
        atom = self
        while atom._same:
            atom = atom._same
        return atom

    def split(self, first: int) -> None:
        """Splits this atom into a factor `first` and the rest."""
        root = self.root()
        if root.role:
            raise Refused(f"the {root.role} axis is split into ({first}, {root.size // first})")
        root._parts = (
            Atom(first, root.of_input, root.repeats),
            Atom(root.size // first, root.of_input, root.repeats),
        )

    def give(self, role: str) -> None:
        root = self.root()
        if root.role == role:
            return
        if root.role:
            raise Refused(f"one axis is {root.role} and {role}")
        root.role = role
        if root.of_input:
            raise Again

    def unite(self, other: Atom) -> None:
        a, b = self.root(), other.root()
        if a is b:
            return
        if a.repeats != b.repeats:  # an expanded axis takes the elements of the real one
            a, b = (b, a) if a.repeats else (a, b)
        if a.role and b.role and a.role != b.role:
            raise Refused(f"one axis is {a.role} and {b.role}")
        learned = (a.role is None and b.role and a.of_input) or (b.role is None and a.role and b.of_input)
        b._same, a.role, a.of_input = a, a.role or b.role, a.of_input or b.of_input
        if learned:
            raise Again


Axis = tuple[Atom, ...]


def leaves(atoms: Iterable[Atom]) -> Axis:
    out: list[Atom] = []
    for atom in atoms:
        root = atom.root()
        out.extend(leaves(root._parts) if root._parts else (root,))
    return tuple(out)


def length(axis: Iterable[Atom]) -> int:
    return math.prod(a.size for a in axis)


def real(atoms: Iterable[Atom]) -> Axis:
    """The atoms that have memory, without those of size 1."""
    return tuple(a for a in leaves(atoms) if a.size > 1 and not a.repeats)


def shape(dims: Iterable[Axis]) -> tuple[int, ...]:
    return tuple(length(d) for d in dims)


def new_dims(sizes: Iterable[int], of_input: bool = False) -> list[Axis]:
    return [(Atom(n, of_input),) for n in sizes]


def unite(one: Axis, other: Axis) -> None:
    """Records that two axes of equal length are the same."""
    a, b = list(leaves(one)), list(leaves(other))
    if [x.size for x in a] != [x.size for x in b]:  # factors of size 1 that only one of them has say nothing
        a, b = ([x for x in side if x.size > 1] for side in (a, b))
    while a and b:
        x, y = a[0], b[0]
        if x.size == y.size:
            x.unite(y)
            a.pop(0), b.pop(0)
        elif x.size > y.size and x.size % y.size == 0:
            x.split(y.size)
            a[:1] = x._parts or ()
        elif y.size % x.size == 0:
            y.split(x.size)
            b[:1] = y._parts or ()
        else:
            raise Refused(f"axes of {length(one)} elements meet that are products of different factors")


def together(*actions: Callable[[], None]) -> None:
    """Runs all of them; afterwards raises Again once if any found the role of an input's axis."""
    learned = False
    for action in actions:
        try:
            action()
        except Again:
            learned = True
    if learned:
        raise Again


def unite_all(one: Sequence[Axis], other: Sequence[Axis]) -> None:
    together(*(partial(unite, a, b) for a, b in zip(one, other, strict=False)))


def regroup(dims: Sequence[Axis], sizes: Sequence[int]) -> list[Axis]:
    """The axes after a reshape: the same atoms in the same order, split where an axis ends inside one."""
    atoms = [a for dim in dims for a in leaves(dim)]
    out: list[Axis] = []
    for size in sizes:
        axis: list[Atom] = []
        if size == 1 and atoms and atoms[0].size == 1:
            axis.append(atoms.pop(0))
        while (have := length(axis)) < size:
            if not atoms:
                raise Refused(f"shape {shape(dims)} cannot become {tuple(sizes)}")
            atom = atoms.pop(0)
            missing = size // have
            if size % have == 0 and atom.size > missing and atom.size % missing == 0:
                atom.split(missing)
                parts = atom._parts or ()
                axis.append(parts[0])
                atoms.insert(0, parts[1])
            else:
                axis.append(atom)
        if length(axis) != size:
            raise Refused(f"a reshape of {shape(dims)} to {tuple(sizes)} mixes axes")
        out.append(tuple(axis))
    if atoms and out:
        out[-1] = (*out[-1], *atoms)
    return out


@dataclass
class Tensor:
    """A value of the graph. dims: PyTorch's axes; axes: those of the value. A sequence's first two are (T,B)."""

    value: Value
    axes: list[Axis]
    dims: list[Axis]
    sequence: bool = False
    normalized: Axis | None = None  # of log_softmax: the axis along which it normalizes
    log_softmax_of: Tensor | None = None  # its argument, seen through the same views

    def time(self) -> Atom | None:
        return leaves(self.axes[0])[0] if self.sequence else None

    def batch(self) -> Atom | None:
        return next(iter(leaves(self.axes[1])), None) if self.sequence else None


@dataclass
class Data:
    """A tensor made of the batch alone. PyTorch computes it from each batch; it becomes an input where a layer reads it.

    compute: from the values of the program's nodes for a batch (see host.py) to a tensor with the axes `source`."""

    name: str
    dtype: Any
    source: list[Axis]
    compute: Callable[[Any], Any]
    dims: list[Axis]
    integers: bool = False  # made of integers


@dataclass
class Positions:
    """The first rows of a table, one for each position."""

    table: Tensor
    dims: list[Axis]


@dataclass
class Missing:
    """A result that Remat does not compute. Reading it raises Refused with the reason."""

    reason: str
    dims: list[Axis]


@dataclass
class Stack:
    """Tensors side by side along a new first axis, such as the final states of all layers."""

    parts: list[Any]
    dims: list[Axis] = field(default_factory=list)


@dataclass
class Complex:
    """Complex numbers, such as the pairs of features that a rotation turns."""

    real: Tensor
    imag: Tensor

    @property
    def dims(self) -> list[Axis]:
        return self.real.dims


@dataclass
class MaskedBias:
    """A bias of attention's scores on the way to them, and a mask: a Boolean one with what it fills in, or one to add."""

    bias: Any
    mask: Any
    fill: float
    dims: list[Axis]


@dataclass
class Scores:
    """q k^T on the way to attention: what happened to it so far."""

    node: str  # of the product
    q: Any
    k: Any
    dims: list[Axis]
    scale: float = 1.0
    causal: bool = False
    window: int = 0  # if causal: the timesteps that a query sees, its own included; 0: all
    padding: Data | None = None
    bias: Tensor | None = None  # (heads,P,R)
    fill: float = math.inf  # how far masked scores are below others, at least
    softmax: bool = False
    dropout: float = 0.0
    unseeing: bool = False  # a query that sees no key yields 0, as in scaled_dot_product_attention; written out it yields NaN

    def before_softmax(self, what: str) -> Scores:
        if self.softmax:
            raise Refused(f"{what} of attention's probabilities; after the softmax only dropout and the product with the values")
        return self
