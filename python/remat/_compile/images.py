"""Ops of images and signals: convolutions, pools, padding, and changes of size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..graph import Value
from .capture import op_name
from .ops import add, amax, cat, dims_of, flatten, plain_planes, slice_, squeeze, transpose, unflatten, unsqueeze, weight_of, with_dims
from .tensors import Missing, Refused, Tensor, length, shape
from .translate import Plain, Translator, op


def pair(x: Any) -> list[int]:
    return [int(x)] * 2 if isinstance(x, int) else [int(n) for n in (list(x) * 2 if len(x) == 1 else x)]


def planes(p: Plain, value: Value, channels: bool = True) -> Tensor:
    """A result with new channels and planes: the last axes of `value`."""
    n, m = len(p.x.dims), len(p.axes)
    count = m - 2 if p.x.sequence else m - 1
    axes = [-i for i in range(1, count + 1)][: 3 if channels else 2]
    return p.result(value, {n + i: value.shape[i] for i in axes})


@op("conv2d")
def conv2d(
    t: Translator, input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Any:  # fmt: skip
    p = plain_planes(t, input, 3)
    w, b = weight_of(t, weight), weight_of(t, bias)
    x, padding = padded(t, p.value, padding, [(k - 1) * d for k, d in zip(w.shape[2:], pair(dilation), strict=True)])
    return planes(p, t.graph.conv2d(x, w, b, pair(stride), padding, pair(dilation), groups))


def padded(t: Translator, x: Value, padding: Any, same: list[int]) -> tuple[Value, list[int]]:
    """"same" pads by `same` in all; an odd number pads one more at the end, which a layer of its own does."""
    if padding != "same":
        return x, [0, 0] if padding == "valid" else pair(padding)
    before = [n // 2 for n in same]
    if any(n % 2 for n in same):
        return t.graph.pad2d(x, before, [n - b for n, b in zip(same, before, strict=True)]), [0, 0]
    return x, before


@op("conv1d")
def conv1d(
    t: Translator, input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Any:  # fmt: skip
    p = plain_planes(t, input, 2)
    w, b = weight_of(t, weight), weight_of(t, bias)
    padding = padding if isinstance(padding, str) else [0, pair(padding)[0]]
    x, padding = padded(t, p.value, padding, [0, (w.shape[2] - 1) * pair(dilation)[0]])
    value = t.graph.conv1d(x, w, b, pair(stride)[0], padding[1], pair(dilation)[0], groups)
    n = len(p.x.dims)
    return p.result(value, {n - 2: value.shape[-2], n - 1: value.shape[-1]})


@op("conv_transpose2d")
def conv_transpose2d(
    t: Translator, input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Any:  # fmt: skip
    p = plain_planes(t, input, 3)
    value = t.graph.conv_transpose2d(
        p.value, weight_of(t, weight), weight_of(t, bias), pair(stride), pair(padding), pair(output_padding), groups, pair(dilation)
    )
    return planes(p, value)


@op("conv_transpose1d")
def conv_transpose1d(
    t: Translator, input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Any:  # fmt: skip
    of_row = [[first, pair(x)[0]] for first, x in ((1, stride), (0, padding), (0, output_padding), (1, dilation))]
    x, w = unsqueeze(t, input, -2), unsqueeze(t, weight, -2)
    return squeeze(t, conv_transpose2d(t, x, w, bias, *of_row[:3], groups, of_row[3]), -2)


@op("im2col")
def im2col(t: Translator, self: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """nn.Unfold: a convolution whose filters copy one pixel each."""
    channels, window = shape(dims_of(self))[-3], pair(kernel_size)
    made = conv2d(t, self, copies(channels, window), None, stride, padding, dilation, channels)
    return flatten(t, made, -2)


@op("col2im")
def col2im(
    t: Translator, self: Any, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> Any:
    """nn.Fold: the transpose of im2col."""
    window, apart, around, step = pair(kernel_size), pair(dilation), pair(padding), pair(stride)
    channels = shape(dims_of(self))[-2] // math.prod(window)
    reach = [n + 2 * a - d * (w - 1) - 1 for n, a, d, w in zip(pair(output_size), around, apart, window, strict=True)]
    x = unflatten(t, self, -1, [r // s + 1 for r, s in zip(reach, step, strict=True)])
    over = [r % s for r, s in zip(reach, step, strict=True)]
    return conv_transpose2d(t, x, copies(channels, window), None, step, around, over, channels, apart)


def copies(channels: int, window: Sequence[int]) -> torch.Tensor:
    size = math.prod(window)
    return torch.eye(size).reshape(size, 1, *window).repeat(channels, 1, 1, 1)


@op("max_pool2d")
def max_pool2d(
    t: Translator, self: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:  # fmt: skip
    if pair(dilation) != [1, 1]:
        raise Refused("dilation is not supported")
    window, step, around = pair(kernel_size), pair(stride) if stride else pair(kernel_size), pair(padding)
    p = plain_planes(t, self, 2)
    value = p.value
    over = past_the_end(p.value.shape[-2:], window, step, around) if ceil_mode else [0, 0]
    if any(over):
        assert t.node is not None
        if any(around) or not is_never_negative(t.node.args[0]):
            raise Refused("ceil_mode needs values that are never negative, such as those of a ReLU, and padding=0")
        value = t.graph.pad2d(value, [0, 0], over)
    return planes(p, t.graph.max_pool2d(value, window, step, around), channels=False)


def past_the_end(sizes: Sequence[int], window: Sequence[int], step: Sequence[int], around: Sequence[int]) -> list[int]:
    """How far ceil_mode's last windows reach past the padded planes; windows that begin there do not count."""
    over = [-(n + 2 * a - w) % s for n, w, s, a in zip(sizes, window, step, around, strict=True)]
    return [0 if w - o <= a else o for o, w, a in zip(over, window, around, strict=True)]


