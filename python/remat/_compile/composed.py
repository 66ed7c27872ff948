"""Functions and losses that are compositions of other ops."""

from __future__ import annotations

import math
from typing import Any

import torch

from .losses import reduced
from .ops import (
    add, amax, as_numbers, cat, clamp, dims_of, div, exp, expand, flatten, kept, linear, mul, neg, norm, number, of_mask, power, rsqrt, scaled, slice_,
    softplus, sub, total, transpose, unary, unsqueeze, where,
)  # fmt: skip
from .tensors import Missing, Refused, length, shape
from .translate import Translator, op


@op("maximum")
def maximum(t: Translator, self: Any, other: Any) -> Any:
    if number(other) is not None:
        return clamp(t, self, min=number(other))
    if shape(dims_of(self)) != shape(dims_of(other)):
        raise Refused(f"shapes {shape(dims_of(self))} and {shape(dims_of(other))} are broadcast; give equal ones")
    return amax(t, cat(t, [unsqueeze(t, x, -1) for x in (self, other)], -1), -1)


@op("minimum")
def minimum(t: Translator, self: Any, other: Any) -> Any:
    if (n := number(other)) is not None:
        return clamp(t, self, max=n)
    return neg(t, maximum(t, neg(t, self), neg(t, other)))


@op("amin")
def amin(t: Translator, self: Any, dim: Any = (), keepdim: bool = False) -> Any:
    return neg(t, amax(t, neg(t, self), dim, keepdim))


