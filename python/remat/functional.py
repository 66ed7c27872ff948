"""The recurrences since 2023 as functions of PyTorch tensors, with exact gradients.

    y = remat.functional.selective_scan(u, delta, A_log, B, C, D, z, delta_bias)     # Mamba's

Tensors are float32 on the CPU, with the axes (batch, time, ..), as in flash-linear-attention. A call runs a layer of the C library in
PyTorch's memory; inside `remat.compile` it becomes a layer of the compiled step, within its budget.

States start at zero, or with `initial_state`, a tensor, or several as a tuple. With `output_final_state=True` the result is y and the
states after the last timestep, which continue the sequence. Both have gradients.
"""

from __future__ import annotations

import ast
import functools
import threading
from collections.abc import Mapping, Sequence
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
    delta_bias: Tensor | None = None, *, initial_state: Tensor | None = None, output_final_state: bool = False,
) -> Any:  # fmt: skip
    """Mamba (Gu and Dao 2023): selective_scan_fn of mamba_ssm with A = -exp(A_log) and delta_softplus=True.

    u, delta, z (B,T,E); A_log (E,N); B, C (B,T,N); D, delta_bias (E) -> (B,T,E). With d = softplus(delta + delta_bias):
    h[e,n] = exp(-d[e] exp(A_log[e,n])) h[e,n] + d[e] B[n] u[e];  y[e] = (C.h[e] + D[e] u[e]) silu(z[e]). The state is h (B,E,N)."""
    given = {"u": u, "delta": delta, "A_log": A_log, "B": B, "C": C, "D": D, "z": z, "delta_bias": delta_bias}
    return _call("selective_scan", given, u, [A_log.shape], (), initial_state, output_final_state)


def ssd(
    x: Tensor, dt: Tensor, A_log: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, dt_bias: Tensor | None = None, *,
    initial_state: Tensor | None = None, output_final_state: bool = False,
) -> Any:  # fmt: skip
    """Mamba-2 (Dao and Gu 2024): mamba_chunk_scan_combined of mamba_ssm with A = -exp(A_log) and dt_softplus=True.

    x (B,T,H,P); dt (B,T,H); A_log, D, dt_bias (H); B, C (B,T,G,N), shared by H/G neighbouring heads -> (B,T,H,P). With
    d = softplus(dt + dt_bias): S = exp(-d exp(A_log)) S + B (d x)^T;  y = S^T C + D x. The state is S (B,H,N,P), the transpose of
    mamba_ssm's."""
    given = {"x": x, "dt": dt, "A_log": A_log, "B": B, "C": C, "D": D, "dt_bias": dt_bias}
    return _call("ssd", given, x, _heads(x, B, x), [B.shape[2]], initial_state, output_final_state)


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, A_log: Tensor | None = None, dt_bias: Tensor | None = None,
    allow_neg_eigval: bool = False, *, initial_state: Tensor | None = None, output_final_state: bool = False,
) -> Any:  # fmt: skip
    """Gated DeltaNet (Yang et al. 2024), and Kimi Delta Attention: chunk_gated_delta_rule of flash-linear-attention with
    g = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b) and use_qk_l2norm_in_kernel=True.

    q, k (B,T,G,K), shared by H/G neighbouring heads; v (B,T,H,V); b (B,T,H); A_log (H); a (B,T,H), dt_bias (H), or, with a decay
    for each feature of the keys, a (B,T,H,K), dt_bias (H K) -> (B,T,H,V). With allow_neg_eigval, beta is 2 sigmoid(b). The state is S
    (B,H,K,V)."""
    given = {"q": q, "k": k, "v": v, "a": a, "b": b, "A_log": A_log, "dt_bias": dt_bias}
    options = [q.shape[2], int(allow_neg_eigval)]
    return _call("delta_scan", given, v, _heads(v, q, v), options, initial_state, output_final_state)