def is_never_negative(node: Any) -> bool:
    """A zero beside such values changes neither a maximum nor its gradient: a ReLU has none at its zeros."""
    name = op_name(node).removesuffix("_")
    if name in ("aten::cat", "aten::max_pool2d", "aten::dropout"):
        return all(is_never_negative(n) for n in node.all_input_nodes)
    return name == "aten::relu"


@op("max_pool1d", "max_pool1d_with_indices")
def max_pool1d(
    t: Translator, self: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:  # fmt: skip
    if ceil_mode:
        raise Refused("ceil_mode is not supported")
    row = [[1, pair(kernel_size)[0]], [1, pair(stride or kernel_size)[0]], [0, pair(padding)[0]]]
    return squeeze(t, max_pool2d(t, unsqueeze(t, self, -2), *row, dilation), -2)


@op("adaptive_max_pool2d", "adaptive_max_pool1d")
def adaptive_max_pool(t: Translator, self: Any, output_size: Any) -> Any:
    n = len(t.node.args[0].meta["val"].shape) if t.node else 0  # type: ignore[union-attr]
    sizes = output_size if isinstance(output_size, list | tuple) else [output_size]
    if any(s != 1 for s in sizes):
        raise Refused(f"a maximum of planes to {list(sizes)}; only to 1")
    axes = [-2, -1] if "2d" in str(t.node.target if t.node else "") else [n - 1]
    made = amax(t, self, axes, True)
    return [made, Missing("the indices of a maximum are not kept", made.dims)]


@op("avg_pool2d")
def avg_pool2d(
    t: Translator, self: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = None,
) -> Any:  # fmt: skip
    if ceil_mode or divisor_override or (not count_include_pad and any(pair(padding))):
        raise Refused("ceil_mode, divisor_override and count_include_pad=False are not supported")
    p = plain_planes(t, self, 2)
    value = t.graph.avg_pool2d(p.value, pair(kernel_size), pair(stride) if stride else None, pair(padding))
    return planes(p, value, channels=False)


@op("avg_pool1d")
def avg_pool1d(
    t: Translator, self: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:  # fmt: skip
    row = [[1, pair(kernel_size)[0]], [1, pair(stride or kernel_size)[0]], [0, pair(padding)[0]]]
    return squeeze(t, avg_pool2d(t, unsqueeze(t, self, -2), *row, ceil_mode, count_include_pad), -2)


@op("adaptive_avg_pool2d", "_adaptive_avg_pool2d")
def adaptive_avg_pool2d(t: Translator, self: Any, output_size: Any) -> Any:
    p = plain_planes(t, self, 2)
    have, want = [length(d) for d in p.x.dims[-2:]], pair(output_size)
    if have == want:
        return p.x
    if all(w % h == 0 for h, w in zip(have, want, strict=True)):
        scale = [w // h for h, w in zip(have, want, strict=True)]
        return planes(p, t.graph.upsample2d(p.value, scale, "nearest"), channels=False)
    if want == [1, 1]:
        made = p.result(t.graph.mean(p.value, 2), dropped=[len(p.x.dims) - 2, len(p.x.dims) - 1])
        return with_dims(t, made, [*made.dims, (), ()])
    if any(h % w for h, w in zip(have, want, strict=True)):
        raise Refused(f"planes of {have} are averaged to {want}, which does not divide them")
    return avg_pool2d(t, self, [h // w for h, w in zip(have, want, strict=True)])


@op("adaptive_avg_pool1d")
def adaptive_avg_pool1d(t: Translator, self: Any, output_size: Sequence[int]) -> Any:
    return squeeze(t, adaptive_avg_pool2d(t, unsqueeze(t, self, -2), [1, *output_size]), -2)


@op("upsample_nearest2d", "upsample_bilinear2d")
def upsample(t: Translator, input: Any, output_size: Any, *rest: Any, **named: Any) -> Any:
    assert t.node is not None
    p = plain_planes(t, input, 2)
    made = t.sizes(t.node.meta["val"])[-2:]
    have = [length(d) for d in p.x.dims[-2:]]
    if len(t.node.meta["val"].shape) < len(p.x.dims):  # rows
        made = (1, made[-1])
    scale = [n // h for n, h in zip(made, have, strict=True)]
    if [s * h for s, h in zip(scale, have, strict=True)] != list(made):
        raise Refused(f"planes of {have} are resized to {list(made)}; only whole factors are supported")
    bilinear = "bilinear_corners" if rest and rest[0] is True else "bilinear"
    factors = [f for x in (*rest, *named.values()) if x is not None for f in (x if isinstance(x, list | tuple) else [x])]
    own = [f for f in factors if isinstance(f, float) and f not in scale]
    if own and bilinear != "bilinear_corners":  # PyTorch finds neighbours by the factor, although sizes are rounded
        raise Refused(f"planes of {have} become {list(made)} by the factor {own[0]}; give size=.. or recompute_scale_factor=True")
    mode: Any = bilinear if "bilinear" in str(t.node.target) else "nearest"
    return planes(p, t.graph.upsample2d(p.value, scale, mode), channels=False)


@op("upsample_nearest1d")
def upsample_nearest1d(t: Translator, input: Any, output_size: Any, *rest: Any, **named: Any) -> Any:
    return squeeze(t, upsample(t, unsqueeze(t, input, -2), output_size, *rest, **named), -2)


@op("pad", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d")
def pad_with(t: Translator, self: Any, pad: Sequence[int], mode: str | None = None, value: Any = None) -> Any:
    name = op_name(t.node) if t.node else ""
    mode = "reflect" if "reflection" in name else "replicate" if "replication" in name else mode or "constant"
    if not any(pad):
        return self
    if min(pad) < 0:
        for i in range(0, len(pad), 2):
            self = slice_(t, self, -1 - i // 2, max(0, -pad[i]), length(dims_of(self)[-1 - i // 2]) + min(0, pad[i + 1]))
        pad = [max(0, n) for n in pad]
    if any(pad[4:]) and mode != "constant":
        raise Refused(f"padding {list(pad)} by {mode}; only around the last two axes")
    for i in range(4, len(pad), 2):
        moved = pad_with(t, transpose(t, self, -1, -1 - i // 2), pad[i : i + 2], mode, value)
        self = transpose(t, moved, -1, -1 - i // 2)
    pad = pad[:4]
    left, right, top, bottom = [*pad, 0, 0][:4]
    if mode != "constant":
        return bordered(t, bordered(t, self, -1, left, right, mode), -2, top, bottom, mode)
    if not any(pad[2:]) and len(dims_of(self)) > 1 and length(dims_of(self)[-2]) > 1 and t.tensor(self).sequence:  # the axis before may be time
        return squeeze(t, pad_with(t, unsqueeze(t, self, -2), [left, right], mode, value), -2)
    p = plain_planes(t, self, 2 if len(pad) > 2 or len(dims_of(self)) > 2 else 1)
    made = planes(p, t.graph.pad2d(p.value, [top, left], [bottom, right]), channels=False)
    if not value:
        return made
    inside = torch.zeros(shape(dims_of(self))[-2:] if len(pad) > 2 else shape(dims_of(self))[-1:])
    return add(t, made, torch.nn.functional.pad(inside, list(pad), value=value))


def bordered(t: Translator, x: Any, dim: int, before: int, after: int, mode: str) -> Any:
    """With `before` elements in front of an axis and `after` behind it, which are its own."""
    if not before and not after:
        return x
    n = length(dims_of(x)[dim])
    if mode == "circular":
        borders = [[range(n - before, n)], [range(after)]]
    elif mode == "replicate":
        borders = [[range(1)] * before, [range(n - 1, n)] * after]
    else:
        borders = [[range(i, i + 1) for i in range(before, 0, -1)], [range(n - i, n - i + 1) for i in range(2, after + 2)]]
    first, last = ([slice_(t, x, dim, r.start, r.stop) for r in parts if r] for parts in borders)
    return cat(t, [*([cat(t, first, dim)] if first else []), x, *([cat(t, last, dim)] if last else [])], dim)
