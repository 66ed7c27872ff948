"""Losses, under ATen's names, with ATen's arguments."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from ..graph import Value
from .capture import op_name
from .ops import (
    absolute, add, chosen, clamp, dims_of, exp, gather, hardtanh, log, log_softmax, mean, mul, neg, of_mask, permute, picked, power,
    rows_and_indices, scalar, scaled, softplus, sub, total, unsqueeze, weight_of, with_dims,
)  # fmt: skip
from .tensors import Axis, Data, Refused, Tensor, leaves, length, real, shape
from .translate import OPS, VIEWS, Translator, op


def reduced(t: Translator, losses: Tensor, reduction: int) -> Any:
    """Of losses of elements, as they are or their mean or sum."""
    return losses if reduction == 0 else mean(t, losses) if reduction == 1 else total(t, losses)


def classes_last(t: Translator, x: Any) -> Tensor:
    x = t.tensor(x)
    n = len(x.dims)
    return permute(t, x, [0, *range(2, n), 1]) if n > 2 else x  # type: ignore[no-any-return]


@op("cross_entropy_loss")
def cross_entropy(
    t: Translator, self: Any, target: Any, weight: Any = None, reduction: int = 1, ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    whole = len(dims_of(self)) == 1
    if whole:
        self, target = unsqueeze(t, self, 0), unsqueeze(t, target, 0)
    x = classes_last(t, self)
    if is_soft(target):
        return soft_cross_entropy(t, x, classes_last(t, target), weight, reduction, label_smoothing)
    if reduction != 1:
        rows = row_losses(t, log_softmax(t, x, -1), target, weight, ignore_index, label_smoothing)
        return reduced(t, with_dims(t, rows, rows.dims[1:]) if whole else rows, reduction)
    p, q = rows_and_indices(t, x, target)
    w = weight_of(t, weight)
    value = t.graph.softmax_cross_entropy_weighted(p.value, q.value, w, ignore_index, label_smoothing)
    return scalar(value)


def is_soft(target: Any) -> bool:
    return not isinstance(target, Data | torch.Tensor) or target.dtype.is_floating_point


def soft_cross_entropy(t: Translator, x: Tensor, target: Any, weight: Any, reduction: int, smoothing: float) -> Any:
    """Of targets that are probabilities: a mean is over rows."""
    if shape(x.dims) != shape(dims_of(target)):
        raise Refused(f"targets of shape {shape(dims_of(target))} for scores of shape {shape(x.dims)}")
    q = t.tensor(target)
    if smoothing:
        q = add(t, scaled(t, q, 1 - smoothing), smoothing / length(x.dims[-1]))
    terms = mul(t, log_softmax(t, x, -1), q)
    if weight is not None:
        terms = mul(t, terms, weight)
    return reduced(t, neg(t, total(t, terms, -1)), reduction)


def row_losses(t: Translator, logs: Tensor, target: Any, weight: Any, ignored: int, smoothing: float = 0.0) -> Tensor:
    """The loss of each row of log-probabilities (..,V), 0 where the target is ignored, as softmax_cross_entropy.c defines it."""
    if isinstance(weight, torch.nn.Parameter) or not isinstance(weight, torch.Tensor | None):
        raise Refused("class weights that are trained or computed, with a loss that is not averaged; give constant ones")

    own = picked(t, logs, target, ignored)
    if weight is not None:

        def of_row(given: torch.Tensor) -> torch.Tensor:
            return torch.where(given == ignored, 0.0, weight[given.clamp(0, len(weight) - 1)])

        assert t.node is not None
        own = mul(t, own, of_mask(target, f"weights.{t.node.name}", torch.float32, of_row))
    if not smoothing:
        return scaled(t, own, -1)
    each = total(t, logs if weight is None else mul(t, logs, weight), -1)
    each = mul(t, each, of_mask(target, f"counts.{ignored}", torch.float32, lambda given: (given != ignored).float()))
    return t.broadcast(t.graph.add, scaled(t, own, smoothing - 1), scaled(t, each, -smoothing / length(logs.dims[-1])))


@op("nll_loss", "nll_loss_nd", "nll_loss2d")
def nll_loss(t: Translator, self: Any, target: Any, weight: Any = None, reduction: int = 1, ignore_index: int = -100) -> Any:
    if reduction == 1:
        logits = logits_of(t.tensor(self), min(1, len(dims_of(self)) - 1), "nll_loss")
        return cross_entropy(t, logits, target, weight, reduction, ignore_index)
    if len(dims_of(self)) == 1:
        raise Refused("a sum or single losses of one row; unsqueeze it")
    return reduced(t, row_losses(t, classes_last(t, self), target, weight, ignore_index), reduction)


def logits_of(x: Tensor, classes: int, loss: str) -> Tensor:
    """The argument of log_softmax, whose normalization these losses contain; after a selection, x itself: log_softmax leaves
    it as it is."""
    if x.normalized is None or real(x.normalized) != real(x.dims[classes]):
        raise Refused(f"{loss} of something else than log_softmax over the classes; apply log_softmax last")
    return x.log_softmax_of or x


def element_loss(t: Translator, builder: Any, x: Any, y: Any, *args: Any) -> Tensor:
    a, b = t.tensor(x), t.tensor(y)
    if shape(a.dims) != shape(b.dims):
        raise Refused(f"shapes {shape(a.dims)} and {shape(b.dims)} differ")
    made: list[Value] = []

    def build(one: Value, other: Value) -> Value:
        made.append(builder(one, other, *args))
        return made[0]

    t.broadcast(build, a, b)
    return scalar(made[0])


@op("mse_loss")
def mse_loss(t: Translator, self: Any, target: Any, reduction: int = 1) -> Any:
    if reduction == 1:
        return element_loss(t, t.graph.mse, self, target)
    return reduced(t, power(t, difference(t, self, target)), reduction)


@op("l1_loss")
def l1_loss(t: Translator, self: Any, target: Any, reduction: int = 1) -> Any:
    if reduction == 1:
        return element_loss(t, t.graph.mae, self, target)
    return reduced(t, absolute(t, difference(t, self, target)), reduction)


@op("huber_loss")
def huber_loss(t: Translator, self: Any, target: Any, reduction: int = 1, delta: float = 1.0) -> Any:
    if reduction == 1:
        return element_loss(t, t.graph.huber, self, target, delta)
    size = absolute(t, difference(t, self, target))
    near = hardtanh(t, size, -math.inf, delta)  # near^2 / 2 + delta (size - near)
    losses = add(t, scaled(t, power(t, near), 0.5), scaled(t, sub(t, size, near), delta))
    return reduced(t, losses, reduction)


@op("smooth_l1_loss")
def smooth_l1_loss(t: Translator, self: Any, target: Any, reduction: int = 1, beta: float = 1.0) -> Any:
    return scaled(t, huber_loss(t, self, target, reduction, beta), 1 / beta)


@op("binary_cross_entropy_with_logits")
def bce_with_logits(
    t: Translator, self: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Any:
    if reduction == 1 and weight is None and pos_weight is None:
        return element_loss(t, t.graph.bce_with_logits, self, target)
    if shape(dims_of(self)) != shape(dims_of(target)):
        raise Refused(f"shapes {shape(dims_of(self))} and {shape(dims_of(target))} differ")
    of_ones = softplus(t, neg(t, self))  # -log p
    if pos_weight is not None:
        of_ones = mul(t, of_ones, add(t, mul(t, target, add(t, t.tensor(pos_weight), -1)), 1))
    losses = add(t, mul(t, sub(t, 1, target), self), of_ones)
    return reduced(t, losses if weight is None else mul(t, losses, weight), reduction)


@op("binary_cross_entropy")
def bce(t: Translator, self: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    assert t.node is not None
    return bce_with_logits(t, before_sigmoid(t, t.node.args[0]), target, weight, None, reduction)


def before_sigmoid(t: Translator, node: Any) -> Any:
    """The argument of the sigmoid that made a value, seen through the same views and slices: a loss of logits is exact where
    probabilities round to 0 or 1."""
    views: list[Node] = []
    while isinstance(node, Node) and node.op == "call_function" and op_name(node) in VIEWS:
        views.append(node)
        node = node.args[0]
    if not isinstance(node, Node) or node.op != "call_function" or op_name(node) != "aten::sigmoid":
        raise Refused("probabilities that are no sigmoid; apply sigmoid last, or give logits to binary_cross_entropy_with_logits")
    x = t.env[node.args[0]]  # type: ignore[index]
    for view in views[::-1]:
        rest, given = torch.fx.node.map_arg((view.args[1:], view.kwargs), lambda n: t.env[n])
        x = OPS[op_name(view)](t, x, *rest, **given)
    return x


@op("poisson_nll_loss")
def poisson_nll(
    t: Translator, input: Any, target: Any, log_input: bool, full: bool, eps: float, reduction: int
) -> Any:
    """x is the logarithm of the rate, or the rate; `full`: with Stirling's formula for targets above 1."""
    if log_input:
        losses = sub(t, exp(t, input), mul(t, input, target))
    else:
        losses = sub(t, input, mul(t, log(t, add(t, input, eps)), target))
    if full:
        if not isinstance(target, Data):
            raise Refused("full=True for targets that are computed; give targets of the batch")
        losses = add(t, losses, of_mask(target, "stirling", torch.float32, stirling))
    return reduced(t, losses, reduction)


