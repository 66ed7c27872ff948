"""The recurrences since 2023 as functions of PyTorch tensors, with exact gradients.

    y = remat.functional.selective_scan(u, delta, A_log, B, C, D, z, delta_bias)     # Mamba's

Tensors are float32 on the CPU, with the axes (batch, time, ..), as in flash-linear-attention. A call runs a layer of the C library in
PyTorch's memory; inside `remat.compile` it becomes a layer of the compiled step, within its budget. States start at zero.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import _recurrent
from ._library import check, lib
from .graph import Graph, Value, zeros

__all__ = [
    "causal_conv", "gated_delta_rule", "linear_scan", "m2rnn", "mlstm", "ndm", "rg_lru", "rwkv7", "selective_scan", "slstm", "ssd",
]  # fmt: skip


def selective_scan(
    u: Tensor, delta: Tensor, A_log: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    delta_bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Mamba (Gu and Dao 2023): selective_scan_fn of mamba_ssm with A = -exp(A_log) and delta_softplus=True.

    u, delta, z (B,T,E); A_log (E,N); B, C (B,T,N); D, delta_bias (E) -> (B,T,E). With d = softplus(delta + delta_bias):
    h[e,n] = exp(-d[e] exp(A_log[e,n])) h[e,n] + d[e] B[n] u[e];  y[e] = (C.h[e] + D[e] u[e]) silu(z[e])."""
    return _call("selective_scan", {"u": u, "delta": delta, "A_log": A_log, "B": B, "C": C, "D": D, "z": z, "delta_bias": delta_bias}, like=u)


def ssd(
    x: Tensor, dt: Tensor, A_log: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, dt_bias: Tensor | None = None
) -> Tensor:
    """Mamba-2 (Dao and Gu 2024): mamba_chunk_scan_combined of mamba_ssm with A = -exp(A_log) and dt_softplus=True.

    x (B,T,H,P); dt (B,T,H); A_log, D, dt_bias (H); B, C (B,T,G,N), shared by H/G neighbouring heads -> (B,T,H,P). With
    d = softplus(dt + dt_bias): S = exp(-d exp(A_log)) S + B (d x)^T;  y = S^T C + D x."""
    return _call("ssd", {"x": x, "dt": dt, "A_log": A_log, "B": B, "C": C, "D": D, "dt_bias": dt_bias}, like=x, options=[B.shape[2]])


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, A_log: Tensor | None = None, dt_bias: Tensor | None = None,
    allow_neg_eigval: bool = False,
) -> Tensor:  # fmt: skip
    """Gated DeltaNet (Yang et al. 2024), and Kimi Delta Attention: chunk_gated_delta_rule of flash-linear-attention with
    g = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b) and use_qk_l2norm_in_kernel=True.

    q, k (B,T,G,K), shared by H/G neighbouring heads; v (B,T,H,V); b (B,T,H); A_log (H); a (B,T,H), dt_bias (H), or, with a decay
    for each feature of the keys, a (B,T,H,K), dt_bias (H K) -> (B,T,H,V). With allow_neg_eigval, beta is 2 sigmoid(b)."""
    given = {"q": q, "k": k, "v": v, "a": a, "b": b, "A_log": A_log, "dt_bias": dt_bias}
    return _call("delta_scan", given, like=v, options=[q.shape[2], int(allow_neg_eigval)])


