"""torch.einsum: its letters become transpositions, products of matrices, products of elements, and sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from .ops import dims_of, mul, permute, product, reshape, total, unsqueeze
from .tensors import Refused, shape
from .translate import Translator, op


@op("einsum")
def einsum(t: Translator, equation: str, tensors: Sequence[Any], path: Any = None) -> Any:
    """Of one or two tensors: a product of matrices, after transpositions, or of elements."""
    given, out = labels_of(equation, [len(dims_of(x)) for x in tensors])
    if len(tensors) > 2 or any(len(set(labels)) < len(labels) for labels in given):
        raise Refused(f"{equation!r}; only of one or two tensors, with each letter once in each")
    if len(tensors) == 1:
        return in_order(t, summed(t, tensors[0], given[0], out), "".join(c for c in given[0] if c in out), out)
    (x, y), (a, b) = tensors, given
    if isinstance(x, torch.nn.Parameter):
        x, y, a, b = y, x, b, a
    x, a = summed(t, x, a, b + out), "".join(c for c in a if c in b + out)
    y, b = summed(t, y, b, a + out), "".join(c for c in b if c in a + out)
    rows, columns = "".join(c for c in a if c not in b), "".join(c for c in b if c not in a)
    both, inner = "".join(c for c in out if c in a and c in b), "".join(c for c in a if c in b and c not in out)
    if not (inner and rows and columns):
        every = both + rows + columns + inner
        made = mul(t, aligned(t, x, a, every), aligned(t, y, b, every))
        return in_order(t, total(t, made, list(range(-len(inner), 0))) if inner else made, both + rows + columns, out)
    sizes = dict(zip(a + b, (*shape(dims_of(x)), *shape(dims_of(y))), strict=True))
    x = joined_axes(t, in_order(t, x, a, both + rows + inner), sizes, (*both, rows, inner))
    y = joined_axes(t, in_order(t, y, b, both + inner + columns), sizes, (*both, inner, columns))
    made = product(t, x, y)
    if len(rows) > 1 or len(columns) > 1:
        made = reshape(t, made, [sizes[c] for c in both + rows + columns])
    return in_order(t, made, both + rows + columns, out)


def labels_of(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """A letter for each axis of each tensor, and of the result; those that `...` stands for are Greek."""
    inputs, arrow, out = equation.replace(" ", "").partition("->")
    given = inputs.split(",")
    free = [chr(c) for c in range(0x391, 0x3A9)]
    rest = [n - len(labels.replace("...", "")) for n, labels in zip(ranks, given, strict=True)]
    most = max((n for n, labels in zip(rest, given, strict=True) if "..." in labels), default=0)
    given = [labels.replace("...", "".join(free[most - n : most])) for n, labels in zip(rest, given, strict=True)]
    if not arrow:
        every = "".join(given)
        out = "..." + "".join(sorted(c for c in set(every) if every.count(c) == 1 and c not in free))
    return given, out.replace("...", "".join(free[:most]))


def summed(t: Translator, x: Any, labels: str, kept: str) -> Any:
    """Without the axes that only this tensor has."""
    gone = [i for i, c in enumerate(labels) if c not in kept]
    return total(t, x, gone) if gone else x


def in_order(t: Translator, x: Any, labels: str, wanted: str) -> Any:
    return x if labels == wanted else permute(t, x, [labels.index(c) for c in wanted])


def aligned(t: Translator, x: Any, labels: str, wanted: str) -> Any:
    """With all the axes that are wanted, of size 1 where the tensor has none."""
    x = in_order(t, x, labels, "".join(c for c in wanted if c in labels))
    for i, c in enumerate(wanted):
        x = x if c in labels else unsqueeze(t, x, i)
    return x


def joined_axes(t: Translator, x: Any, sizes: dict[str, int], groups: Sequence[str]) -> Any:
    if all(len(group) == 1 for group in groups):
        return x
    return reshape(t, x, [math.prod(sizes[c] for c in group) for group in groups])