def stirling(x: torch.Tensor) -> torch.Tensor:
    above = x.clamp(min=1)
    return torch.where(x > 1, above * above.log() - above + 0.5 * (2 * math.pi * above).log(), 0.0)


@op("soft_margin_loss")
def soft_margin_loss(t: Translator, self: Any, target: Any, reduction: int = 1) -> Any:
    return reduced(t, softplus(t, neg(t, mul(t, self, target))), reduction)


@op("hinge_embedding_loss")
def hinge_embedding_loss(t: Translator, self: Any, target: Any, margin: float = 1.0, reduction: int = 1) -> Any:
    near = of_mask(target, "is 1", torch.bool, lambda y: y == 1)
    return reduced(t, chosen(t, near, self, clamp(t, sub(t, margin, self), 0)), reduction)


@op("multi_margin_loss")
def multi_margin_loss(
    t: Translator, self: Any, target: Any, p: Any = 1, margin: Any = 1, weight: Any = None, reduction: int = 1
) -> Any:
    """sum over the other classes j of max(0, margin - x[y] + x[j])^p / their number with y."""
    if weight is not None or p not in (1, 2):
        raise Refused("weights of classes, or p other than 1 and 2")
    own = gather(t, self, -1, unsqueeze(t, target, -1))
    over = power(t, clamp(t, add(t, sub(t, self, own), margin), 0), p)
    losses = scaled(t, add(t, total(t, over, -1), -float(margin) ** p), 1 / length(dims_of(self)[-1]))
    return reduced(t, losses, reduction)