def mlstm(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, *, initial_state: Sequence[Tensor] | None = None,
    output_final_state: bool = False,
) -> Any:  # fmt: skip
    """xLSTM's mLSTM (Beck et al. 2024). q, k (B,T,H,K), v (B,T,H,V), i and f, before their gates' activations, (B,T,H) -> (B,T,H,V).
    The states are C (B,H,K,V), n (B,H,K) and m (B,H)."""
    given = {"q": q, "k": k, "v": v, "i": i, "f": f}
    states = [*_heads(v, q, v), (v.shape[2], q.shape[3]), (v.shape[2],)]
    return _call("mlstm", given, v, states, (), initial_state, output_final_state)


def slstm(
    x: Tensor, r: Tensor, bias: Tensor | None = None, *, initial_state: Sequence[Tensor] | None = None,
    output_final_state: bool = False,
) -> Any:  # fmt: skip
    """xLSTM's sLSTM (Beck et al. 2024), after its linear layers: x (B,T,4H) = i, f, z, o side by side; r (heads,4d,d), the rows i, f,
    z, o of each head of d = H/heads units; bias (4H) -> (B,T,H). The states are y, c, n and m (B,H) each."""
    width = x.shape[-1] // 4
    return _call("slstm", {"x": x, "r": r, "bias": bias}, x[..., :width], 4 * [(width,)], (), initial_state, output_final_state)


def rwkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, kappa: Tensor, a: Tensor, *, initial_state: Tensor | None = None,
    output_final_state: bool = False,
) -> Any:  # fmt: skip
    """RWKV-7 (Peng et al. 2025). r, w, k, kappa, a (B,T,H,K), v (B,T,H,V) -> (B,T,H,V). With u = kappa / max(|kappa|, 1e-12):
    S = exp(-exp(-1/2) sigmoid(w)) S - (u sigmoid(a)) (S^T u)^T + k v^T;  y = S^T r. The state is S (B,H,K,V), the transpose of
    RWKV's."""
    given = {"r": r, "w": w, "k": k, "v": v, "kappa": kappa, "a": a}
    return _call("rwkv7", given, v, _heads(v, r, v), [v.shape[2]], initial_state, output_final_state)


def rg_lru(x: Tensor, input_gate: Tensor, recurrent_gate: Tensor, a_param: Tensor) -> Tensor:
    """RG-LRU (De et al. 2024), the recurrence of Griffin and RecurrentGemma. x and the gates, before their sigmoids, (B,T,C); a_param
    (C) -> (B,T,C). a = exp(-8 sigmoid(recurrent_gate) softplus(a_param));  h = a h + sqrt(1 - a^2) sigmoid(input_gate) x, and
    at the first timestep h = sigmoid(input_gate) x. It takes and returns no states."""
    y: Tensor = _call("rg_lru", {"x": x, "input_gate": input_gate, "recurrent_gate": recurrent_gate, "a_param": a_param}, x)
    return y


def m2rnn(
    q: Tensor, k: Tensor, v: Tensor, f: Tensor, w: Tensor, *, initial_state: Tensor | None = None, output_final_state: bool = False
) -> Any:
    """M2RNN (2026). q, k (B,T,H,K), v (B,T,H,V), f (B,T,H), usually a sigmoid, w (H,V,V) -> (B,T,H,V).
    Z = tanh(S w + k v^T);  S = f S + (1 - f) Z;  y = S^T q. The state is S (B,H,K,V)."""
    given = {"q": q, "k": k, "v": v, "f": f, "w": w}
    return _call("m2rnn", given, v, _heads(v, q, v), (), initial_state, output_final_state)


def ndm(q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, initial_state: Tensor | None = None, output_final_state: bool = False) -> Any:
    """NDM (2026). q, k (B,T,H,K), usually of norm 1, v (B,T,H,V), g (B,T,H) -> (B,T,H,V).
    S = tanh(exp(g) S + k (v - S^T k)^T);  y = S^T q. The state is S (B,H,K,V)."""
    return _call("ndm", {"q": q, "k": k, "v": v, "g": g}, v, _heads(v, q, v), (), initial_state, output_final_state)


