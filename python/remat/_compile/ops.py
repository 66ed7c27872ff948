"""The ops: one function for each kind, under ATen's names, with ATen's arguments. Those of images and losses have files of
their own."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from .. import functional
from .._library import invalid
from ..graph import Value
from .capture import op_name
from .tensors import (
    TIME,
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
    regroup,
    shape,
    together,
    unite,
    unite_all,
)
from .translate import ALL, OPS, Host, Plain, Translator, op, view


def number(x: Any) -> float | None:
    """A Python number, or a constant of one element."""
    if isinstance(x, int | float):
        return float(x)
    if isinstance(x, torch.Tensor) and x.numel() == 1 and not isinstance(x, torch.nn.Parameter) and not x.is_complex():
        return float(x)
    return None


def dims_of(x: Any) -> list[Axis]:
    return [(Atom(n),) for n in x.shape] if isinstance(x, torch.Tensor) else list(x.dims)


def with_dims(t: Translator, x: Any, dims: list[Axis]) -> Any:
    if isinstance(x, Data):
        return Data(x.name, x.dtype, x.source, x.compute, dims, x.integers)
    x = t.tensor(x)
    source = with_dims(t, x.log_softmax_of, dims) if x.log_softmax_of else None
    return Tensor(x.value, x.axes, dims, x.sequence, x.normalized, source)


# ---- Views: axes change, memory does not ----------------------------------------------------------------------------


@view("view", "reshape", "_unsafe_view")
def reshape(t: Translator, self: Any, size: Sequence[int]) -> Any:
    if isinstance(self, Scores):
        return replace(self, dims=regroup(self.dims, _sizes(self.dims, size)))
    self, sizes = self if isinstance(self, Data) else t.tensor(self), _sizes(dims_of(self), size)
    try:
        return with_dims(t, self, regroup(self.dims, sizes))
    except Refused:
        if isinstance(self, Data):
            raise
        return mixed(t, self, sizes)


def mixed(t: Translator, x: Tensor, sizes: list[int]) -> Tensor:
    """A reshape to other axes, as of memory, after the first ones, which stay."""
    same = next((i for i, (d, n) in enumerate(zip(x.dims, sizes, strict=False)) if length(d) != n), len(sizes))
    p = t.plain(x)
    if any(i not in p.at for i in range(same, len(x.dims))):
        raise Refused(f"a reshape of {shape(x.dims)} to {tuple(sizes)} mixes time or batch with other axes")
    kept = p.axes[: len(p.axes) - (len(x.dims) - same)]
    axes = [*kept, *new_dims(sizes[same:])]
    return Tensor(t.graph.reshape(p.value, shape(axes)), axes, [*p.x.dims[:same], *axes[len(kept) :]], p.x.sequence)


def _sizes(dims: list[Axis], size: Sequence[int]) -> list[int]:
    known = math.prod(n for n in size if n != -1)
    return [length([a for d in dims for a in d]) // known if n == -1 else int(n) for n in size]


@view("view_as", "reshape_as")
def view_as(t: Translator, self: Any, other: Any) -> Any:
    return reshape(t, self, shape(dims_of(other)))


@view("flatten")
def flatten(t: Translator, self: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    self = self if isinstance(self, Data) else t.tensor(self)
    n = len(self.dims)
    first, last = start_dim % n, end_dim % n
    joined = tuple(a for d in self.dims[first : last + 1] for a in d)
    return with_dims(t, self, [*self.dims[:first], joined, *self.dims[last + 1 :]])


@view("unflatten")
def unflatten(t: Translator, self: Any, dim: int, sizes: Sequence[int]) -> Any:
    self = self if isinstance(self, Data) else t.tensor(self)
    dim %= len(self.dims)
    return with_dims(
        t, self, [*self.dims[:dim], *regroup([self.dims[dim]], _sizes([self.dims[dim]], sizes)), *self.dims[dim + 1 :]]
    )


@view("permute")
def permute(t: Translator, self: Any, dims: Sequence[int]) -> Any:
    self = self if isinstance(self, Data | Scores) else t.tensor(self)
    return with_dims(t, self, [self.dims[d] for d in dims])


@view("transpose", "swapaxes", "swapdims")
def transpose(t: Translator, self: Any, dim0: int, dim1: int) -> Any:
    self = self if isinstance(self, Data) else t.tensor(self)
    dims = list(self.dims)
    dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
    return with_dims(t, self, dims)


@view("t", "mT")
def matrix_transpose(t: Translator, self: Any) -> Any:
    return transpose(t, self, -1, -2) if len(dims_of(self)) > 1 else self


@view("numpy_T")
def reversed_axes(t: Translator, self: Any) -> Any:
    return permute(t, self, range(len(dims_of(self)))[::-1])


@view("unsqueeze")
def unsqueeze(t: Translator, self: Any, dim: int) -> Any:
    if not isinstance(self, Data):
        self = t.tensor(self)
    dims = list(self.dims)
    dims.insert(dim % (len(dims) + 1), ())
    return with_dims(t, self, dims)


@view("squeeze")
def squeeze(t: Translator, self: Any, dim: int | Sequence[int] | None = None) -> Any:
    if isinstance(self, Stack) and len(self.parts) == 1 and dim in (0, -len(self.dims), None):
        return self.parts[0]
    self = self if isinstance(self, Data) else t.tensor(self)
    n = len(self.dims)
    chosen = range(n) if dim is None else [d % n for d in ([dim] if isinstance(dim, int) else dim)]
    return with_dims(t, self, [d for i, d in enumerate(self.dims) if i not in chosen or length(d) > 1])


@view("pixel_shuffle")
def pixel_shuffle(t: Translator, self: Any, upscale_factor: int) -> Any:
    *lead, channels, height, width = shape(dims_of(self))
    r, n = upscale_factor, len(lead)
    x = reshape(t, self, [*lead, channels // r**2, r, r, height, width])
    x = permute(t, x, [*range(n), n, n + 3, n + 1, n + 4, n + 2])
    return reshape(t, x, [*lead, channels // r**2, height * r, width * r])


@view("pixel_unshuffle")
def pixel_unshuffle(t: Translator, self: Any, downscale_factor: int) -> Any:
    *lead, channels, height, width = shape(dims_of(self))
    r, n = downscale_factor, len(lead)
    x = reshape(t, self, [*lead, channels, height // r, r, width // r, r])
    x = permute(t, x, [*range(n), n, n + 2, n + 4, n + 1, n + 3])
    return reshape(t, x, [*lead, channels * r**2, height // r, width // r])


@view("channel_shuffle")
def channel_shuffle(t: Translator, self: Any, groups: int) -> Any:
    return flatten(t, transpose(t, unflatten(t, self, 1, [groups, -1]), 1, 2), 1, 2)


@view("expand", "expand_as")
def expand(t: Translator, self: Any, size: Any, implicit: bool = False) -> Any:
    if isinstance(self, Stack):
        return self
    sizes = list(size) if isinstance(size, list | tuple) else list(shape(dims_of(size)))
    self = self if isinstance(self, Data) else t.tensor(self)
    dims = [()] * (len(sizes) - len(self.dims)) + list(self.dims)
    sizes = [length(d) if n == -1 else n for d, n in zip(dims, sizes, strict=True)]
    if len(sizes) > len(self.dims) and len(sizes) == len(self.dims) + 1 and not isinstance(self, Data):
        return Stack([expand(t, self, sizes[1:])] * sizes[0], [(Atom(n),) for n in sizes])
    if len(dims) > 1 and dims[0] == () and sizes[0] > 1 and not isinstance(self, Data) and not self.sequence and len(dims) == 3:
        return Stack([expand(t, with_dims(t, self, dims[1:]), sizes[1:])] * sizes[0], [(Atom(n),) for n in sizes])
    out = [
        d if n == length(d) else (Atom(n, repeats=True),) for d, n in zip(dims, sizes, strict=True)
    ]
    return with_dims(t, self, out)


@view("repeat")
def repeat(t: Translator, self: Any, repeats: Sequence[int]) -> Any:
    dims = dims_of(self)
    full = [()] * (len(repeats) - len(dims)) + dims
    for dim, n in enumerate(repeats[len(full) - len(dims) :]):
        if n > 1 and length(dims[dim]) > 1:
            self = cat(t, [self] * n, dim)
    return expand(t, self, [n if length(d) == 1 else -1 for n, d in zip(repeats, full, strict=True)])


@op("tile")
def tile(t: Translator, self: Any, dims: Sequence[int]) -> Any:
    return repeat(t, self, [1] * (len(dims_of(self)) - len(dims)) + list(dims))


@view("detach", "detach_")
def detach(t: Translator, self: Any) -> Any:
    if isinstance(self, Data):
        return self
    assert t.node is not None
    return unary(t, self, t.graph.stop_gradient) if t.is_trained(t.node.all_input_nodes[0]) else self


@view("contiguous", "clone", "alias", "lift_fresh_copy", "positive", "_assert_tensor_metadata")
def same(t: Translator, self: Any, *rest: Any) -> Any:
    return self


@op("_assert_scalar")
def assert_scalar(t: Translator, self: Any, assert_msg: str) -> None:
    """Of the sizes; they were checked at capture."""


@op("to", "_to_copy", "type_as", "float")
def to(t: Translator, self: Any, *args: Any, **kwargs: Any) -> Any:
    made = t.node.meta["val"] if t.node else None
    if isinstance(made, torch.Tensor) and (made.dtype != torch.float32 or made.device.type != "cpu"):
        raise Refused(f"the model converts to {made.dtype} on {made.device}; Remat computes in float32 on the CPU")
    return self


@view("broadcast_tensors")
def broadcast_tensors(t: Translator, tensors: Sequence[Any]) -> Any:
    if len({shape(dims_of(x)) for x in tensors}) > 1:
        raise Refused(f"shapes {', '.join(str(shape(dims_of(x))) for x in tensors)} are broadcast; give equal ones")
    return list(tensors)


# ---- Element-wise ---------------------------------------------------------------------------------------------------


@op("add")
def add(t: Translator, self: Any, other: Any, alpha: float = 1) -> Any:
    if isinstance(self, Scores) or isinstance(other, Scores):
        return masked(t, self, other) if isinstance(self, Scores) else masked(t, other, self)
    for bias, mask in ((self, other), (other, self)):
        if alpha == 1 and is_bias(bias) and is_mask(t, mask):
            return masked_bias(bias, mask, FILL)
    if isinstance(self, int | float | torch.Tensor) and not isinstance(self, torch.nn.Parameter):
        self, other = (other, self) if alpha == 1 else (self, other)
    if (n := number(other)) is not None:
        return self if n == 0 else unary(t, self, t.graph.shift, n * alpha)
    if alpha != 1:
        other = mul(t, other, alpha)
    if (w := positions(t, self, other)) is not None:
        return w
    return t.broadcast(t.graph.add, promoted(self), promoted(other))


def promoted(x: Any) -> Any:
    """Integers and masks as numbers, where they meet numbers."""
    integers = isinstance(x, Data | torch.Tensor) and not (x.dtype.is_floating_point or x.dtype.is_complex)
    return as_numbers(x) if integers else x


def positions(t: Translator, one: Any, other: Any) -> Tensor | None:
    """x + w, where w has a row for each timestep: a table of positions, learned or constant."""
    x, w = (other, one) if isinstance(one, Positions | torch.Tensor) else (one, other)
    if not isinstance(w, Positions | torch.Tensor):
        return None
    x, sizes = t.tensor(x), tuple(length(a for a in leaves(d) if not a.repeats) for d in dims_of(w))
    at = next((i for i, d in enumerate(x.dims) if x.sequence and x.time() in leaves(d)), None)
    if at is None or (at := at - len(x.dims)) < -len(sizes) or sizes[at] == 1:
        return None
    if sizes[-1] == 1 < length(x.dims[-1]) and not isinstance(w, Positions):
        return None  # a number for each timestep
    p = t.plain(x)
    if at == -1 or math.prod(sizes) != sizes[at] * sizes[-1] or len(p.axes) != 3:
        raise Refused(f"a tensor of shape {sizes} is added along time; it must be (timesteps, features)")
    table = w.table if isinstance(w, Positions) else t.tensor(w)
    rows = [d for d in table.dims if length(d) > 1 or d is table.dims[-1]]
    return p.result(t.graph.positions(p.value, t.arrange(table, [rows[0], rows[-1]])))


@op("sub", "subtract")
def sub(t: Translator, self: Any, other: Any, alpha: float = 1) -> Any:
    if (n := number(other)) is not None:
        return add(t, self, -n * alpha)
    if number(self) is not None:
        return add(t, mul(t, other, -float(alpha)), self)
    return t.broadcast(t.graph.sub, promoted(self), promoted(other) if alpha == 1 else mul(t, other, alpha))


@op("rsub")
def rsub(t: Translator, self: Any, other: Any, alpha: float = 1) -> Any:
    return sub(t, other, self, alpha)


@op("mul", "multiply")
def mul(t: Translator, self: Any, other: Any) -> Any:
    if number(self) is not None:
        self, other = other, self
    n = number(other)
    if isinstance(self, Complex) or isinstance(other, Complex):
        return complex_product(t, *((self, other) if isinstance(self, Complex) else (other, self)))
    if isinstance(self, Scores) and n is not None:
        bias = None if self.bias is None else scaled(t, self.bias, n)
        return self if n == 1 else replace(self.before_softmax("a multiple"), scale=self.scale * n, fill=self.fill * n, bias=bias)
    if n is not None:
        return scaled(t, self, n)
    return t.broadcast(t.graph.mul, promoted(self), promoted(other))


@op("view_as_complex")
def view_as_complex(t: Translator, self: Any) -> Complex:
    return Complex(select(t, t.tensor(self), -1, 0), select(t, t.tensor(self), -1, 1))


@op("view_as_real")
def view_as_real(t: Translator, self: Any) -> Any:
    if not isinstance(self, Complex):
        raise Refused("complex numbers of the batch")
    return stack(t, [self.real, self.imag], -1)


def complex_product(t: Translator, x: Complex, y: Any) -> Complex:
    if isinstance(y, Data) or (isinstance(y, torch.nn.Parameter) and y.is_complex()):
        raise Refused("complex numbers of the batch, or parameters")
    if not isinstance(y, Complex) and not (isinstance(y, torch.Tensor) and y.is_complex()):
        return Complex(mul(t, x.real, y), mul(t, x.imag, y))
    a, b = (part.contiguous() if isinstance(part, torch.Tensor) else part for part in (y.real, y.imag))
    return Complex(sub(t, mul(t, x.real, a), mul(t, x.imag, b)), add(t, mul(t, x.real, b), mul(t, x.imag, a)))


def scaled(t: Translator, x: Any, factor: float) -> Tensor:
    x = t.tensor(x)
    return x if factor == 1 else Tensor(t.graph.scale(x.value, factor), x.axes, x.dims, x.sequence)


@op("div", "true_divide", "divide")
def div(t: Translator, self: Any, other: Any, rounding_mode: Any = None) -> Any:
    if rounding_mode:
        raise Refused("a division that rounds; only of integers of the batch")
    if (n := number(other)) is not None:
        return mul(t, self, 1 / n)
    return t.broadcast(t.graph.div, promoted(self), promoted(other))


@op("neg", "negative")
def neg(t: Translator, self: Any) -> Any:
    return mul(t, self, -1)


POWERS = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}


@op("pow", "square")
def power(t: Translator, self: Any, exponent: Any = 2) -> Any:
    if (n := number(exponent)) in POWERS:
        return unary(t, self, getattr(t.graph, POWERS[n]))
    if n not in (1, 2, 3, 4):
        power = exponent if isinstance(exponent, int | float) else "a tensor"
        raise Refused(f"a power of {power}; only 1 to 4, 0.5, -0.5 and -1 are supported")
    out = self
    for _ in range(int(exponent) - 1):
        out = mul(t, out, self)
    return out


def unary(t: Translator, x: Any, builder: Any, *args: Any) -> Tensor:
    x = t.tensor(x)
    return Tensor(builder(x.value, *args), x.axes, x.dims, x.sequence)


@op("relu")
def relu(t: Translator, self: Any) -> Any:
    return unary(t, self, t.graph.relu)


@op("sigmoid")
def sigmoid(t: Translator, self: Any) -> Any:
    return unary(t, self, t.graph.sigmoid)


@op("tanh")
def tanh(t: Translator, self: Any) -> Any:
    return unary(t, self, t.graph.tanh)


@op("exp")
def exp(t: Translator, self: Any) -> Any:
    return unary(t, self, t.graph.exp)


@op("log")
def log(t: Translator, self: Any) -> Any:
    return unary(t, self, t.graph.log)


@op("sin", "cos", "erf", "log1p", "expm1")
def of_the_graph(t: Translator, self: Any) -> Any:
    assert t.node is not None
    return unary(t, self, getattr(t.graph, op_name(t.node).removeprefix("aten::").removesuffix("_")))


@op("logsumexp")
def logsumexp(t: Translator, self: Any, dim: Any, keepdim: bool = False) -> Any:
    x = t.tensor(self)
    largest = amax(t, x, dim, True)
    made = add(t, log(t, total(t, exp(t, sub(t, x, largest)), dim, True)), largest)
    return made if keepdim else squeeze(t, made, dim)


@op("log2")
def log2(t: Translator, self: Any) -> Any:
    return scaled(t, log(t, self), 1 / math.log(2))


@op("log10")
def log10(t: Translator, self: Any) -> Any:
    return scaled(t, log(t, self), 1 / math.log(10))


@op("sqrt")
def sqrt(t: Translator, self: Any) -> Any:
    return unary(t, self, t.graph.sqrt)


@op("rsqrt")
def rsqrt(t: Translator, self: Any) -> Any:
    return unary(t, self, t.graph.rsqrt)


@op("reciprocal")
def reciprocal(t: Translator, self: Any) -> Any:
    return unary(t, self, t.graph.reciprocal)


@op("silu")
def silu(t: Translator, self: Any) -> Any:
    return unary(t, self, t.graph.silu)


@op("gelu")
def gelu(t: Translator, self: Any, approximate: str = "none") -> Any:
    return unary(t, self, t.graph.gelu_tanh if approximate == "tanh" else t.graph.gelu)


@op("softplus")
def softplus(t: Translator, self: Any, beta: float = 1, threshold: float = 20) -> Any:
    if threshold < 17:  # from there on softplus and its gradient round to those of the identity
        raise Refused(f"threshold={threshold}; only one of at least 17, such as the default 20, is supported")
    return scaled(t, unary(t, scaled(t, self, beta), t.graph.softplus), 1 / beta)


@op("hardtanh")
def hardtanh(t: Translator, self: Any, min_val: float = -1, max_val: float = 1) -> Any:
    return unary(t, self, t.graph.hardtanh, min_val, max_val)


@op("leaky_relu")
def leaky_relu(t: Translator, self: Any, negative_slope: float = 0.01) -> Any:
    return add(t, relu(t, self), scaled(t, negative_part(t, self), negative_slope))


def negative_part(t: Translator, x: Any) -> Tensor:
    """min(x, 0), whose gradient at 0 is 1: there PyTorch's activations have the slope of their negative side."""
    return unary(t, x, t.graph.clamp, -math.inf, 0)