def mlstm(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
    """xLSTM's mLSTM (Beck et al. 2024). q, k (B,T,H,K), v (B,T,H,V), i and f, before their gates' activations, (B,T,H) -> (B,T,H,V)."""
    return _call("mlstm", {"q": q, "k": k, "v": v, "i": i, "f": f}, like=v)


def slstm(x: Tensor, r: Tensor, bias: Tensor | None = None) -> Tensor:
    """xLSTM's sLSTM (Beck et al. 2024), after its linear layers: x (B,T,4H) = i, f, z, o side by side; r (heads,4d,d), the rows i, f,
    z, o of each head of d = H/heads units; bias (4H) -> (B,T,H)."""
    return _call("slstm", {"x": x, "r": r, "bias": bias}, like=x[..., : x.shape[-1] // 4])


def rwkv7(r: Tensor, w: Tensor, k: Tensor, v: Tensor, kappa: Tensor, a: Tensor) -> Tensor:
    """RWKV-7 (Peng et al. 2025). r, w, k, kappa, a (B,T,H,K), v (B,T,H,V) -> (B,T,H,V). With u = kappa / max(|kappa|, 1e-12):
    S = exp(-exp(-1/2) sigmoid(w)) S - (u sigmoid(a)) (S^T u)^T + k v^T;  y = S^T r."""
    return _call("rwkv7", {"r": r, "w": w, "k": k, "v": v, "kappa": kappa, "a": a}, like=v, options=[v.shape[2]])


def rg_lru(x: Tensor, input_gate: Tensor, recurrent_gate: Tensor, a_param: Tensor) -> Tensor:
    """RG-LRU (De et al. 2024), the recurrence of Griffin and RecurrentGemma. x and the gates, before their sigmoids, (B,T,C); a_param
    (C) -> (B,T,C). a = exp(-8 sigmoid(recurrent_gate) softplus(a_param));  h = a h + sqrt(1 - a^2) sigmoid(input_gate) x."""
    return _call("rg_lru", {"x": x, "input_gate": input_gate, "recurrent_gate": recurrent_gate, "a_param": a_param}, like=x)


def m2rnn(q: Tensor, k: Tensor, v: Tensor, f: Tensor, w: Tensor) -> Tensor:
    """M2RNN (2026). q, k (B,T,H,K), v (B,T,H,V), f (B,T,H), usually a sigmoid, w (H,V,V) -> (B,T,H,V).
    Z = tanh(S w + k v^T);  S = f S + (1 - f) Z;  y = S^T q."""
    return _call("m2rnn", {"q": q, "k": k, "v": v, "f": f, "w": w}, like=v)


def ndm(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """NDM (2026). q, k (B,T,H,K), usually of norm 1, v (B,T,H,V), g (B,T,H) -> (B,T,H,V).
    S = tanh(exp(g) S + k (v - S^T k)^T);  y = S^T q."""
    return _call("ndm", {"q": q, "k": k, "v": v, "g": g}, like=v)


def linear_scan(a: Tensor, b: Tensor) -> Tensor:
    """y[t] = a[t] y[t-1] + b[t], element-wise; a and b (B,T,..)."""
    return _call("linear_scan", {"a": a, "b": b}, like=b)


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A depthwise convolution over time that reads x[t-k+1] to x[t]: causal_conv1d. x (B,T,C), weight (C,1,k) or (C,k), 2 <= k <= 16,
    bias (C) -> (B,T,C)."""
    weight = weight if weight.dim() == 3 else weight.unsqueeze(1)
    return _call("causal_conv", {"x": x, "weight": weight, "bias": bias}, like=x)


# ---- What a call says to PyTorch: one operator for all layers ---------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """A builder of the graph, its arguments by name ("": absent), and its last arguments, which are numbers."""

    name: str
    arguments: tuple[str, ...]
    options: tuple[int, ...] = ()

    def __str__(self) -> str:
        return " ".join([self.name, ",".join(self.arguments), *map(str, self.options)])

    @staticmethod
    @functools.cache
    def of(text: str) -> Layer:
        name, arguments, *options = text.split()
        return Layer(name, tuple(arguments.split(",")), tuple(map(int, options)))

    def given(self) -> list[tuple[str, bool]]:
        """The names of the arguments that are given, and whether it is a weight: it has no time axis."""
        return [(name, i in _WEIGHTS.get(self.name, ())) for i, name in enumerate(self.arguments) if name]

    def build(self, graph: Graph, given: Iterable[Value]) -> Value:
        """The layer of sequences (T,B,C) and weights."""
        rest = iter(given)
        arguments = [next(rest) if name else None for name in self.arguments]
        return getattr(graph, self.name)(*arguments, *self.options)  # type: ignore[no-any-return]


_WEIGHTS = {
    "selective_scan": (2, 5, 7), "ssd": (2, 5, 6), "delta_scan": (5, 6), "slstm": (1, 2), "rg_lru": (3,), "m2rnn": (4,), "causal_conv": (1, 2),
}  # fmt: skip


def _call(name: str, arguments: dict[str, Tensor | None], like: Tensor, options: Sequence[int] = ()) -> Tensor:
    """name: of the builder. like: a tensor with the result's axes."""
    layer = Layer(name, tuple("" if x is None else key for key, x in arguments.items()), tuple(options))
    arranged: list[Tensor] = []
    for (key, is_weight), x in zip(layer.given(), (x for x in arguments.values() if x is not None), strict=True):
        _recurrent.check_tensor(key, x, torch.is_autocast_enabled("cpu"))
        if not is_weight and (x.dim() < 2 or x.shape[:2] != like.shape[:2]):
            raise ValueError(f"{key} has the shape {tuple(x.shape)}; its first axes are batch and time: give {tuple(like.shape[:2])}")
        arranged.append((x if is_weight else _side_by_side(x)).contiguous())
    keeps = torch.is_grad_enabled() and any(x.requires_grad for x in arranged)
    axes = like.shape[2:]
    y: Tensor = torch.ops.remat.layer(str(layer), arranged, axes.numel(), keeps)[0]
    return y.reshape(*y.shape[:2], *axes).transpose(0, 1)


def _side_by_side(x: Tensor) -> Tensor:
    """(T,B,C) of (B,T,..)."""
    x = x.transpose(0, 1)
    return x.flatten(2) if x.dim() > 3 else x if x.dim() == 3 else x.unsqueeze(2)


# ---- Sessions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shaped:
    """A layer whose arguments have these axes: those of a sequence after time and batch."""

    layer: Layer
    axes: tuple[tuple[int, ...], ...]

    def weights(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(name, axes) for (name, is_weight), axes in zip(self.layer.given(), self.axes, strict=True) if is_weight]

    def head(self) -> list[tuple[str, tuple[int, ...]]]:
        return []

    def built(self, shape: _recurrent.Shape) -> _recurrent.Built:
        graph, given = Graph(), []
        names: tuple[list[str], list[str]] = ([], [])
        for (name, is_weight), axes in zip(self.layer.given(), self.axes, strict=True):
            names[is_weight].append(name)
            if is_weight:
                given.append(graph.param(name, axes, zeros()))
            else:
                x = graph.input(name, "f32", "sequence", (shape.timesteps, shape.rows, *axes))
                given.append(graph.requires_grad(x) if shape.trains else x)
        return _recurrent.Built(graph, [self.layer.build(graph, given)], *names, [*names[0], *names[1]])


_pools: dict[_Shaped, _recurrent.Pool] = {}
_lock = threading.Lock()


def _pool(layer: str, given: Sequence[Tensor]) -> _recurrent.Pool:
    of = Layer.of(layer)
    axes = (tuple(x.shape if is_weight else x.shape[2:]) for x, (_, is_weight) in zip(given, of.given(), strict=True))
    shaped = _Shaped(of, tuple(axes))
    with _lock:
        if shaped not in _pools:
            _pools[shaped] = _recurrent.Pool(shaped, None, None)
        return _pools[shaped]


def _addresses(layer: str, tensors: Sequence[Tensor]) -> tuple[list[int], list[int]]:
    """Those of sequences, and those of weights."""
    parts: tuple[list[int], list[int]] = ([], [])
    for x, (_, is_weight) in zip(tensors, Layer.of(layer).given(), strict=True):
        parts[is_weight].append(x.data_ptr())
    return parts


def _shape(x: Tensor, trains: bool) -> _recurrent.Shape:
    return _recurrent.Shape(x.shape[0], x.shape[1], trains, False, trains, torch.get_num_threads())


def _forward(p: _recurrent.Prepared, layer: str, given: Sequence[Tensor], width: int) -> Tensor:
    y = given[0].new_empty(*given[0].shape[:2], width)
    sequences, weights = _addresses(layer, given)
    p.lend(_recurrent.Kind.INPUT, "inputs", sequences)
    p.lend(_recurrent.Kind.PARAM, "parameters", weights)
    p.lend(_recurrent.Kind.OUTPUT, "outputs", [y.data_ptr()])
    check(lib.remat_forward(p.pointer) if p.shape.trains else lib.remat_evaluate(p.pointer, None))
    p.seen = (*sequences, *weights)
    return y


@torch.library.custom_op("remat::layer", mutates_args=())
def run(layer: str, given: Sequence[Tensor], width: int, keeps: bool) -> tuple[Tensor, Tensor]:
    """given: contiguous sequences (T,B,C) and weights -> y (T,B,width) and a ticket. keeps: backward will follow."""
    pool = _pool(layer, given)
    ticket = torch.zeros(1 if keeps else 0, dtype=torch.uint8)
    prepared = pool.take(_shape(given[0], keeps))
    try:
        y = _forward(prepared, layer, given, width)
    except BaseException:
        pool.give(prepared)
        raise
    pool.give(prepared, ticket if keeps else None)
    return y, ticket


@run.register_fake
def _(layer: str, given: Sequence[Tensor], width: int, keeps: bool) -> tuple[Tensor, Tensor]:
    y = given[0].new_empty(given[0].shape[0], given[0].shape[1], width)
    return y, torch.empty(1 if keeps else 0, dtype=torch.uint8, device=y.device)


@torch.library.custom_op("remat::layer_backward", mutates_args=())
def run_backward(layer: str, given: Sequence[Tensor], dy: Tensor, ticket: Tensor) -> list[Tensor]:
    """The gradients of what was given."""
    pool = _pool(layer, given)
    gradients = [torch.empty_like(x) for x in given]
    sequences, weights = _addresses(layer, given)
    found = pool.find(ticket, (*sequences, *weights))
    prepared = found or pool.take(_shape(given[0], True))
    try:
        if not found:
            pool.repeated += 1
            _forward(prepared, layer, given, dy.shape[2])
        to_sequences, to_weights = _addresses(layer, gradients)
        prepared.lend(_recurrent.Kind.GRADIENT, "gradients", [*to_sequences, *to_weights])
        prepared.lend(_recurrent.Kind.OUTPUT_GRADIENT, "output_gradients", [dy.data_ptr()])
        check(lib.remat_backward(prepared.pointer, None))
    finally:
        prepared.lease = None
        pool.give(prepared)
    return gradients


@run_backward.register_fake
def _(layer: str, given: Sequence[Tensor], dy: Tensor, ticket: Tensor) -> list[Tensor]:
    return [torch.empty_like(x) for x in given]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.layer = inputs[0]
    ctx.save_for_backward(output[1], *inputs[1])


def _differentiate(ctx: Any, dy: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    ticket, *given = ctx.saved_tensors
    return None, torch.ops.remat.layer_backward(ctx.layer, given, dy.contiguous(), ticket), None, None


run.register_autograd(_differentiate, setup_context=_save)
run_backward.register_autograd(_recurrent.refuse_second_derivative)
run.register_autocast("cpu", torch.float32)