@op("kl_div")
def kl_div(t: Translator, self: Any, target: Any, reduction: int = 1, log_target: bool = False) -> Any:
    """target (log target - x), x being log-probabilities; 0 where the target is 0."""
    if shape(dims_of(self)) != shape(dims_of(target)):
        raise Refused(f"shapes {shape(dims_of(self))} and {shape(dims_of(target))} differ")
    if log_target:
        return reduced(t, mul(t, exp(t, target), sub(t, target, self)), reduction)
    if not isinstance(target, Data):
        raise Refused("targets that are computed; give their logarithms, log_softmax and log_target=True")
    entropy = of_mask(target, "x log x", torch.float32, lambda x: torch.xlogy(x, x))
    return reduced(t, sub(t, entropy, mul(t, target, self)), reduction)


def difference(t: Translator, x: Any, y: Any) -> Tensor:
    if shape(dims_of(x)) != shape(dims_of(y)):
        raise Refused(f"shapes {shape(dims_of(x))} and {shape(dims_of(y))} differ")
    return sub(t, x, y)  # type: ignore[no-any-return]


@op("remat::ctc")
def ctc(
    t: Translator, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int, zero_infinity: bool
) -> Any:
    x = t.tensor(log_probs)
    if len(x.dims) != 3 or len(dims_of(targets)) != 2:
        raise Refused("scores must be (T,B,V) and targets (B,S)")
    x = logits_of(x, 2, "ctc_loss")
    t.mark(x, x.dims[0], x.dims[1])
    p = t.plain(t.as_sequence(x, x.dims[0], x.dims[1]))
    inputs = whole_lengths(t, input_lengths, p.axes[0])
    labels = whole_lengths(t, target_lengths, dims_of(targets)[1])
    return scalar(t.graph.ctc(p.value, as_viewed(t, targets), inputs, labels, blank, zero_infinity))


def as_viewed(t: Translator, x: Any) -> Value:
    """A tensor of the batch with its elements as its views order them."""
    if not isinstance(x, Data):
        return t.tensor(x).value
    atoms, seen = ([a for d in axes for a in leaves(d)] for axes in (x.source, x.dims))
    kept = [a for a in atoms if a in seen]
    if kept == [a for a in seen if a in atoms]:
        return t.tensor(x).value
    compute, sizes, order = x.compute, [a.size for a in kept], [kept.index(a) for a in seen if a in atoms]
    made = t.data(f"{x.name}.{order}", x.dtype, shape(x.dims), lambda host: compute(host).reshape(sizes).permute(order).reshape(shape(x.dims)))
    return t.tensor(made).value


def whole_lengths(t: Translator, lengths: Any, axis: Axis) -> Value | None:
    """Lengths of the batch; None if they are known to be whole."""
    if isinstance(lengths, torch.Tensor):
        if not bool((lengths == length(axis)).all()):
            raise Refused("constant lengths that differ; make them part of the batch")
        return None
    return t.tensor(lengths).value