def linear_scan(a: Tensor, b: Tensor, *, initial_state: Tensor | None = None, output_final_state: bool = False) -> Any:
    """y[t] = a[t] y[t-1] + b[t], element-wise; a and b (B,T,..). The state is y (B,..)."""
    return _call("linear_scan", {"a": a, "b": b}, b, [b.shape[2:]], (), initial_state, output_final_state)


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A depthwise convolution over time that reads x[t-k+1] to x[t]: causal_conv1d. x (B,T,C), weight (C,1,k) or (C,k), 2 <= k <= 16,
    bias (C) -> (B,T,C)."""
    weight = weight if weight.dim() == 3 else weight.unsqueeze(1)
    y: Tensor = _call("causal_conv", {"x": x, "weight": weight, "bias": bias}, x)
    return y


def _heads(like: Tensor, k: Tensor, v: Tensor) -> list[tuple[int, ...]]:
    """The axes of a matrix for each head."""
    for x in (like, k, v):
        if x.dim() != 4:
            raise ValueError(f"a tensor has the shape {tuple(x.shape)}; give (batch, time, heads, width)")
    return [(like.shape[2], k.shape[3], v.shape[3])]


# ---- What a call says to PyTorch: one operator for all layers ---------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """A builder of the graph, its arguments by name ("": absent), and its last arguments, which are numbers. states: the axes of
    the initial ones that are given after the arguments; finals: of those that are returned."""

    name: str
    arguments: tuple[str, ...]
    options: tuple[int, ...] = ()
    states: tuple[tuple[int, ...], ...] = ()
    finals: tuple[tuple[int, ...], ...] = ()

    def __str__(self) -> str:
        return repr((self.name, self.arguments, self.options, self.states, self.finals))

    @staticmethod
    @functools.cache
    def of(text: str) -> Layer:
        return Layer(*ast.literal_eval(text))

    def given(self) -> list[tuple[str, str]]:
        """The name of each array that is given, and its kind: a sequence (T,B,C), a weight, or a state (B,..)."""
        weights = _WEIGHTS.get(self.name, ())
        named = [(name, "weight" if i in weights else "sequence") for i, name in enumerate(self.arguments) if name]
        return named + [(f"initial_state.{k}", "state") for k in range(len(self.states))]

    def build(self, graph: Graph, given: Sequence[Value]) -> tuple[Value, list[Value]]:
        """y, and the final states that are wanted. given: as said above."""
        rest = iter(given)
        y = getattr(graph, self.name)(*(next(rest) if name else None for name in self.arguments), *self.options)
        for k, initial in enumerate(rest):
            graph.initial_state(y, k, initial)
        return y, [graph.final_state(y, k) for k in range(len(self.finals))]


# Which arguments have no time axis.
_WEIGHTS = {
    "selective_scan": (2, 5, 7), "ssd": (2, 5, 6), "delta_scan": (5, 6), "slstm": (1, 2), "rg_lru": (3,), "m2rnn": (4,),
    "causal_conv": (1, 2),
}  # fmt: skip


def _call(
    name: str, arguments: Mapping[str, Tensor | None], like: Tensor, states: Sequence[tuple[int, ...]] = (), options: Sequence[int] = (),
    initial: Any = None, final: bool = False,
) -> Any:  # fmt: skip
    """name: of the builder. like: a tensor with the result's axes. states: the axes of each, after that of the batch."""
    axes = like.shape[2:]
    inner = tuple((axes.numel(),) if name == "linear_scan" else tuple(dims) for dims in states)
    begins = () if initial is None else (initial,) if isinstance(initial, Tensor) else tuple(initial)
    if begins and len(begins) != len(states):
        raise ValueError(f"initial_state has {len(begins)} tensors; give {len(states)}")
    of = tuple("" if x is None else key for key, x in arguments.items())
    layer = Layer(name, of, tuple(options), inner if begins else (), inner if final else ())
    arranged: list[Tensor] = []
    for (key, kind), x in zip(layer.given(), [*(x for x in arguments.values() if x is not None), *begins], strict=True):
        _recurrent.check_tensor(key, x, torch.is_autocast_enabled("cpu"))
        if kind == "sequence" and (x.dim() < 2 or x.shape[:2] != like.shape[:2]):
            raise ValueError(f"{key} has the shape {tuple(x.shape)}; its first axes are batch and time: give {tuple(like.shape[:2])}")
        if kind == "state":
            k = int(key.rpartition(".")[2])
            if x.shape != (like.shape[0], *states[k]):
                raise ValueError(f"{key} has the shape {tuple(x.shape)}; give {(like.shape[0], *states[k])}")
            x = x.reshape(like.shape[0], *inner[k])
        arranged.append((_side_by_side(x) if kind == "sequence" else x).contiguous())
    keeps = torch.is_grad_enabled() and any(x.requires_grad for x in arranged)
    y, _, finals = torch.ops.remat.layer(str(layer), arranged, axes.numel(), keeps)
    y = y.reshape(*y.shape[:2], *axes).transpose(0, 1)
    if not final:
        return y
    ends = tuple(x.reshape(x.shape[0], *dims) for x, dims in zip(finals, states, strict=True))
    return y, ends[0] if len(ends) == 1 else ends


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
        return [(name, axes) for (name, kind), axes in zip(self.layer.given(), self.axes, strict=True) if kind == "weight"]

    def head(self) -> list[tuple[str, tuple[int, ...]]]:
        return []

    def built(self, shape: _recurrent.Shape) -> _recurrent.Built:
        graph, T, B = Graph(), shape.timesteps, shape.rows
        given: list[Value] = []
        inputs: list[str] = []
        weights: list[str] = []
        for (name, kind), axes in zip(self.layer.given(), self.axes, strict=True):
            (weights if kind == "weight" else inputs).append(name)
            if kind == "weight":
                given.append(graph.param(name, axes, zeros()))
                continue
            sequence = kind == "sequence"
            x = graph.input(name, "f32", "sequence" if sequence else "static", (T, B, *axes) if sequence else (B, *axes))
            given.append(graph.requires_grad(x) if shape.trains else x)
        y, finals = self.layer.build(graph, given)
        return _recurrent.Built(graph, [y, *finals], inputs, weights, [*inputs, *weights])