@op("min")
def least(t: Translator, self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        raise Refused("a minimum over all axes")
    if not isinstance(dim, int):
        return minimum(t, self, dim)
    values = amin(t, self, dim, keepdim)
    return [values, Missing("the indices of a minimum are not kept", values.dims)]


# ---- Comparisons: numbers, 1 where they are true and 0 elsewhere, without a gradient --------------------------------


def above_zero(t: Translator, x: Any) -> Any:
    """Of any number above 0 the second factor makes at least 1, where hardtanh is flat."""
    return unary(t, scaled(t, scaled(t, x, 1e30), 1e30), t.graph.hardtanh, 0, 1)


@op("gt")
def greater(t: Translator, self: Any, other: Any) -> Any:
    return above_zero(t, sub(t, self, other))


@op("lt")
def less(t: Translator, self: Any, other: Any) -> Any:
    return above_zero(t, sub(t, other, self))


@op("le")
def at_most(t: Translator, self: Any, other: Any) -> Any:
    return logical_not(t, greater(t, self, other))


@op("ge")
def at_least(t: Translator, self: Any, other: Any) -> Any:
    return logical_not(t, less(t, self, other))


@op("ne")
def differs(t: Translator, self: Any, other: Any) -> Any:
    return add(t, greater(t, self, other), less(t, self, other))


@op("eq")
def equals(t: Translator, self: Any, other: Any) -> Any:
    return logical_not(t, differs(t, self, other))


@op("sign", "sgn")
def sign(t: Translator, self: Any) -> Any:
    return sub(t, greater(t, self, 0), less(t, self, 0))


@op("logical_not", "bitwise_not")
def logical_not(t: Translator, self: Any) -> Any:
    return sub(t, 1, as_numbers(self))


@op("logical_and", "bitwise_and", "__and__")
def logical_and(t: Translator, self: Any, other: Any) -> Any:
    return mul(t, as_numbers(self), as_numbers(other))


@op("logical_or", "bitwise_or", "__or__")
def logical_or(t: Translator, self: Any, other: Any) -> Any:
    return logical_not(t, logical_and(t, logical_not(t, self), logical_not(t, other)))


@op("hardshrink")
def hardshrink(t: Translator, self: Any, lambd: float = 0.5) -> Any:
    return kept(t, self, add(t, greater(t, self, lambd), less(t, self, -lambd)))


@op("threshold")
def threshold(t: Translator, self: Any, threshold: float, value: float) -> Any:
    return where(t, greater(t, self, threshold), self, value)


# ---- Mixtures, repetitions, running sums ----------------------------------------------------------------------------


@op("lerp")
def lerp(t: Translator, self: Any, end: Any, weight: Any) -> Any:
    return add(t, self, mul(t, sub(t, end, self), weight))


@op("addcmul")
def addcmul(t: Translator, self: Any, tensor1: Any, tensor2: Any, value: float = 1) -> Any:
    return add(t, self, mul(t, tensor1, tensor2), value)


@op("addcdiv")
def addcdiv(t: Translator, self: Any, tensor1: Any, tensor2: Any, value: float = 1) -> Any:
    return add(t, self, div(t, tensor1, tensor2), value)


@op("exp2")
def exp2(t: Translator, self: Any) -> Any:
    return exp(t, scaled(t, self, math.log(2)))


@op("logaddexp")
def logaddexp(t: Translator, self: Any, other: Any) -> Any:
    return add(t, self, softplus(t, sub(t, other, self)))


@op("diff")
def diff(t: Translator, self: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    if prepend is not None or append is not None:
        raise Refused("prepend and append are not supported")
    for _ in range(n):
        self = sub(t, slice_(t, self, dim, 1), slice_(t, self, dim, 0, -1))
    return self


@op("repeat_interleave")
def repeat_interleave(t: Translator, self: Any, repeats: Any, dim: int | None = None, output_size: Any = None) -> Any:
    if not isinstance(repeats, int) or dim is None:
        raise Refused("numbers of repeats that differ, or no dim")
    dim %= len(dims_of(self))
    if length(dims_of(self)[dim]) == 1:
        return expand(t, self, [repeats if i == dim else -1 for i in range(len(dims_of(self)))])
    return flatten(t, cat(t, [unsqueeze(t, self, dim + 1)] * repeats, dim + 1), dim, dim + 1)


@op("cumsum")
def cumsum(t: Translator, self: Any, dim: int, dtype: Any = None) -> Any:
    """Along time a recurrence; along another axis a product with a triangle of ones."""
    x = t.tensor(self)
    dim %= len(x.dims)
    if t.has_time(x, dim):
        p = t.plain(x)
        return p.result(t.graph.linear_scan(t.graph.shift(t.graph.scale(p.value, 0), 1), p.value))
    n = length(x.dims[dim])
    return transpose(t, linear(t, transpose(t, x, dim, -1), torch.ones(n, n).tril()), dim, -1)


@op("tril")
def tril(t: Translator, self: Any, diagonal: int = 0) -> Any:
    return kept(t, self, torch.ones(shape(dims_of(self))[-2:], dtype=torch.bool).tril(diagonal))


@op("triu")
def triu(t: Translator, self: Any, diagonal: int = 0) -> Any:
    return kept(t, self, torch.ones(shape(dims_of(self))[-2:], dtype=torch.bool).triu(diagonal))


# ---- Distances, and losses of them ----------------------------------------------------------------------------------


@op("cosine_similarity")
def cosine_similarity(t: Translator, x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    sizes = [clamp(t, norm(t, x, 2, dim), min=eps) for x in (x1, x2)]
    return div(t, total(t, mul(t, x1, x2), dim), mul(t, *sizes))


@op("pairwise_distance")
def pairwise_distance(t: Translator, x1: Any, x2: Any, p: float = 2, eps: float = 1e-6, keepdim: bool = False) -> Any:
    return norm(t, add(t, sub(t, x1, x2), eps), p, -1, keepdim)


@op("triplet_margin_loss")
def triplet_margin_loss(
    t: Translator, anchor: Any, positive: Any, negative: Any, margin: float = 1.0, p: float = 2, eps: float = 1e-6,
    swap: bool = False, reduction: int = 1,
) -> Any:  # fmt: skip
    far = pairwise_distance(t, anchor, negative, p, eps)
    if swap:
        far = minimum(t, far, pairwise_distance(t, positive, negative, p, eps))
    near = pairwise_distance(t, anchor, positive, p, eps)
    return reduced(t, clamp(t, add(t, sub(t, near, far), margin), 0), reduction)


@op("cosine_embedding_loss")
def cosine_embedding_loss(t: Translator, input1: Any, input2: Any, target: Any, margin: float = 0.0, reduction: int = 1) -> Any:
    """1 - cos where the target is 1, max(0, cos - margin) where it is -1."""
    squares = [add(t, total(t, power(t, x), -1), 1e-12) for x in (input1, input2)]
    cosine = mul(t, total(t, mul(t, input1, input2), -1), rsqrt(t, mul(t, *squares)))
    near = kept(t, add(t, neg(t, cosine), 1), of_mask(target, "is 1", torch.bool, lambda y: y == 1))
    far = kept(t, clamp(t, add(t, cosine, -margin), 0), of_mask(target, "is -1", torch.bool, lambda y: y == -1))
    return reduced(t, add(t, near, far), reduction)


@op("margin_ranking_loss")
def margin_ranking_loss(t: Translator, input1: Any, input2: Any, target: Any, margin: float = 0.0, reduction: int = 1) -> Any:
    return reduced(t, clamp(t, add(t, neg(t, mul(t, sub(t, input1, input2), target)), margin), 0), reduction)