@op("elu")
def elu(t: Translator, self: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    below = exp(t, scaled(t, negative_part(t, self), input_scale))
    return scaled(t, add(t, relu(t, self), scaled(t, add(t, below, -1), alpha)), scale)


@op("celu")
def celu(t: Translator, self: Any, alpha: float = 1) -> Any:
    return elu(t, self, alpha, 1, 1 / alpha)


@op("abs", "absolute")
def absolute(t: Translator, self: Any) -> Any:
    return add(t, relu(t, self), relu(t, neg(t, self)))


@op("selu")
def selu(t: Translator, self: Any) -> Any:
    return elu(t, self, 1.6732632423543772, 1.0507009873554805)


@op("prelu")
def prelu(t: Translator, self: Any, weight: Any) -> Any:
    w = t.tensor(weight)
    slope = with_dims(t, w, [*w.dims, *[()] * (len(dims_of(self)) - 2)]) if length(w.dims[0]) > 1 else w
    return add(t, relu(t, self), mul(t, negative_part(t, self), slope))


@op("hardsigmoid")
def hardsigmoid(t: Translator, self: Any) -> Any:
    return scaled(t, hardtanh(t, add(t, self, 3), 0, 6), 1 / 6)


@op("hardswish")
def hardswish(t: Translator, self: Any) -> Any:
    return mul(t, self, hardsigmoid(t, self))


@op("softshrink")
def softshrink(t: Translator, self: Any, lambd: float = 0.5) -> Any:
    x = t.tensor(self)
    return sub(t, x, unary(t, x, t.graph.clamp, -lambd, lambd))


@op("mish")
def mish(t: Translator, self: Any) -> Any:
    return mul(t, self, tanh(t, softplus(t, self)))


@op("log_sigmoid")
def log_sigmoid(t: Translator, self: Any) -> Any:
    return neg(t, softplus(t, neg(t, self)))


@op("glu")
def glu(t: Translator, self: Any, dim: int = -1) -> Any:
    one, gate = chunk(t, self, 2, dim)
    return mul(t, one, sigmoid(t, gate))


@op("relu6")
def relu6(t: Translator, self: Any) -> Any:
    return hardtanh(t, self, 0, 6)


@op("clamp_min")
def clamp_min(t: Translator, self: Any, min: Any) -> Any:
    return clamp(t, self, min)


@op("clamp_max")
def clamp_max(t: Translator, self: Any, max: Any) -> Any:
    return clamp(t, self, None, max)


@op("clamp", "clip")
def clamp(t: Translator, self: Any, min: Any = None, max: Any = None) -> Any:
    if any(x is not None and number(x) is None for x in (min, max)):
        raise Refused("bounds that are tensors; give numbers")
    bounds = (-math.inf if min is None else number(min), math.inf if max is None else number(max))
    return unary(t, self, t.graph.clamp if clamp_passes_at_its_bounds() else t.graph.hardtanh, *bounds)


@functools.cache
def clamp_passes_at_its_bounds() -> bool:
    """Whether the gradient passes where x equals a bound: it does in older versions of PyTorch."""
    with torch.enable_grad():
        x = torch.zeros(1, requires_grad=True)
        return bool(torch.autograd.grad(x.clamp(min=0), x)[0])


@op("feature_dropout")
def feature_dropout(t: Translator, input: Any, p: float, train: bool) -> Any:
    if not train or p == 0:
        return input
    return mul(t, input, dropout(t, torch.ones(*shape(dims_of(input))[:2], *[1] * (len(dims_of(input)) - 2)), p))


@op("alpha_dropout", "feature_alpha_dropout")
def alpha_dropout(t: Translator, input: Any, p: float, train: bool) -> Any:
    """a x + b where x is kept, and b - a s where -s, the limit of SELU, is in its place: mean and variance stay. The drawn d is
    q = 1 / (1 - p) or 0, and 1 in an evaluation, which gives x; so factor and shift are parabolas through these three."""
    if not train or p == 0:
        return input
    sizes, s = shape(dims_of(input)), 1.6732632423543772 * 1.0507009873554805
    if t.node is not None and "feature" in op_name(t.node):
        sizes = (*sizes[:2], *[1] * (len(sizes) - 2))
    q, a = 1 / (1 - p), ((1 - p) * (1 + p * s**2)) ** -0.5
    d = dropout(t, torch.ones(*sizes), p)

    def through(at_0: float, at_1: float, at_q: float) -> Any:
        bend = ((at_q - at_0) / q - (at_1 - at_0)) / (q - 1)
        return add(t, mul(t, d, add(t, scaled(t, d, bend), at_1 - at_0 - bend)), at_0)

    return add(t, mul(t, input, through(0, 1, a)), through(a * s * (p - 1), 0, a * s * p))


@op("bernoulli")
def bernoulli(t: Translator, self: torch.Tensor, p: Any = 0.5) -> Any:
    """Of an empty tensor, as torchvision's stochastic depth draws it."""
    if not isinstance(p, float):
        raise Refused("probabilities that are a tensor")
    return scaled(t, dropout(t, torch.ones(self.shape), 1 - p), p)


@op("dropout")
def dropout(t: Translator, input: Any, p: float, train: bool = True) -> Any:
    if not train or p == 0:
        return input
    if isinstance(input, Scores):
        if not input.softmax or input.dropout:
            raise Refused("attention's dropout is before the softmax, or there are two")
        return replace(input, dropout=p)
    x = t.spread(t.tensor(input))
    if any(a.size > 1 and a not in [b for axis in x.axes for b in leaves(axis)] for d in x.dims for a in leaves(d)):
        raise Refused("dropout of a tensor that is expanded along time or batch")
    return unary(t, x, t.graph.dropout, p)


# ---- Linear layers --------------------------------------------------------------------------------------------------


@op("embedding")
def embedding(t: Translator, weight: Any, indices: Any, padding_idx: int = -1, *rest: Any) -> Any:
    assert t.node is not None
    if any(rest):
        raise Refused("scale_grad_by_freq and sparse are not supported")
    if padding_idx >= 0 and not t.is_trained(t.node.args[0]):  # type: ignore[arg-type]
        padding_idx = -1  # no row has a gradient
    if padding_idx >= 0 and not isinstance(weight, torch.nn.Parameter):
        raise Refused("padding_idx with a weight that is computed; give the parameter itself")
    if isinstance(indices, torch.Tensor):
        own = padding_idx >= 0 and bool((indices == padding_idx).any()) and not t.freeze_row(weight, padding_idx)
        return constant_rows(t, with_fixed_row(t, weight, padding_idx) if own else t.tensor(weight), indices)
    made = rows_of(t, t.tensor(weight), t.tensor(indices))
    if padding_idx < 0 or t.freeze_row(weight, padding_idx):
        return made
    padding = of_mask(indices, f"padding.{padding_idx}", torch.bool, lambda x: x == padding_idx)
    return where(t, unsqueeze(t, padding, -1), t.fixed_row(weight, padding_idx), made)


def rows_of(t: Translator, table: Tensor, indices: Tensor) -> Tensor:
    p, width = t.plain(table), table.dims[-1]
    if len(p.axes) != 2 or table.sequence:
        raise Refused(f"rows of a tensor of shape {shape(table.dims)}; it must have two axes, neither of them time")
    return Tensor(t.graph.embedding(indices.value, p.value), [*indices.axes, width], [*indices.dims, width], indices.sequence)


def with_fixed_row(t: Translator, weight: torch.nn.Parameter, row: int) -> Tensor:
    """The weight, of which one row is not trained."""
    table, count = t.tensor(weight), weight.shape[0]
    around = [(0, row), (row + 1, count - row - 1)]
    before, after = ([part(t, table, 0, first, n)] if n else [] for first, n in around)
    return cat(t, [*before, unsqueeze(t, t.fixed_row(weight, row), 0), *after], 0)  # type: ignore[no-any-return]


def constant_rows(t: Translator, table: Tensor, indices: torch.Tensor) -> Any:
    """Positions, whose rows follow each other; or one row for all, such as that of a kind of token."""
    count, width = shape(table.dims)
    if indices.numel() and int(indices.max()) >= count:
        raise Refused(f"position {int(indices.max())} is read of a table of {count} positions; give shorter sequences")
    if not indices.dim():
        return select(t, table, 0, int(indices))
    last, leading = indices.shape[-1], indices.shape[:-1]
    first = int(indices.reshape(-1, last)[0, 0])
    if bool((indices == first).all()) and (indices.numel() > 1 or first):
        row = part(t, table, 0, first, 1)
        return with_dims(t, row, [*((Atom(n, repeats=n > 1),) for n in indices.shape), row.dims[1]])
    if not torch.equal(indices, torch.arange(first, first + last).expand_as(indices)):
        return of_constant_rows(t, table, indices)
    rows = part(t, table, 0, first, last) if first else table
    return Positions(rows, [*((Atom(n, repeats=True),) if n > 1 else () for n in leading), (Atom(last),), (Atom(width),)])


def of_constant_rows(t: Translator, table: Tensor, indices: torch.Tensor) -> Tensor:
    """Rows of a table in any order, such as T5's buckets of relative positions: an embedding of an input that never changes."""
    return rows_of(t, table, t.tensor(constant_integers(t, indices)))


def constant_integers(t: Translator, x: torch.Tensor) -> Data:
    """An input that never changes: parameters, as which other constants are stored, are real numbers."""
    assert t.node is not None
    return t.data(f"{t.node.name}.constant", torch.int32, x.shape, lambda host: x.int())


def weight_of(t: Translator, x: Any) -> Any:
    """A layer's weight or bias, as its views show it; None stays None."""
    if x is None:
        return None
    if t.tensor(x).sequence:
        raise Refused("a weight that is computed along time")
    return t.plain(x).value


@op("linear")
def linear(t: Translator, input: Any, weight: Any, bias: Any = None) -> Any:
    if len(dims_of(input)) == 1:
        return select(t, linear(t, unsqueeze(t, input, 0), weight, bias), 0, 0)
    p = t.plain(input)
    last = len(p.x.dims) - 1
    if not p.last(last):
        raise Refused("the last axis is time or batch")
    w = weight_of(t, weight)
    return p.result(t.graph.linear(p.value, w, weight_of(t, bias)), {last: w.shape[0]})


@op("addmm", "baddbmm")
def addmm(t: Translator, self: Any, mat1: Any, mat2: Any, beta: float = 1, alpha: float = 1) -> Any:
    made = product(t, mat1, mat2, self if isinstance(self, torch.nn.Parameter) and alpha == beta == 1 else None)
    if isinstance(made, Scores):
        made = replace(made, scale=made.scale * alpha)
        try:
            return masked(t, made, self if beta == 1 else mul(t, self, beta)) if beta else made
        except Refused as refused:
            raise Unfused(made.node, str(refused)) from None
    return made if isinstance(self, torch.nn.Parameter) and alpha == beta == 1 else add(t, mul(t, made, alpha), self, beta)


@op("matmul", "mm", "bmm")
def matmul(t: Translator, self: Any, mat2: Any) -> Any:
    return product(t, self, mat2)


def product(t: Translator, x: Any, w: Any, bias: Any = None) -> Any:
    if isinstance(x, Scores):
        return attend(t, x, w)
    ranks = len(dims_of(x)), len(dims_of(w))
    if ranks[1] == 1:
        return select(t, product(t, x, unsqueeze(t, w, 1)), -1, 0)
    if ranks[0] == 1:
        return select(t, product(t, unsqueeze(t, x, 0), w), -2, 0)
    if ranks[0] == 2 < ranks[1]:  # one matrix from the left for all
        return transpose(t, product(t, transpose(t, w, -1, -2), transpose(t, x, 0, 1)), -1, -2)
    b = t.tensor(w)
    if not b.value.name or isinstance(w, Data):
        assert t.node is not None
        reason = t.why_computed(t.node)
        if reason is None:
            return Scores(t.node.name, t.tensor(x), transpose(t, b, -1, -2), [*t.tensor(x).dims[:-1], b.dims[-1]])
        if ranks[0] == 2 or ranks[1] != 2:
            return product_of_values(t, t.tensor(x), b, reason)
    if len(b.dims) == 3 and len(dims_of(x)) >= 3 and length(dims_of(x)[-3]) == length(b.dims[0]):
        return headwise(t, x, b)
    if len(b.dims) != 2:
        raise Refused(f"a product with a parameter of shape {shape(b.dims)}")
    if real(b.dims[0] + b.dims[1]) != real(tuple(a for axis in b.axes for a in axis)):
        return linear(t, x, transpose(t, b, 0, 1), bias)
    p = t.plain(x)
    last = len(p.x.dims) - 1
    if not p.last(last):
        raise Refused("the last axis is time or batch")
    value = t.graph.matmul(p.value, weight_of(t, b), weight_of(t, bias))
    return p.result(value, {last: length(b.dims[1])})


def product_of_values(t: Translator, a: Tensor, b: Tensor, reason: str) -> Tensor:
    """a (..,M,K), b (..,K,N) -> (..,M,N), whose last axis is a new one: scores have the axis of their keys beside that of
    their queries. `reason`: why no fused attention makes it."""
    n = len(a.dims)
    if n == len(b.dims) == 2:
        return squeeze(t, product_of_values(t, unsqueeze(t, a, 0), unsqueeze(t, b, 0), reason), 0)  # type: ignore[no-any-return]
    try:
        lead = torch.broadcast_shapes(shape(a.dims[:-2]), shape(b.dims[:-2]))  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise Refused(reason) from None
    if len(lead) == 0 or a.sequence != b.sequence:
        raise Refused(reason)
    a, b = (t.spread(t.tensor(expand(t, x, [*lead, *shape(x.dims[-2:])]))) for x in (a, b))
    n = len(a.dims)
    unite_all(a.dims[:-2], b.dims[:-2])
    order = [atom for axis in b.axes for atom in leaves(axis)]
    rows, columns = ([order.index(atom) for atom in real(b.dims[i])] for i in (-2, -1))
    transposed = bool(rows and columns) and max(rows) > max(columns)  # as it lies in memory
    one, other = t.plain(a), t.plain(transpose(t, b, -1, -2) if transposed else b)
    if not (one.last(n - 2, n - 1) and other.last(n - 2, n - 1)):
        raise Refused(reason)
    value = t.graph.batched_matmul(one.value, other.value, transposed)
    last = tuple(Atom(atom.size) for atom in leaves(b.dims[-1]))
    return Tensor(value, [*one.axes[:-1], last], [*a.dims[:-1], last], a.sequence)


def headwise(t: Translator, x: Any, w: Tensor) -> Any:
    """x (..,H,R,C), w (H,C,N) -> (..,H,R,N): each head has a matrix of its own."""
    heads, _, outputs = shape(w.dims)
    p = t.plain(flatten(t, transpose(t, x, -3, -2), -2, -1))
    last = len(p.x.dims) - 1
    if not p.last(last):
        raise Refused("the last axis is time or batch")
    value = t.graph.headwise_linear(p.value, t.plain(transpose(t, w, 1, 2)).value)
    return transpose(t, unflatten(t, p.result(value, {last: heads * outputs}), -1, [heads, outputs]), -3, -2)


@op("_weight_norm")
def weight_norm(t: Translator, v: Any, g: Any, dim: int = 0) -> Any:
    """g v / |v|, with a norm for each index of `dim`."""
    others = [i for i in range(len(dims_of(v))) if i != dim]
    return mul(t, v, div(t, g, norm(t, v, 2, others, True)))


# ---- Attention ------------------------------------------------------------------------------------------------------


@op("scaled_dot_product_attention")
def attention(
    t: Translator, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    assert t.node is not None
    q, k, name = t.tensor(query), t.tensor(key), t.node.name
    factor = 1 / math.sqrt(length(q.dims[-1])) if scale is None else scale
    if t.why_computed(t.node) is not None:
        return computed_attention(t, q, k, t.tensor(value), attn_mask, dropout_p, is_causal, factor)
    try:
        made = Scores(name, q, k, [*q.dims[:-1], k.dims[-2]], factor, is_causal, unseeing=True)
        if attn_mask is not None:
            made = masked(t, made, attn_mask)
        return attend(t, replace(made, softmax=True, dropout=dropout_p), value)
    except Refused as refused:
        raise Unfused(name, str(refused)) from None


def computed_attention(
    t: Translator, q: Tensor, k: Tensor, v: Tensor, mask: Any, probability: float, causal: bool, factor: float
) -> Tensor:
    """Attention whose scores are kept as a tensor."""
    assert t.node is not None
    reason = t.why_computed(t.node) or ""
    scores = scaled(t, product_of_values(t, q, transpose(t, k, -1, -2), reason), factor)
    if causal:
        mask = torch.ones(*shape(scores.dims[-2:]), dtype=torch.bool).tril()
    if mask is not None:
        if getattr(mask, "dtype", None) == torch.bool:
            mask = seeing(mask, "to add", lambda kept: torch.where(kept, 0.0, -UNSEEN))
        scores = add(t, scores, mask)
    return product_of_values(t, dropout(t, softmax(t, scores, -1), probability, True), v, reason)


UNSEEN = 1e30  # the softmax of -UNSEEN is 0, as that of -inf


def seeing(mask: Any, label: str, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`function` of a mask (..,R) that leaves each query one of R keys."""
    within: Callable[[torch.Tensor], torch.Tensor] = functools.partial(torch.any, dim=-1)
    if isinstance(mask, Data):
        keys = real(mask.dims[-1])
        if keys and keys != real(mask.source[-1]):
            raise Refused("a transposed mask of the batch; make it as (rows, queries, keys)")
        within = within if keys else torch.all

    def checked(kept: torch.Tensor) -> torch.Tensor:
        if not bool(within(kept).all()):
            raise invalid("a mask leaves a softmax nothing, so PyTorch's result is NaN or 0; leave each query a key")
        return function(kept)

    return of_mask(mask, label, torch.float32, checked)


FILL = 1e4  # masked scores are at least this far below the others: their probabilities round to zero


def is_bias(x: Any) -> bool:
    """It may be a bias of attention's scores: (heads,P,R) or (1,heads,P,R), and not of the batch."""
    static = isinstance(x, torch.nn.Parameter) or (isinstance(x, Tensor) and not x.sequence)
    return isinstance(x, MaskedBias) or (static and len(dims_of(x)) in (3, 4))


def masked_bias(bias: Any, mask: Any, fill: float) -> MaskedBias:
    sizes = torch.broadcast_shapes(shape(dims_of(bias)), shape(dims_of(mask)))  # type: ignore[no-untyped-call]
    return MaskedBias(bias, mask, fill, [(Atom(n),) for n in sizes])


def is_mask(t: Translator, x: Any) -> bool:
    """It is a mask to add. The example decides."""
    if not isinstance(x, Data | torch.Tensor) or isinstance(x, torch.nn.Parameter) or not x.dtype.is_floating_point:
        return False
    if isinstance(x, Data):
        return x.integers and len(x.dims) > 2 and is_fill(x.compute(t.example))
    return x.dim() > 1 and is_fill(x) and bool((x != 0).any())


def is_fill(x: torch.Tensor) -> bool:
    return bool(((x == 0) | (x <= -FILL)).all())


def masked(t: Translator, scores: Scores, mask: Any, fill: float = math.inf) -> Scores:
    """Scores + mask, or masked by -fill where a Boolean mask is False. A mask with other numbers is a bias."""
    scores = scores.before_softmax("a mask")
    if isinstance(mask, MaskedBias):
        return masked(t, masked(t, scores, mask.bias), mask.mask, mask.fill)
    if isinstance(mask, torch.nn.Parameter) or not isinstance(mask, Data | torch.Tensor):
        return biased(t, scores, t.tensor(mask))
    if isinstance(mask, Data):
        if scores.padding:
            raise Refused("attention with two masks of the batch; combine them, as in mask | other_mask")
        return replace(scores, padding=mask, fill=min(scores.fill, fill if mask.dtype == torch.bool else FILL))
    kept = mask if mask.dtype == torch.bool else mask > -FILL
    if mask.dtype != torch.bool and not bool((mask[kept] == 0).all()):
        bias = torch.where(kept, mask, 0.0)
        leading, own = bias.shape[:-3], bias.shape[-3:]
        if math.prod(leading) > 1:
            raise Refused("a constant bias of attention that differs between rows of the batch")
        wanted = bias_shape(scores)
        if any(n not in (1, w) for n, w in zip(own[::-1], wanted[::-1], strict=False)):
            raise Refused(f"a constant bias of attention of shape {tuple(mask.shape)}; it must be {wanted}")
        scores = biased(t, scores, t.tensor(bias.reshape(own).expand(wanted).contiguous()))
    kept = kept.expand(*kept.shape[:-2], *(length(d) for d in scores.dims[-2:]))
    one = kept.reshape(-1, *kept.shape[-2:])
    if bool(kept.all()):
        return scores
    if mask.dtype != torch.bool:
        fill = -float(mask[mask <= -FILL].max())
    causal = torch.ones_like(one).tril()
    window = 0 if torch.equal(one, causal) else int(one[0, -1].sum())
    if not torch.equal(one, causal.triu(1 - window) if window and one.shape[1] == one.shape[2] else causal):
        raise Refused("a constant mask that is not causal")
    return replace(scores, causal=True, window=min(window, scores.window) or window or scores.window, fill=min(scores.fill, fill))


def biased(t: Translator, scores: Scores, bias: Tensor) -> Scores:
    """Scores + bias."""
    if bias.sequence:
        raise Refused("a mask or a bias that is computed from data")
    dims: list[Axis] = [()] * (3 - len(bias.dims)) + bias.dims
    wanted = bias_shape(scores)
    if any(n not in (1, w) for n, w in zip(shape(dims[-3:]), wanted, strict=True)) or any(real(d) for d in dims[:-3]):
        raise Refused(f"a bias of attention of shape {shape(bias.dims)}; it must be {wanted}, or 1 instead, the same for all rows of the batch")
    bias = replace(bias, dims=dims[-3:])
    if shape(d if real(d) else () for d in bias.dims) != wanted:  # the same for several heads, queries or keys
        bias = t.broadcast(t.graph.add, t.tensor(torch.zeros(wanted)), bias)
    return replace(scores, bias=bias if scores.bias is None else t.broadcast(t.graph.add, scores.bias, bias))


def bias_shape(scores: Scores) -> tuple[int, ...]:
    """(heads,P,R)"""
    sizes = shape(scores.dims)
    return (sizes[-3] if len(sizes) > 3 else 1, *sizes[-2:])


@op("masked_fill")
def masked_fill(t: Translator, self: Any, mask: Any, value: Any) -> Any:
    fill = -(number(value) or 0)
    computed = isinstance(mask, Tensor)
    if isinstance(self, Scores) and fill >= FILL and not computed:
        return masked(t, self, inverted(mask), fill)
    if is_bias(self) and fill >= FILL and not computed:
        return masked_bias(self, inverted(mask), fill)
    return where(t, mask, value, self)


@op("where")
def where(t: Translator, condition: Any, self: Any, other: Any) -> Any:
    """Of the two sides each is read, and has a gradient, only where the condition chooses it."""
    fill = -(number(other) or 0)
    computed = isinstance(condition, Tensor)
    if isinstance(self, Scores) and fill >= FILL and not computed:
        return masked(t, self, condition, fill)
    if is_bias(self) and fill >= FILL and not computed:
        return masked_bias(self, condition, fill)
    return chosen(t, condition, self, other)


@op("remat::chosen")
def chosen(t: Translator, condition: Any, self: Any, other: Any) -> Any:
    for x in (self, other):
        if (n := number(x)) is not None and not math.isfinite(n):
            raise Refused(f"a mask that writes {n} outside attention; write a finite number")
    rest = sub(t, 1, condition) if isinstance(condition, Tensor) else inverted(condition)
    return add(t, kept(t, self, condition), kept(t, other, rest))


def kept(t: Translator, x: Any, mask: Any) -> Any:
    """x where the mask is True, elsewhere 0."""
    mask = as_numbers(mask)
    if number(x) is not None:
        return mul(t, mask, x)
    return t.broadcast(t.graph.masked, promoted(x), mask)


def of_mask(mask: Any, label: str, dtype: Any, function: Any) -> Any:
    """function of a mask, element by element. The label says what it computes: two with one label are one input."""
    if isinstance(mask, torch.Tensor):
        return function(mask)
    if not isinstance(mask, Data):
        raise Refused("a mask that is computed from parameters or data")
    compute = mask.compute
    return Data(f"{mask.name}.{label}", dtype, mask.source, lambda host: function(compute(host)), mask.dims, True)


def inverted(mask: Any) -> Any:
    return of_mask(mask, "inverted", torch.bool, torch.logical_not)


def as_numbers(mask: Any) -> Any:
    """1 where the mask is True, elsewhere 0. A mask that is computed already consists of these."""
    return mask if isinstance(mask, Tensor) else of_mask(mask, "numbers", torch.float32, torch.Tensor.float)


def padding_of(t: Translator, s: Scores, mask: Data, keys: Atom, batch: Atom | None) -> Value:
    """The mask of keys, i32 (S,B), 1 where they are padding."""
    if length(mask.dims[-1]) != keys.size:
        raise Refused("a mask that is the same for all keys")
    atoms = set(real(a for d in mask.dims for a in leaves(d)))
    for d in mask.dims[-1:]:
        for a, b in zip(real(d) or leaves(d) or leaves(mask.source[-1]), [keys], strict=False):
            a.unite(b)  # views of a single key may leave its axis without an atom
    if batch is not None and len(atoms) > (keys.size > 1):
        for a in real(mask.dims[0])[:1]:
            a.unite(batch)
    if len(atoms) > 2:
        raise Refused("a mask that depends on the batch and on heads")
    compute = mask.compute
    example = compute(t.example)
    if example.dtype != torch.bool and not is_fill(example):
        raise Refused("a mask with other numbers than 0 and at most -1e4")

    def padding(host: Host) -> torch.Tensor:
        given = compute(host)
        kept = kept_keys(given)
        check_unseeing(s, given.reshape(-1, keys.size), kept.reshape(-1, keys.size))
        return (~kept).int()

    made = Data(f"{mask.name}.padding", torch.int32, mask.source, padding, mask.dims, True)
    return t.tensor(made).value


def check_unseeing(s: Scores, mask: torch.Tensor, kept: torch.Tensor) -> None:
    """Refuses queries that see no key, unless PyTorch gives them zeros, too. mask and kept: (.., S)."""
    seeing = kept[..., 0] if s.causal else kept.any(-1)
    zero = s.unseeing and (mask.dtype == torch.bool or bool(mask[~kept].isneginf().all()))
    if not zero and not bool(seeing.all()):
        raise invalid(
            f"attention masks all keys that a query of batch row {int((~seeing).nonzero()[0, 0])} sees, so PyTorch's result is "
            f"{'NaN' if s.fill == math.inf and not s.unseeing else 'an average over masked keys'}; leave it "
            f"{'the first key: put padding at the end' if s.causal else 'a key'}"
        )


def kept_keys(mask: torch.Tensor) -> torch.Tensor:
    if mask.dtype == torch.bool:
        return mask
    kept = mask > -FILL
    if bool((mask[kept] != 0).any()):
        raise invalid("attention has a mask with other numbers than 0 and at most -1e4; a bias of attention may be learned or constant, not of the batch")
    return kept


def of_queries(t: Translator, s: Scores, batch: Axis) -> tuple[Data, Scores]:
    """The mask of all queries and heads, and whether attention is causal beside. The example's mask decides; each batch's
    must be like it."""
    assert s.padding is not None
    mask = s.padding
    if len(mask.dims) < 2 or not real(mask.dims[-2]):
        return mask, s
    if length(mask.dims[-1]) > 1 and not real(mask.dims[-1]):
        raise Refused("a mask of queries, the same for all keys; mask keys only")
    if real(a for d in mask.dims for a in d) != real(a for d in mask.source for a in d):
        raise Refused("a transposed mask of the batch; make it as (rows, queries, keys)")
    compute, queries, keys = mask.compute, length(mask.dims[-2]), length(mask.dims[-1])
    lead: Sequence[Axis] = mask.dims[:-2] if len(mask.dims) == len(s.dims) else ()  # heads alone
    rows = length(batch) if lead and real(lead[0]) else 1

    def unlike(host: Host, text: str) -> Exception:
        if host is t.example:
            return Refused(text)
        return invalid(f"attention has {text}, unlike that of the example; give an example with such a mask")

    def of_heads(host: Host) -> tuple[torch.Tensor, torch.Tensor]:
        given = compute(host).reshape(rows, -1, queries, keys)
        if given.dtype != torch.bool and not is_fill(given):
            raise unlike(host, "a mask with other numbers than 0 and at most -1e4")
        kept = kept_keys(given)
        if not torch.equal(kept, kept[:, :1].expand_as(kept)):
            raise unlike(host, "a mask that differs between heads")
        return given[:, 0], kept[:, 0]

    _, example = of_heads(t.example)
    s = replace(s, causal=s.causal or (queries == keys and not bool(example.triu(1).any())))

    def of_last_query(host: Host) -> torch.Tensor:
        given, kept = of_heads(host)
        wanted = kept[:, -1:].expand_as(kept)
        if not torch.equal(kept, wanted.tril() if s.causal else wanted):
            raise unlike(host, "a mask that differs between queries, and is not causal")
        check_unseeing(s, given, kept)
        return kept[:, -1].expand(length(batch), keys)

    of_last_query(t.example)
    first = lead[0] if rows > 1 and length(lead[0]) == rows else ()
    made = t.data(f"{mask.name}.keys", torch.bool, (length(batch), keys), of_last_query)
    unite_all(made.dims, (first, mask.dims[-1]))
    return replace(made, integers=True), s


def lead_of(x: Tensor) -> Axis:
    """The batch axis of (B,..,T,D)."""
    return tuple([a for d in x.dims[:-2] for a in leaves(d)][:1])


def attend(t: Translator, s: Scores, value: Any) -> Tensor:
    if not s.softmax:
        raise Refused("q k^T is multiplied without a softmax")
    q, k, v = s.q, s.k, t.tensor(value)
    if any(len(real(x.dims[-2])) > 1 for x in (q, k, v)):
        raise Refused("attention in windows that are cut out of the rows of the batch, as Swin's; it works where windows are the batch's rows")
    t.fused = True
    together(*(functools.partial(t.mark, x, x.dims[-2], lead_of(x)) for x in (q, k, v)))
    q, k, v = (t.as_sequence(x, x.dims[-2], lead_of(x)) for x in (q, k, v))
    if any(a.repeats for x in (q, k, v) for a in lead_of(x)):
        raise Refused("queries, keys or values are expanded along the batch")
    layouts = [heads_of(x, q) for x in (q, k, v)]
    shared = math.gcd(*(shared_by(layout) for layout in layouts[1:]))
    flat = [with_heads(t, x, layout, n) for x, layout, n in zip((q, k, v), layouts, (1, shared, shared), strict=True)]
    heads = math.prod(size for size, _ in layouts[0])
    width = length(q.dims[-1])
    if length(v.dims[-1]) != width or flat[1].shape[2] != flat[2].shape[2]:
        raise Refused("keys and values have different sizes")
    factor = s.scale * math.sqrt(width)
    queries = flat[0] if math.isclose(factor, 1, rel_tol=1e-6) else t.graph.scale(flat[0], factor)
    padding = None
    if s.padding is not None:
        mask, s = of_queries(t, s, lead_of(k))
        padding = padding_of(t, s, mask, k.time(), k.batch())  # type: ignore[arg-type]
        if padding.shape != flat[1].shape[:2]:
            raise Refused(f"a mask of the batch of shape {shape(s.padding.dims) if s.padding else ()}")
    if s.window:
        if padding is not None or s.bias is not None or s.dropout:
            raise Refused("attention in a sliding window, beside padding, a bias or dropout")
        made = t.graph.window_attention(queries, flat[1], flat[2], heads, s.window)
    elif s.bias is None:
        made = t.graph.attention_dropout(queries, flat[1], flat[2], heads, s.causal, padding, s.dropout)
    else:
        bias = t.arrange(s.bias, s.bias.dims[-3:])
        if bias.shape[0] != heads:
            raise Refused(f"a bias of attention for {bias.shape[0]} heads, where there are {heads}")
        made = t.graph.biased_attention(queries, flat[1], flat[2], heads, s.causal, padding, bias, s.dropout)
    lead = [tuple(Atom(a.size) if a.repeats else a for a in leaves(d)) for d in q.dims[:-2]]
    features = tuple(a for d in lead for a in d if a is not q.batch())
    axes: list[Axis] = [(q.time(),), (q.batch(),) if q.batch() else (), (*features, *leaves(v.dims[-1]))]  # type: ignore[list-item]
    return Tensor(made, axes, [*lead, q.dims[-2], v.dims[-1]], True)


Heads = list[tuple[int, bool]]  # factors of the number of heads: sizes, and whether the heads repeat along them


def heads_of(x: Tensor, q: Tensor) -> Heads:
    """The heads of q, k or v (B,..,T,D) as factors, the slowest first, after PyTorch's broadcasting to q's."""
    if len(x.dims) > len(q.dims):
        raise Refused("attention's values have more axes than its queries")
    lead: list[Axis] = [()] * (len(q.dims) - len(x.dims)) + x.dims[:-2]
    found: Heads = []
    for own, wanted in zip(lead, shape(q.dims[:-2]), strict=True):
        found += [(a.size, a.repeats) for a in leaves(own) if a is not x.batch() and a.size > 1]
        if wanted > length(own):  # also enable_gqa, which repeats each head
            found.append((wanted // length(own), True))
    return found


def shared_by(heads: Heads) -> int:
    """How many heads of queries one after another read the same head of keys."""
    real = [i for i, (_, repeats) in enumerate(heads) if not repeats]
    return math.prod(size for size, _ in heads[real[-1] + 1 if real else 0 :])


def with_heads(t: Translator, x: Tensor, heads: Heads, shared: int) -> Value:
    """(T,B,heads D). Heads that repeat are copied, but for the last factor, `shared`, which attention itself repeats."""
    own = [a for d in x.dims[:-2] for a in leaves(d) if a is not x.batch() and not a.repeats]
    batch: Axis = (x.batch(),) if x.batch() else ()  # type: ignore[assignment]
    value = t.arrange(x, [leaves(x.dims[-2]), batch, (*own, *leaves(x.dims[-1]))])
    outer, count, first = 1, math.prod(size for size, _ in heads) // shared, value.shape[:2]
    for size, repeats in heads:
        size = min(size, count // outer)
        if repeats and size > 1:
            parts = t.graph.reshape(value, [*first, outer, 1, value.shape[2] // outer])
            value = t.graph.reshape(joined(t, [parts] * size, 3), [*first, value.shape[2] * size])
        outer *= size
    return value


@op("remat::rotary")
def rotary(t: Translator, x: Any, cos: Any, sin: Any) -> Tensor:
    """x (B,..,T,D): features i and i + D/2 are turned, by the layer if the angles are t base^(-2i/D)."""
    x = t.tensor(x)
    steps, half = length(x.dims[-2]), length(x.dims[-1]) // 2
    tables = [y.expand(*y.shape[:-2], steps, 2 * half) for y in (cos, sin) if isinstance(y, torch.Tensor)]
    base = base_of(*tables) if len(tables) == 2 else None
    if base is None or ALL in t.computed:  # no axis is time for attention
        last = len(x.dims) - 1
        turned = cat(t, [neg(t, part(t, x, last, half, half)), part(t, x, last, 0, half)], last)
        return t.broadcast(t.graph.add, mul(t, x, cos), mul(t, turned, sin))
    t.fused = True
    x = t.as_sequence(x, x.dims[-2], lead_of(x))
    inner = [a for d in x.dims for a in leaves(d) if a is not x.time() and a is not x.batch()]
    own = tuple(a for a in inner if a not in leaves(x.dims[-1]))
    axes: list[Axis] = [(x.time(),), (x.batch(),) if x.batch() else (), (*own, *leaves(x.dims[-1]))]
    return Tensor(t.graph.rotary(t.arrange(x, axes), length(own), base), axes, x.dims, True)


def base_of(cos: torch.Tensor, sin: torch.Tensor) -> float | None:
    cos, sin = cos.double(), sin.double()
    steps, width = cos.shape[-2:]
    base = 10000.0
    if steps > 1 and width > 2:
        slowest = float(torch.atan2(sin, cos).reshape(-1, steps, width)[0, 1, width // 2 - 1])
        if slowest <= 0:
            return None
        base = slowest ** (-width / (width - 2))
        base = round(base) if math.isclose(base, round(base), rel_tol=1e-4) else base
    angles = torch.arange(steps)[:, None] * base ** (-2 * (torch.arange(width).double() % (width // 2)) / width)
    near = 1e-6 * max(steps, 10)  # PyTorch multiplies angles in float32
    right = all(torch.allclose(x, y.expand_as(x), atol=near) for x, y in ((cos, angles.cos()), (sin, angles.sin())))
    return base if right else None


@op("softmax", "_softmax")
def softmax(t: Translator, self: Any, dim: int, *rest: Any) -> Any:
    if isinstance(self, Scores):
        if dim not in (-1, len(self.dims) - 1):
            raise Refused("a softmax over queries")
        if self.before_softmax("a second softmax").fill < FILL:
            raise Refused("scores of attention that are masked and then scaled down; scale them before they are masked")
        return replace(self, softmax=True)
    if isinstance(self, MaskedBias) and self.fill == math.inf and self.mask.dtype == torch.bool and dim in (-1, len(self.dims) - 1):
        self = chosen(t, seeing(self.mask, "seeing", torch.Tensor.float), self.bias, -UNSEEN)
    return last_axis(t, self, dim, t.graph.softmax)


@op("log_softmax", "_log_softmax")
def log_softmax(t: Translator, self: Any, dim: int, *rest: Any) -> Any:
    x = t.tensor(self)
    made = last_axis(t, x, dim, t.graph.log_softmax)
    return replace(made, normalized=made.dims[dim], log_softmax_of=x)


def last_axis(t: Translator, x: Any, dim: int, builder: Any) -> Tensor:
    """A layer along one axis, which must be the value's last."""
    n = len(dims_of(x))
    moved = transpose(t, x, dim, -1) if dim % n != n - 1 else x
    p = t.plain(moved)
    if not p.last(n - 1):
        raise Refused("the axis is time or batch")
    made = p.result(builder(p.value))
    return transpose(t, made, dim, -1) if moved is not x else made


# ---- Recurrent layers -----------------------------------------------------------------------------------------------


@op("remat::recurrent")
def recurrent(
    t: Translator, x: Any, states: Sequence[Any], weights: Sequence[Any], lengths: Any, mode: str, bias: bool,
    layers: int, dropout: float, bidirectional: bool, batch_first: bool, projection: int,
) -> Any:  # fmt: skip
    dims = dims_of(x)
    time, batch = (dims[1], dims[0]) if batch_first else (dims[0], dims[1])
    if not leaves(batch):  # a sequence without a batch
        x = with_dims(t, x, [time, dims[2]])
    p = t.plain(t.as_sequence(x, time, batch))
    directions, kinds = 1 + bidirectional, len(states) or (2 if mode == "LSTM" else 1)
    given = list(weights)
    per_layer = 2 + 2 * bias + bool(projection)
    reset = row_ends(t, lengths, time, batch) if lengths is not None else None
    finals: list[list[Tensor | Missing]] = [[] for _ in range(2)]
    first = [states_of(t, s, layers * directions, batch) for s in states]
    h = p.value
    for layer in range(layers):
        if layer and dropout:
            h = t.graph.dropout(h, dropout)
        sides = []
        for side in range(directions):
            own, given = [weight_of(t, w) for w in given[:per_layer]], given[per_layer:]
            source = t.graph.reverse(h) if side else h
            y = cell(t, mode, source, own, bias, projection)
            for k in range(kinds if first else 0):
                if (initial := first[k][layer * directions + side]) is not None:
                    if side and reset is not None:
                        raise Refused(
                            "initial states of a bidirectional layer whose sequences are packed; leave them out, or give "
                            "sequences of one length without packing"
                        )
                    t.graph.initial_state(y, k, initial)
            if side and reset is not None:
                y = t.graph.reset_states(y, reset)
            keep_finals(t, finals, y, mode, lengths if not side else None, batch)
            sides.append(t.graph.reverse(y) if side else y)
        h = t.graph.concat(sides) if bidirectional else sides[0]
    width = (Atom(h.shape[-1]),)
    out = [batch, time, width] if batch_first else [time, batch, width]
    result = Tensor(h, [*p.axes[:2], width], out, True)
    stacks = [Stack(f, [(Atom(len(f)),), batch, f[0].dims[-1]]) for f in finals if f]
    return [result, *stacks]


def cell(t: Translator, mode: str, x: Value, weights: Sequence[Value], bias: bool, projection: int) -> Value:
    w_ih, w_hh, *rest = weights
    b = rest[:2] if bias else [None, None]
    if projection:
        return t.graph.lstm_projected(x, w_ih, w_hh, b[0], b[1], rest[-1])
    g = t.graph
    builder = {"LSTM": g.lstm, "GRU": g.gru, "RNN_TANH": g.rnn_tanh, "RNN_RELU": g.rnn_relu}[mode]
    return builder(x, w_ih, w_hh, b[0], b[1])


def states_of(t: Translator, given: Any, count: int, batch: Axis) -> list[Value | None]:
    """The initial states of each layer and direction, (B,H) each; None: zeros."""
    if isinstance(given, torch.Tensor) and not isinstance(given, torch.nn.Parameter) and not bool(given.any()):
        return [None] * count
    if isinstance(given, Tensor):
        given = with_dims(t, given, [given.dims[0], real(given.dims[1]), given.dims[2]])
    parts = given.parts if isinstance(given, Stack) else [select(t, given, 0, i) for i in range(count)]
    return [state_of(t, part, batch) for part in parts]


def state_of(t: Translator, given: Any, batch: Axis) -> Value:
    """One state for all rows, such as a learned one, is added to zeros of (B,H)."""
    x = t.tensor(given)
    sizes = (length(batch), *shape(x.dims[1:]))
    if sizes[0] > 1 and not real(x.dims[0]):
        zeros = t.data(".".join(map(str, ("zeros", *sizes))), torch.float32, sizes, lambda host: torch.zeros(sizes))
        unite(zeros.dims[0], batch)
        x = t.broadcast(t.graph.add, zeros, with_dims(t, x, [(), *x.dims[1:]]))
    return t.plain(x).value


def keep_finals(t: Translator, finals: list[list[Tensor | Missing]], y: Value, mode: str, lengths: Any, batch: Axis) -> None:
    """Of a padded batch the forward direction ends at each row's last step; its c is not kept there."""
    for k in range(2 if mode == "LSTM" else 1):
        if lengths is None:
            value = t.graph.final_state(y, k)
        elif k == 0:
            value = t.graph.step_at(y, t.tensor(plus(lengths, -1)).value)
        else:
            reason = "the final c of a packed LSTM's forward direction is not kept; use h, or rows of one length"
            finals[k].append(Missing(reason, [batch, (Atom(y.shape[-1]),)]))
            continue
        axes: list[Axis] = [batch, (Atom(value.shape[-1]),)]
        finals[k].append(Tensor(value, axes, list(axes)))


def plus(lengths: Any, number: int) -> Data:
    compute = lengths.compute
    return Data(
        f"{lengths.name}{number:+}", lengths.dtype, lengths.source, lambda host: compute(host) + number, lengths.dims
    )


def row_ends(t: Translator, lengths: Any, time: Axis, batch: Axis) -> Value:
    """f32 (T,B), reversed in time: 1 at each row's last timestep."""
    if not isinstance(lengths, Data):
        raise Refused("lengths must be part of the batch")
    compute, steps = lengths.compute, length(time)

    def ends(host: Host) -> torch.Tensor:
        last: torch.Tensor = compute(host) - 1
        if bool(((last < 0) | (last >= steps)).any()):
            raise invalid(f"pack_padded_sequence: lengths are from {int(last.min()) + 1} to {int(last.max()) + 1}; give 1 to {steps}")
        return (torch.arange(steps)[:, None] == last).float()

    made = t.data(f"{lengths.name}.ends", torch.float32, (steps, length(batch)), ends)
    unite_all(made.dims, (time, batch))
    return t.graph.reverse(t.tensor(made).value)


@op("remat::layer")
def layer(t: Translator, layer: str, given: Sequence[Any], width: int, keeps: bool) -> list[Any]:
    """A function of remat.functional, of sequences (T,B,C), weights and states (B,..)."""
    of = functional.Layer.of(layer)
    time, batch, _ = dims_of(given[0])
    values = []
    for x, (_, kind) in zip(given, of.given(), strict=True):
        if kind == "weight":
            values.append(weight_of(t, x))
        elif kind == "state":
            values.append(state_of(t, x, batch))
        else:
            dims = dims_of(x)
            unite_all(dims[:2], (time, batch))
            values.append(t.arrange(t.as_sequence(x, time, batch), [time, batch, dims[2]]))
    y, finals = of.build(t.graph, values)
    axes: list[Axis] = [time, batch, (Atom(width),)]
    own = [[batch, *((Atom(n),) for n in dims)] for dims in of.finals]
    ends = [Tensor(value, list(dims), list(dims)) for value, dims in zip(finals, own, strict=True)]
    return [Tensor(y, axes, list(axes), True), None, ends]


# ---- Parts and joins ------------------------------------------------------------------------------------------------


@view("select")
def select(t: Translator, self: Any, dim: int, index: int) -> Any:
    dims = dims_of(self) if not isinstance(self, Stack) else self.dims
    dim %= len(dims)
    index %= length(dims[dim])
    if isinstance(self, Stack):
        if dim == 0:
            return self.parts[index]
        return replace(self, parts=[select(t, p, dim - 1, index) for p in self.parts], dims=[*dims[:dim], *dims[dim + 1 :]])
    if isinstance(self, Data):
        return part_of(t, self, lambda x: x.select(dim, index), [*dims[:dim], *dims[dim + 1 :]], f"{dim}.{index}")
    x = t.tensor(self)
    if t.has_time(x, dim):
        return one_step(t, x, dim, index)
    made = part(t, x, dim, index, 1)
    return with_dims(t, made, [*made.dims[:dim], *made.dims[dim + 1 :]])


def part_of(t: Translator, data: Data, cut: Any, dims: list[Axis], label: str) -> Data:
    """A part of the batch's tensor, which PyTorch makes. Axes that stay whole keep their roles."""
    compute, sizes = data.compute, shape(data.dims)
    name = f"{data.name}.part{label}"
    made = t.data(name, data.dtype, shape(dims), lambda host: cut(compute(host).reshape(sizes)))
    if not all(leaves(a) == leaves(b) for a, b in zip(data.source, data.dims, strict=False)):
        raise Refused("a part of a transposed tensor of the batch; take it apart before it is given")
    unite_all(made.dims, dims)
    return replace(made, integers=data.integers)


def one_step(t: Translator, x: Tensor, dim: int, index: int) -> Tensor:
    steps, p = length(x.dims[dim]), t.plain(x)
    if index not in (0, steps - 1) or len(p.axes) != 3:
        raise Refused(f"timestep {index} of {steps} is read; only the first and the last of (T,B,C) can be")
    value = t.graph.last_step(t.graph.reverse(p.value) if index == 0 and steps > 1 else p.value)
    return Tensor(value, p.axes[1:], [*x.dims[:dim], *x.dims[dim + 1 :]], normalized=x.normalized)


def part(t: Translator, x: Tensor, dim: int, first: int, count: int) -> Tensor:
    """x[.., first : first + count, ..]: a slice of the last axis, after the axes from `dim` on became one."""
    p = t.plain(x)
    x, at = p.x, p.at.get(dim)
    if at is None or (x.batch() in leaves(x.dims[dim]) if x.sequence else False):
        raise Refused("a part of the time or batch axis; shift or cut the targets instead")
    inner = p.axes[at + 1 :]
    size = length(a for axis in inner for a in axis)
    joined = tuple(a for axis in p.axes[at:] for a in axis)
    value = t.graph.slice(t.arrange(x, [*p.axes[:at], joined]), first * size, count * size)
    cut = (Atom(count),)
    dims = [cut if i == dim else d for i, d in enumerate(x.dims)]
    return Tensor(value, [*p.axes[:at], (*cut, *(a for axis in inner for a in axis))], dims, x.sequence)


@view("slice")
def slice_(t: Translator, self: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    dims = self.dims if isinstance(self, Stack) else dims_of(self)
    dim %= len(dims)
    n = length(dims[dim])
    first, last, _ = slice(start, end).indices(n)
    if (first, last, step) == (0, n, 1):
        return self
    if step != 1 and not isinstance(self, Stack):
        return every(t, self, dim, range(first, last, step))
    if isinstance(self, Stack) and dim == 0:
        return Stack(self.parts[first:last], [(Atom(last - first),), *dims[1:]])
    if first == last:
        return torch.empty(*shape(dims[:dim]), 0, *shape(dims[dim + 1 :]))
    cut = (Atom(last - first),)
    new = [*dims[:dim], cut, *dims[dim + 1 :]]
    if isinstance(self, Data):
        return part_of(t, self, lambda x: x.narrow(dim, first, last - first), new, f"{dim}.{first}.{last}")
    if isinstance(self, torch.nn.Parameter) and first == 0 and dim == self.dim() - 2 and math.prod(self.shape[:dim]) == 1:
        return Positions(t.tensor(self), new)
    return part(t, t.tensor(self), dim, first, last - first)


def every(t: Translator, self: Any, dim: int, indices: range) -> Any:
    """x[.., first::step, ..]: the first of each `step` elements; the last ones may be fewer."""
    first, step, count = indices.start, indices.step, len(indices)
    if isinstance(self, Data):
        cut = (slice(None),) * dim + (slice(first, indices.stop, step),)
        dims = [*self.dims[:dim], (Atom(count),), *self.dims[dim + 1 :]]
        return part_of(t, self, lambda x: x[cut], dims, f"{dim}.{first}.{indices.stop}.{step}")
    x = t.tensor(self)
    if count == 1:
        return part(t, x, dim, first, 1)
    if first + count * step > length(x.dims[dim]):
        return cat(t, [every(t, x, dim, indices[:-1]), part(t, x, dim, indices[-1], 1)], dim)
    return select(t, unflatten(t, part(t, x, dim, first, count * step), dim, [count, step]), dim + 1, 0)


@op("roll")
def roll(t: Translator, self: Any, shifts: Any, dims: Any = ()) -> Any:
    x = t.tensor(self)
    given = [y if isinstance(y, list | tuple) else [y] for y in (shifts, dims)]
    axes = [d % len(x.dims) for d in given[1]] or [0]
    if not given[1] and len(x.dims) > 1:
        raise Refused("a roll over all axes as one; give dims")
    for shift, dim in zip(given[0], axes, strict=True):
        n = length(x.dims[dim])
        if moved := shift % n:
            x = cat(t, [part(t, x, dim, n - moved, moved), part(t, x, dim, 0, n - moved)], dim)
    return x


@view("narrow")
def narrow(t: Translator, self: Any, dim: int, start: int, length: int) -> Any:
    return slice_(t, self, dim, start, start + length)


@view("split", "split_with_sizes")
def split(t: Translator, self: Any, split_size: Any, dim: int = 0) -> Any:
    n = shape(dims_of(self))[dim]
    sizes = [min(split_size, n - i) for i in range(0, n, split_size)] if isinstance(split_size, int) else split_size
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [slice_(t, self, dim, i, i + size) for i, size in zip(starts, sizes, strict=True)]


@view("chunk")
def chunk(t: Translator, self: Any, chunks: int, dim: int = 0) -> Any:
    return split(t, self, -(-shape(dims_of(self))[dim] // chunks), dim)


@view("unbind")
def unbind(t: Translator, self: Any, dim: int = 0) -> Any:
    dims = self.dims if isinstance(self, Stack) else dims_of(self)
    return [select(t, self, dim, i) for i in range(length(dims[dim]))]


@op("cat", "concat", "concatenate")
def cat(t: Translator, tensors: Sequence[Any], dim: int = 0) -> Any:
    if all(isinstance(x, Stack) for x in tensors) and dim == 0:
        parts = [p for x in tensors for p in x.parts]
        return Stack(parts, [(Atom(len(parts)),), *tensors[0].dims[1:]])
    xs = [t.tensor(x) for x in tensors if not (isinstance(x, torch.Tensor) and x.numel() == 0)]
    dim %= len(xs[0].dims)
    xs = [repeated(t, x, xs, dim) for x in xs]
    for other in xs[1:]:
        rest = [i for i in range(len(other.dims)) if i != dim]
        unite_all([xs[0].dims[i] for i in rest], [other.dims[i] for i in rest])
    ps = [t.plain(x) for x in xs]
    at = ps[0].at.get(dim)
    if at is None or len({p.x.sequence for p in ps}) > 1:
        raise Refused("tensors are joined along time or batch")
    if len(ps) == 1:
        return ps[0].result(ps[0].value)
    value = joined(t, [p.value for p in ps], at)
    return ps[0].result(value, {dim: value.shape[at]})


def joined(t: Translator, values: Sequence[Value], axis: int) -> Value:
    value = values[0]
    for i in range(1, len(values), 3):
        value = t.graph.concat_axis([value, *values[i : i + 3]], axis)
    return value


def repeated(t: Translator, x: Tensor, xs: Sequence[Tensor], dim: int) -> Tensor:
    """An expanded parameter, such as the token of a class before an image's patches, added to zeros of the whole shape."""
    whole = next((y for y in xs if not any(a.repeats for d in y.dims for a in leaves(d))), None)
    if whole is None or not any(a.repeats for d in x.dims for a in leaves(d)):
        return x
    zeros = scaled(t, part(t, whole, dim, 0, 1), 0)
    return t.broadcast(t.graph.add, zeros, with_dims(t, x, [d if real(d) else () for d in x.dims]))


@op("stack")
def stack(t: Translator, tensors: Sequence[Any], dim: int = 0) -> Any:
    if dim == 0:
        return Stack(list(tensors), [(Atom(len(tensors)),), *dims_of(tensors[0])])
    return cat(t, [unsqueeze(t, x, dim) for x in tensors], dim)


@op("index")
def index(t: Translator, self: Any, indices: Sequence[Any]) -> Any:
    """y[arange(B), step]: one timestep of each row; or rows of a table by a constant."""
    x = t.tensor(self)
    if len(indices) == 1 and len(x.dims) == 2 and isinstance(indices[0], torch.Tensor) and not indices[0].is_floating_point():
        at = indices[0].long() if indices[0].dtype != torch.bool else indices[0].nonzero()[:, 0]
        return of_constant_rows(t, x, torch.where(at < 0, at + length(x.dims[0]), at))
    constant = [(dim, i) for dim, i in enumerate(indices) if i is not None]
    if len(constant) == 1 and isinstance(constant[0][1], torch.Tensor) and constant[0][1].dim() == 1:
        return index_select(t, x, *constant[0])
    rows = [isinstance(i, torch.Tensor) and i.dim() == 1 and torch.equal(i, torch.arange(len(i))) for i in indices]
    if len(indices) != 2 or sum(rows) != 1 or not isinstance(indices[rows.index(False)], Data):
        raise Refused("an index by tensors; only x[arange(B), steps] and one constant index are supported")
    dim = rows.index(False)
    t.mark(x, x.dims[dim], x.dims[1 - dim])
    p = t.plain(t.as_sequence(x, x.dims[dim], x.dims[1 - dim]))
    steps = t.tensor(indices[dim])
    unite(steps.dims[0], x.dims[1 - dim])
    return Tensor(t.graph.step_at(p.value, steps.value), p.axes[1:], [x.dims[1 - dim], *x.dims[2:]])


@op("index_select")
def index_select(t: Translator, self: Any, dim: int, index: Any) -> Any:
    """Neighbours are one slice."""
    if not isinstance(index, torch.Tensor):
        raise Refused("an index of the batch; only x[arange(B), steps] is supported")
    at = index.nonzero()[:, 0] if index.dtype == torch.bool else index
    size, runs = length(dims_of(self)[dim]), list[list[int]]()
    for i in (int(i) % size for i in at):
        if runs and runs[-1][1] == i:
            runs[-1][1] += 1
        else:
            runs.append([i, i + 1])
    if len(runs) > 64:
        raise Refused(f"an index of {len(at)} elements, of which {len(runs)} do not follow one another; at most 64 may")
    return cat(t, [slice_(t, self, dim, *run) for run in runs], dim)


@op("gather")
def gather(t: Translator, self: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    """One element of the last axis for each row, which integers of the batch choose, or several, which a constant chooses."""
    n = len(dims_of(self))
    if isinstance(index, torch.Tensor) and dim % n == n - 1 and n > 1:
        return of_constant_elements(t, t.tensor(self), index)
    if not isinstance(index, Data) or dim % n != n - 1 or length(index.dims[-1]) != 1:
        raise Refused("only x.gather(-1, index) with one index of the batch for each row is supported")
    if shape(dims_of(self))[:-1] != shape(index.dims)[:-1]:
        raise Refused(f"an index of shape {shape(index.dims)} for values of shape {shape(dims_of(self))}; it must have all rows")
    return unsqueeze(t, picked(t, t.tensor(self), squeeze(t, index, -1), None), -1)


def of_constant_elements(t: Translator, x: Tensor, index: torch.Tensor) -> Tensor:
    """x[.., i, index[i, j]], such as DeBERTa's scores of relative positions: rows of a table of all x[.., i, k]."""
    every = index.reshape(-1, *index.shape[-2:])
    *lead, rows, columns = shape(x.dims)
    if x.sequence:
        raise Refused("an index of what is computed along time")
    if list(index.shape[:-1]) != [*lead, rows] or not bool((every == every[:1]).all()):
        raise Refused(f"a constant index of shape {tuple(index.shape)} for values of shape {shape(x.dims)}; it must be the same for all of the first axes")
    at = (every[0] + columns * torch.arange(rows)[:, None]).flatten()
    table = reshape(t, x, [math.prod(lead), rows * columns])
    made = transpose(t, of_constant_rows(t, transpose(t, table, 0, 1), at), 0, 1)
    axes = [*t.spread(x).dims[:-2], *new_dims(index.shape[-2:])]  # a transposed result may be added to scores
    return Tensor(t.graph.reshape(t.plain(made).value, shape(axes)), axes, axes)


def picked(t: Translator, x: Tensor, index: Any, ignored: int | None) -> Tensor:
    """x[.., index], for an index of x without its last axis; 0, without a gradient, where the index is `ignored`."""
    classes = length(x.dims[-1])

    def of_pick(given: torch.Tensor) -> torch.Tensor:
        valid = torch.where(given < 0, classes, given)  # which the session refuses
        return valid if ignored is None else torch.where(given == ignored, -1, valid)

    p, q = rows_and_indices(t, x, of_mask(index, f"picked.{classes}.{ignored}", torch.int32, of_pick))
    return p.result(t.graph.pick(p.value, q.value), dropped=[len(x.dims) - 1])


def rows_and_indices(t: Translator, x: Tensor, target: Any) -> tuple[Plain, Plain]:
    """x (..,V) and an integer for each of its rows, in the same order."""
    if isinstance(target, torch.Tensor):
        target = constant_integers(t, target)
    y = t.tensor(target)
    if len(y.dims) != len(x.dims) - 1:
        raise Refused(f"targets of shape {shape(y.dims)} for scores of shape {shape(x.dims)}; give class numbers")
    unite_all(x.dims, y.dims)
    classes = real(x.dims[-1])
    unite(tuple(a for d in x.dims for a in leaves(d) if a not in classes), tuple(a for d in y.dims for a in d))
    if isinstance(target, Data) and x.sequence and length(x.axes[0]) == 1:
        unite_single(x, target)
    p, q = t.plain(x), t.plain(t.tensor(target))
    if x.sequence != q.x.sequence:
        raise Refused("scores and targets do not agree about time")
    return p, q


def unite_single(x: Tensor, target: Data) -> None:
    """Of one timestep, whose axis the views of scores and targets may have lost: the targets' last axis of size 1 is time."""
    atoms = [a for axis in target.source for a in leaves(axis) if a.size == 1]
    if not any(a.role == TIME for a in atoms):
        for atom, time in zip(atoms[-1:], x.axes[0], strict=False):
            atom.unite(time)


@op("flip")
def flip(t: Translator, self: Any, dims: Sequence[int]) -> Any:
    x = t.tensor(self)
    for dim in (d % len(x.dims) for d in dims):
        if t.has_time(x, dim):
            p = t.plain(x)
            x = p.result(t.graph.reverse(p.value))
        else:
            x = index_select(t, x, dim, torch.arange(length(x.dims[dim])).flip(0))
    return x


# ---- Reductions -----------------------------------------------------------------------------------------------------


def scalar(value: Value) -> Tensor:
    return Tensor(value, [], [])


def plain_planes(t: Translator, x: Any, count: int) -> Plain:
    """The value whose last `count` axes are PyTorch's last."""
    p = t.plain(x)
    n = len(p.x.dims)
    if n < count or not p.last(*range(n - count, n)):
        raise Refused(f"one of the last {count} axes of {shape(p.x.dims)} is time or batch, so Remat does not have it whole")
    return p


def plain_channels(t: Translator, x: Any) -> Plain:
    """The value in which PyTorch's axis 1 is that of the channels."""
    p = t.plain(x)
    if p.at.get(1) != 1 + p.x.sequence:
        raise Refused(f"axis 1 of {shape(p.x.dims)} is time or batch, not channels")
    return p


@op("amax")
def amax(t: Translator, self: Any, dim: Any = (), keepdim: bool = False) -> Any:
    x = t.tensor(self)
    n = len(x.dims)
    dims = [d % n for d in ([dim] if isinstance(dim, int) else dim)]
    if len(dims) == 1 and t.has_time(x, dims[0]):
        made = over_time(t, x, dims[0], t.graph.max_over_time)
        return with_dims(t, made, [() if i in dims else d for i, d in enumerate(x.dims)]) if keepdim else made
    if dims == [n - 2] and n > 2:
        made = amax(t, transpose(t, x, -2, -1), -1)
        return unsqueeze(t, made, -2) if keepdim else made
    if sorted(dims) != list(range(n - len(dims), n)) or not 1 <= len(dims) <= 2 or n == len(dims):
        raise Refused(f"a maximum over the axes {dims} of {shape(x.dims)}; only over time, or one or two of the last axes")
    plane = unsqueeze(t, x, -2) if len(dims) == 1 else x
    made = OPS["aten::max_pool2d"](t, plane, shape(plane.dims)[-2:])
    return with_dims(t, made, [*x.dims[: n - len(dims)], *[()] * (len(dims) if keepdim else 0)])


def over_time(t: Translator, x: Tensor, dim: int, reduced: Callable[[Value], Value]) -> Tensor:
    """`reduced` (B,C) of a sequence (T,B,C), whose axis `dim` is time."""
    p = t.plain(x)
    if len(p.axes) not in (2, 3):
        raise Refused(f"a reduction over the timesteps of {shape(x.dims)}; only of (time, batch) and (time, batch, features)")
    return Tensor(reduced(p.value), p.axes[1:], [d for i, d in enumerate(x.dims) if i != dim])


@op("cummax")
def cummax(t: Translator, self: Any, dim: int) -> Any:
    x = t.tensor(self)
    if not t.has_time(x, dim % len(x.dims)):
        raise Refused("cummax over another axis than time")
    p = t.plain(x)
    values = p.result(t.graph.running_max(p.value))
    return [values, Missing("the indices of a maximum are not kept", values.dims)]


@op("max")
def maximum(t: Translator, self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        raise Refused("a maximum over all axes")
    if not isinstance(dim, int):
        return OPS["aten::maximum"](t, self, dim)
    values = amax(t, self, dim, keepdim)
    return [values, Missing("the indices of a maximum are not kept", values.dims)]


@op("mean")
def mean(t: Translator, self: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    x = t.tensor(self)
    return x if not x.dims else averaged(t, x, reduced_axes(x, dim), keepdim)


def averaged(t: Translator, x: Tensor, dims: list[int], keepdim: bool = False) -> Tensor:
    """A mean is one layer, or the sum over all axes and one division: each rounding would be the same for all gradients."""
    if len(dims) < len(x.dims):
        made = reduced_by(t, *apart(x, dims), t.graph.mean, t.graph.mean_over_time)
    elif x.sequence:
        count = torch.tensor(float(reduced_size(x, None)))
        made = t.broadcast(t.graph.div, sum_of_all(t, x), count)
    else:
        p = t.plain(x)
        made = scalar(t.graph.mean(p.value, len(p.axes)))
    return kept_axes(t, x, made, dims) if keepdim else made


@op("sum")
def total(t: Translator, self: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    x = t.tensor(self)
    if not x.dims:
        return x
    dims = reduced_axes(x, dim)
    made = reduced_by(t, *apart(x, dims), t.graph.sum, t.graph.sum_over_time) if len(dims) < len(x.dims) else sum_of_all(t, x)
    return kept_axes(t, x, made, dims) if keepdim else made


def kept_axes(t: Translator, x: Tensor, made: Tensor, dims: list[int]) -> Any:
    return with_dims(t, made, [() if i in dims else d for i, d in enumerate(x.dims)])


def reduced_axes(x: Any, dim: Any) -> list[int]:
    n = len(dims_of(x))
    return sorted(d % n for d in (range(n) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim))


def apart(x: Tensor, dims: list[int]) -> tuple[Tensor, list[int]]:
    """With an axis for each factor of those axes that time or batch is a factor of, as of (B, T C); and the axes' new numbers."""
    if not x.sequence:
        return x, dims
    split: list[Axis] = []
    found: list[int] = []
    for i, d in enumerate(x.dims):
        factors = leaves(d)
        parts = [(a,) for a in factors] if len(factors) > 1 and (x.time() in factors or x.batch() in factors) and i in dims else [d]
        found += range(len(split), len(split) + len(parts)) if i in dims else []
        split += parts
    return replace(x, dims=split), found


def sum_of_all(t: Translator, x: Tensor) -> Tensor:
    p = t.plain(x)
    value, features = p.value, len(p.axes) - 2 * x.sequence
    if features:
        value = t.graph.sum(value, features)
    return scalar(t.graph.sum(t.graph.sum_over_time(value), 1) if x.sequence else value)


def reduced_by(t: Translator, x: Tensor, dims: list[int], reduce: Any, reduce_time: Any) -> Tensor:
    """The sum or mean over some axes, which are gone: over features first, then over time, then over the batch."""
    n, p = len(x.dims), t.plain(x)
    features = [i for i in dims if i in p.at]
    others = [i for i in dims if i not in p.at]
    if others and features:
        made = reduced_by(t, x, features, reduce, reduce_time)
        return reduced_by(t, made, [i - sum(f < i for f in features) for i in others], reduce, reduce_time)
    time = next((i for i in others if leaves(x.dims[i]) == (x.time(),)), None)
    if time is not None:
        made = over_time(t, x, time, reduce_time)
        rest = [i - (i > time) for i in others if i != time]
        return reduced_by(t, made, rest, reduce, reduce_time) if rest else made
    if features and p.last(*features):
        return p.result(reduce(p.value, len(features)), dropped=features)
    if features and features != list(range(n - len(features), n)):
        moved = permute(t, x, [*(i for i in range(n) if i not in features), *features])
        return reduced_by(t, moved, list(range(n - len(features), n)), reduce, reduce_time)
    raise Refused(f"a sum or mean over the axes {dims} of {shape(x.dims)}; the batch is reduced together with time only")


def reduced_size(x: Any, dim: Any) -> int:
    return math.prod(length(dims_of(x)[i]) for i in reduced_axes(x, dim))


@op("var")
def var(
    t: Translator, self: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, correction: Any = 1
) -> Any:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    count = reduced_size(self, dim)
    divisor = count - (number(correction) or 0 if unbiased is None else float(unbiased))
    if divisor <= 0:
        raise Refused(f"a variance of {count} numbers with the correction {count - divisor:g}")
    x = t.tensor(self)
    return scaled(t, mean(t, power(t, sub(t, x, mean(t, x, dim, True))), dim, keepdim), count / divisor)


@op("std")
def std(
    t: Translator, self: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, correction: Any = 1
) -> Any:
    return unary(t, var(t, self, dim, unbiased, keepdim, correction), t.graph.norm_root)


@op("linalg_vector_norm", "norm")
def norm(t: Translator, self: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    if number(ord) not in (1, 2):
        raise Refused(f"a norm of order {ord}; only 1 and 2 are supported")
    if number(ord) == 1:
        return total(t, absolute(t, self), dim, keepdim)
    return unary(t, total(t, power(t, self), dim, keepdim), t.graph.norm_root)


# ---- Normalisation --------------------------------------------------------------------------------------------------


def ones(t: Translator, like: Any, size: int, number: float) -> Value:
    return weight_of(t, torch.full((size,), float(number)) if like is None else like)  # type: ignore[no-any-return]


@op("layer_norm")
def layer_norm(
    t: Translator, input: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:  # fmt: skip
    if len(normalized_shape) != 1:
        raise Refused(f"layer norm over {list(normalized_shape)}; only over the last axis")
    p, n = plain_planes(t, input, 1), normalized_shape[0]
    return p.result(t.graph.layer_norm(p.value, ones(t, weight, n, 1), bias if bias is None else ones(t, bias, n, 0), eps))


@op("rms_norm")
def rms_norm(t: Translator, input: Any, normalized_shape: Sequence[int], weight: Any = None, eps: Any = None) -> Any:
    if len(normalized_shape) != 1:
        raise Refused(f"RMS norm over {list(normalized_shape)}; only over the last axis")
    p = plain_planes(t, input, 1)
    epsilon = torch.finfo(torch.float32).eps if eps is None else eps
    return p.result(t.graph.rms_norm(p.value, ones(t, weight, normalized_shape[0], 1), epsilon))


@op("group_norm")
def group_norm(
    t: Translator, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:  # fmt: skip
    p = plain_channels(t, input)
    if any(p.x.time() in leaves(d) for d in p.x.dims[1:]):
        raise Refused("it normalizes over time; layer norm of (.., features) normalizes each timestep")
    n = length(p.x.dims[1])
    return p.result(t.graph.group_norm(p.value, num_groups, ones(t, weight, n, 1), ones(t, bias, n, 0), eps))


@op("instance_norm")
def instance_norm(
    t: Translator, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, use_input_stats: bool,
    momentum: float, eps: float, cudnn_enabled: bool = True,
) -> Any:  # fmt: skip
    if running_mean is not None or not use_input_stats:
        raise Refused("instance norm with track_running_stats=True")
    return group_norm(t, input, length(dims_of(input)[1]), weight, bias, eps)


@op("batch_norm")
def batch_norm(
    t: Translator, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
    momentum: float, eps: float, cudnn_enabled: bool = True,
) -> Any:  # fmt: skip
    if not training:
        return frozen_batch_norm(t, input, weight, bias, running_mean, running_var, eps)
    p = plain_channels(t, input)
    gain, shift = weight_of(t, weight), weight_of(t, bias)
    if running_mean is None:  # nobody reads the statistics
        running_mean, running_var = (torch.zeros(length(dims_of(input)[1])) for _ in range(2))
    average, variance = (t.stored(x, statistics=True).value for x in (running_mean, running_var))
    return p.result(t.graph.batch_norm(p.value, gain, shift, average, variance, momentum, eps, False))


def frozen_batch_norm(t: Translator, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, eps: float) -> Tensor:
    """In evaluation mode: (x - mean) weight / sqrt(variance + eps) + bias, for each channel."""
    axes = [1 if i == 1 else 0 for i in range(len(dims_of(x)))]

    def of_channel(value: Any) -> Tensor:
        value = t.tensor(value)
        return with_dims(t, value, [value.dims[0] if axis else () for axis in axes])  # type: ignore[no-any-return]

    scale = unary(t, add(t, t.tensor(variance), eps), t.graph.rsqrt)
    scale = scale if weight is None else mul(t, scale, weight)
    y = mul(t, sub(t, x, of_channel(mean)), of_channel(scale))
    return y if bias is None else add(t, y, of_channel(bias))  # type: ignore[no-any-return]