_pools: dict[_Shaped, _recurrent.Pool] = {}
_lock = threading.Lock()
_BEFORE = {"sequence": 2, "state": 1, "weight": 0}  # axes of time and batch


def _pool(layer: str, given: Sequence[Tensor]) -> _recurrent.Pool:
    of = Layer.of(layer)
    shaped = _Shaped(of, tuple(tuple(x.shape[_BEFORE[kind] :]) for x, (_, kind) in zip(given, of.given(), strict=True)))
    with _lock:
        if shaped not in _pools:
            _pools[shaped] = _recurrent.Pool(shaped, None, None)
        return _pools[shaped]


def _addresses(layer: str, tensors: Sequence[Tensor]) -> tuple[list[int], list[int]]:
    """Those of inputs, and those of weights."""
    parts: tuple[list[int], list[int]] = ([], [])
    for x, (_, kind) in zip(tensors, Layer.of(layer).given(), strict=True):
        parts[kind == "weight"].append(x.data_ptr())
    return parts


def _shape(x: Tensor, trains: bool) -> _recurrent.Shape:
    return _recurrent.Shape(x.shape[0], x.shape[1], trains, False, trains, torch.get_num_threads())


def _results(layer: str, given: Sequence[Tensor], width: int) -> tuple[Tensor, list[Tensor]]:
    x = given[0]
    y = x.new_empty(x.shape[0], x.shape[1], width)
    return y, [x.new_empty(x.shape[1], *axes) for axes in Layer.of(layer).finals]


def _forward(p: _recurrent.Prepared, layer: str, given: Sequence[Tensor], width: int) -> tuple[Tensor, list[Tensor]]:
    y, finals = _results(layer, given, width)
    inputs, weights = _addresses(layer, given)
    p.lend(_recurrent.Kind.INPUT, "inputs", inputs)
    p.lend(_recurrent.Kind.PARAM, "parameters", weights)
    p.lend(_recurrent.Kind.OUTPUT, "outputs", [x.data_ptr() for x in (y, *finals)])
    check(lib.remat_forward(p.pointer) if p.shape.trains else lib.remat_evaluate(p.pointer, None))
    p.seen = (*inputs, *weights)
    return y, finals


@torch.library.custom_op("remat::layer", mutates_args=())
def run(layer: str, given: Sequence[Tensor], width: int, keeps: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
    """given: contiguous sequences (T,B,C), weights and states -> y (T,B,width), a ticket, final states. keeps: backward will
    follow."""
    pool = _pool(layer, given)
    ticket = torch.zeros(1 if keeps else 0, dtype=torch.uint8)
    with pool.forward(_shape(given[0], keeps), ticket if keeps else None) as prepared:
        y, finals = _forward(prepared, layer, given, width)
    return y, ticket, finals


@run.register_fake
def _(layer: str, given: Sequence[Tensor], width: int, keeps: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
    y, finals = _results(layer, given, width)
    return y, torch.empty(1 if keeps else 0, dtype=torch.uint8, device=y.device), finals


@torch.library.custom_op("remat::layer_backward", mutates_args=())
def run_backward(layer: str, given: Sequence[Tensor], outer: Sequence[Tensor], ticket: Tensor) -> list[Tensor]:
    """The gradients of what was given. outer: those of the results."""
    _recurrent.check_saved([(name, x.shape) for (name, _), x in zip(Layer.of(layer).given(), given, strict=True)], given)
    pool = _pool(layer, given)
    gradients = [torch.empty_like(x) for x in given]
    inputs, weights = _addresses(layer, given)
    kept: list[Any] = []  # backward reads results, too

    def again(prepared: _recurrent.Prepared) -> None:
        kept.append(_forward(prepared, layer, given, outer[0].shape[2]))

    with pool.backward(_shape(given[0], True), ticket, (*inputs, *weights), again) as prepared:
        to_inputs, to_weights = _addresses(layer, gradients)
        prepared.lend(_recurrent.Kind.GRADIENT, "gradients", [*to_inputs, *to_weights])
        prepared.lend(_recurrent.Kind.OUTPUT_GRADIENT, "output_gradients", [x.data_ptr() for x in outer])
        check(lib.remat_backward(prepared.pointer, None))
    return gradients


@run_backward.register_fake
def _(layer: str, given: Sequence[Tensor], outer: Sequence[Tensor], ticket: Tensor) -> list[Tensor]:
    return [torch.empty_like(x) for x in given]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    ctx.layer, given, _, _ = inputs
    y, ticket, finals = output
    ctx.n_given = len(given)
    ctx.save_for_backward(ticket, *given, y, *finals)  # the session reads results where they lie


def _differentiate(ctx: Any, dy: Tensor, _: Tensor | None, of_finals: list[Tensor]) -> tuple[Any, ...]:
    ticket, *given = ctx.saved_tensors[: 1 + ctx.n_given]
    outer = [d.contiguous() for d in (dy, *of_finals)]
    return None, torch.ops.remat.layer_backward(ctx.layer, given, outer, ticket), None, None


run.register_autograd(_differentiate, setup_context=_save)
run_backward.register_autograd(_recurrent.refuse_second_derivative)
run.register_autocast("cpu", torch.float32)
