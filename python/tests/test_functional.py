"""remat.functional: each recurrence's values and gradients are those of its formula, written as a loop over time in double precision."""

from __future__ import annotations

import gc
import io
import pathlib
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch cannot be imported; name a Python that has it in REMAT_TORCH_PYTHON")

import remat  # noqa: E402
import remat.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402

Function = Callable[..., Tensor]


def loop(steps: int, state: Any, step: Callable[[int, Any], tuple[Tensor, Any]]) -> Tensor:
    """y (B,T,..) of a recurrence."""
    out = []
    for t in range(steps):
        y, state = step(t, state)
        out.append(y)
    return torch.stack(out, 1)


def outer(a: Tensor, b: Tensor) -> Tensor:
    return a[..., :, None] * b[..., None, :]


def read(s: Tensor, q: Tensor) -> Tensor:
    """S^T q of (B,H,K,V)"""
    return torch.einsum("bhkv,bhk->bhv", s, q)


def selective_scan(u: Tensor, delta: Tensor, A_log: Tensor, B: Tensor, C: Tensor, D: Any, z: Any, bias: Any) -> Tensor:
    d = torch.nn.functional.softplus(delta if bias is None else delta + bias)

    def step(t: int, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.exp(-d[:, t, :, None] * A_log.exp()) * h + outer(d[:, t] * u[:, t], B[:, t])
        return torch.einsum("ben,bn->be", h, C[:, t]), h

    y = loop(u.shape[1], u.new_zeros(u.shape[0], *A_log.shape), step)
    y = y if D is None else y + D * u
    return y if z is None else y * torch.nn.functional.silu(z)


def ssd(x: Tensor, dt: Tensor, A_log: Tensor, B: Tensor, C: Tensor, D: Any, bias: Any) -> Tensor:
    heads, groups = x.shape[2], B.shape[2]
    B, C = (m.repeat_interleave(heads // groups, 2) for m in (B, C))
    d = torch.nn.functional.softplus(dt if bias is None else dt + bias)

    def step(t: int, s: Tensor) -> tuple[Tensor, Tensor]:
        s = torch.exp(-d[:, t] * A_log.exp())[..., None, None] * s + outer(B[:, t], d[:, t, :, None] * x[:, t])
        return read(s, C[:, t]), s

    y = loop(x.shape[1], x.new_zeros(x.shape[0], heads, B.shape[3], x.shape[3]), step)
    return y if D is None else y + D[:, None] * x


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, A_log: Any, bias: Any, negative: bool = False) -> Tensor:
    heads = v.shape[2]
    q, k = (m.repeat_interleave(heads // q.shape[2], 2) for m in (q, k))
    q, k = (m / (m.square().sum(-1, keepdim=True) + 1e-6).sqrt() for m in (q, k))
    rate = torch.nn.functional.softplus(a if bias is None else a + bias.view(a.shape[2:]))
    scale = a.new_ones(heads) if A_log is None else A_log.exp()
    decay = torch.exp(-(scale.view(-1, *[1] * (a.dim() - 3)) * rate))
    decay = decay[..., None, None] if a.dim() == 3 else decay[..., None]
    beta = (1 + negative) * torch.sigmoid(b)

    def step(t: int, s: Tensor) -> tuple[Tensor, Tensor]:
        s = decay[:, t] * s
        s = s + outer(k[:, t], beta[:, t, :, None] * (v[:, t] - read(s, k[:, t])))
        return read(s, q[:, t] / q.shape[3] ** 0.5), s

    return loop(v.shape[1], v.new_zeros(v.shape[0], heads, k.shape[3], v.shape[3]), step)


def mlstm(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
    root = q.shape[3] ** 0.5

    def step(t: int, state: Any) -> tuple[Tensor, Any]:
        c, n, m = state
        log_f = torch.nn.functional.logsigmoid(f[:, t])
        new = torch.maximum(log_f + m, i[:, t])
        decay, take = torch.exp(log_f + m - new)[..., None], torch.exp(i[:, t] - new)[..., None]
        c = decay[..., None] * c + take[..., None] * outer(k[:, t], v[:, t])
        n = decay * n + take * k[:, t]
        below = torch.maximum((n * q[:, t]).sum(-1).abs(), torch.exp(-new) * root) + 1e-6 * root
        return read(c, q[:, t]) / below[..., None], (c, n, new)

    (b, _, h, width), deep = q.shape, v.shape[3]
    return loop(q.shape[1], (q.new_zeros(b, h, width, deep), q.new_zeros(b, h, width), q.new_zeros(b, h)), step)


def slstm(x: Tensor, r: Tensor, bias: Any) -> Tensor:
    heads, d = r.shape[0], r.shape[2]
    x = x if bias is None else x + bias

    def step(t: int, state: Any) -> tuple[Tensor, Any]:
        y, c, n, m = state
        back = torch.einsum("hgd,bhd->bhg", r, y.view(-1, heads, d)).view(-1, heads, 4, d).transpose(1, 2).flatten(2)
        i, f, z, o = (x[:, t].view(-1, 4, heads * d) + back).unbind(1)
        log_f = m + torch.nn.functional.logsigmoid(f)
        new = i if t == 0 else torch.maximum(i, log_f)
        take, keep = torch.exp(i - new), torch.exp(log_f - new)
        c, n = keep * c + take * torch.tanh(z), torch.clamp(keep * n + take, min=1)
        y = torch.sigmoid(o) * c / n
        return y, (y, c, n, new)

    zero = x.new_zeros(x.shape[0], heads * d)
    return loop(x.shape[1], (zero, zero, zero, zero), step)


def rwkv7(r: Tensor, w: Tensor, k: Tensor, v: Tensor, kappa: Tensor, a: Tensor) -> Tensor:
    u = torch.nn.functional.normalize(kappa, dim=-1, eps=1e-12)
    decay = torch.exp(-(torch.tensor(-0.5, dtype=r.dtype).exp() * torch.sigmoid(w)))

    def step(t: int, s: Tensor) -> tuple[Tensor, Tensor]:
        s = decay[:, t, ..., None] * s - outer(u[:, t] * torch.sigmoid(a[:, t]), read(s, u[:, t])) + outer(k[:, t], v[:, t])
        return read(s, r[:, t]), s

    return loop(r.shape[1], r.new_zeros(r.shape[0], *r.shape[2:], v.shape[3]), step)


def rg_lru(x: Tensor, input_gate: Tensor, recurrent_gate: Tensor, a_param: Tensor) -> Tensor:
    log_a = -8 * torch.sigmoid(recurrent_gate) * torch.nn.functional.softplus(a_param)
    gated = torch.sigmoid(input_gate) * x

    def step(t: int, h: Tensor) -> tuple[Tensor, Tensor]:
        h = gated[:, t] if t == 0 else log_a[:, t].exp() * h + (1 - (2 * log_a[:, t]).exp()).sqrt() * gated[:, t]
        return h, h

    return loop(x.shape[1], None, step)


def m2rnn(q: Tensor, k: Tensor, v: Tensor, f: Tensor, w: Tensor) -> Tensor:
    def step(t: int, s: Tensor) -> tuple[Tensor, Tensor]:
        keep = f[:, t, :, None, None]
        s = keep * s + (1 - keep) * torch.tanh(s @ w + outer(k[:, t], v[:, t]))
        return read(s, q[:, t]), s

    return loop(q.shape[1], q.new_zeros(q.shape[0], *q.shape[2:], v.shape[3]), step)


def ndm(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    def step(t: int, s: Tensor) -> tuple[Tensor, Tensor]:
        s = torch.tanh(g[:, t].exp()[..., None, None] * s + outer(k[:, t], v[:, t] - read(s, k[:, t])))
        return read(s, q[:, t]), s

    return loop(q.shape[1], q.new_zeros(q.shape[0], *q.shape[2:], v.shape[3]), step)


def linear_scan(a: Tensor, b: Tensor) -> Tensor:
    def step(t: int, y: Tensor) -> tuple[Tensor, Tensor]:
        return (y := a[:, t] * y + b[:, t]), y

    return loop(a.shape[1], torch.zeros_like(b[:, 0]), step)


def causal_conv(x: Tensor, weight: Tensor, bias: Any) -> Tensor:
    taps = weight.shape[-1]
    padded = torch.nn.functional.pad(x.transpose(1, 2), (taps - 1, 0))
    return torch.nn.functional.conv1d(padded, weight.view(-1, 1, taps), bias, groups=x.shape[2]).transpose(1, 2)


T, B = 11, 3
CASES: list[tuple[str, Function, list[tuple[int, ...] | None], dict[str, Any]]] = [
    ("selective_scan", selective_scan, [(B, T, 5), (B, T, 5), (5, 4), (B, T, 4), (B, T, 4), (5,), (B, T, 5), (5,)], {}),
    ("selective_scan", selective_scan, [(B, T, 5), (B, T, 5), (5, 4), (B, T, 4), (B, T, 4), None, (B, T, 5), None], {}),
    ("selective_scan", selective_scan, [(B, T, 5), (B, T, 5), (5, 4), (B, T, 4), (B, T, 4), None, None, None], {}),
    ("ssd", ssd, [(B, T, 4, 5), (B, T, 4), (4,), (B, T, 2, 3), (B, T, 2, 3), (4,), (4,)], {}),
    ("ssd", ssd, [(B, T, 2, 5), (B, T, 2), (2,), (B, T, 1, 3), (B, T, 1, 3), None, None], {}),
    ("gated_delta_rule", gated_delta_rule, [(B, T, 2, 5), (B, T, 2, 5), (B, T, 4, 3), (B, T, 4), (B, T, 4), (4,), (4,)], {}),
    ("gated_delta_rule", gated_delta_rule, [(B, T, 2, 5), (B, T, 2, 5), (B, T, 2, 3), (B, T, 2, 5), (B, T, 2), (2,), (10,)], {}),
    ("gated_delta_rule", gated_delta_rule, [(B, T, 2, 5), (B, T, 2, 5), (B, T, 2, 3), (B, T, 2), (B, T, 2), None, None], {"allow_neg_eigval": True}),
    ("mlstm", mlstm, [(B, T, 2, 5), (B, T, 2, 5), (B, T, 2, 3), (B, T, 2), (B, T, 2)], {}),
    ("slstm", slstm, [(B, T, 24), (2, 12, 3), (24,)], {}),
    ("slstm", slstm, [(B, T, 24), (2, 12, 3), None], {}),
    ("rwkv7", rwkv7, [(B, T, 2, 5), (B, T, 2, 5), (B, T, 2, 5), (B, T, 2, 3), (B, T, 2, 5), (B, T, 2, 5)], {}),
    ("rg_lru", rg_lru, [(B, T, 5), (B, T, 5), (B, T, 5), (5,)], {}),
    ("m2rnn", m2rnn, [(B, T, 2, 5), (B, T, 2, 5), (B, T, 2, 3), (B, T, 2), (2, 3, 3)], {}),
    ("ndm", ndm, [(B, T, 2, 5), (B, T, 2, 5), (B, T, 2, 3), (B, T, 2)], {}),
    ("linear_scan", linear_scan, [(B, T, 2, 3), (B, T, 2, 3)], {}),
    ("linear_scan", linear_scan, [(B, T), (B, T)], {}),
    ("causal_conv", causal_conv, [(B, T, 5), (5, 1, 4), (5,)], {}),
    ("causal_conv", causal_conv, [(B, T, 5), (5, 4), None], {}),
]  # fmt: skip
STATEFUL = [i for i, (name, *_) in enumerate(CASES) if name not in ("rg_lru", "causal_conv")]
each_case = pytest.mark.parametrize("case", range(len(CASES)), ids=[f"{name}{i}" for i, (name, *_) in enumerate(CASES)])


def made(case: int, seed: int = 0) -> list[Tensor | None]:
    torch.manual_seed(seed)
    shapes = CASES[case][2]
    return [None if shape is None else (0.7 * torch.randn(shape)).requires_grad_() for shape in shapes]


def gradients(f: Function, given: list[Tensor | None], dtype: torch.dtype, **options: Any) -> list[Tensor]:
    """y and the gradients, in double."""
    own = [None if x is None else x.detach().to(dtype).requires_grad_() for x in given]
    y = f(*own, **options)
    torch.manual_seed(1)
    (y * torch.randn(y.shape).to(dtype)).sum().backward()
    return [y.detach().double(), *(x.grad.double() for x in own if x is not None and x.grad is not None)]


def close(one: list[Tensor], other: list[Tensor], relative: float = 2e-5) -> None:
    assert len(one) == len(other)
    for i, (a, b) in enumerate(zip(one, other, strict=True)):
        assert a.shape == b.shape
        assert (a - b).abs().max() <= relative * b.abs().max(), (i, (a - b).abs().max(), b.abs().max())


def of(case: int) -> tuple[Function, Function, dict[str, Any]]:
    name, reference, _, options = CASES[case]
    named = {"negative": True} if options else {}
    return getattr(F, name), lambda *given: reference(*given, **named), options


@each_case
def test_agrees_with_its_formula(case: int) -> None:
    function, reference, options = of(case)
    given = made(case)
    close(gradients(function, given, torch.float32, **options), gradients(reference, given, torch.float64))


class Net(torch.nn.Module):
    """A function of sequences, each times a parameter, and weights."""

    def __init__(self, case: int) -> None:
        super().__init__()
        self.case, self.options = case, CASES[case][3]
        given = made(case)
        self.weights = torch.nn.ParameterList([x for x in given if x is not None and x.shape[:2] != (B, T)])
        self.scales = torch.nn.ParameterList(
            [torch.nn.Parameter(1 + 0.1 * torch.randn(x.shape[2:])) for x in given if x is not None and x.shape[:2] == (B, T)]
        )

    def forward(self, *sequences: Tensor) -> Tensor:
        made, weights = iter(scale * x for x, scale in zip(sequences, self.scales, strict=True)), iter(self.weights)
        given = [None if s is None else next(made) if s[:2] == (B, T) else next(weights) for s in CASES[self.case][2]]
        return getattr(F, CASES[self.case][0])(*given, **self.options)


@each_case
def test_in_a_compiled_step(case: int) -> None:
    model = Net(case)
    batch = [x.detach() for x in made(case, 2) if x is not None and x.shape[:2] == (B, T)]
    target = torch.randn_like(model(*batch))
    loss = torch.nn.functional.mse_loss(model(*batch), target)
    loss.backward()
    expected = [p.grad.double() for p in model.parameters() if p.grad is not None]
    step = remat.compile(model, torch.nn.MSELoss(), (*batch, target))
    assert abs(float(step(*batch, target)) - loss.item()) <= 1e-5 * loss.item()
    close([p.grad.double() for p in model.parameters() if p.grad is not None], expected)


class Mamba(torch.nn.Module):
    """A residual block of Mamba, as in transformers' MambaMixer."""

    def __init__(self, width: int, inner: int, states: int, rank: int) -> None:
        super().__init__()
        self.rank, self.states = rank, states
        self.norm = torch.nn.RMSNorm(width)
        self.in_proj = torch.nn.Linear(width, 2 * inner, bias=False)
        self.conv_weight = torch.nn.Parameter(0.3 * torch.randn(inner, 1, 4))
        self.conv_bias = torch.nn.Parameter(torch.zeros(inner))
        self.x_proj = torch.nn.Linear(inner, rank + 2 * states, bias=False)
        self.dt_proj = torch.nn.Linear(rank, inner)
        self.A_log = torch.nn.Parameter(torch.arange(1.0, states + 1).log().repeat(inner, 1))
        self.D = torch.nn.Parameter(torch.ones(inner))
        self.out_proj = torch.nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        u, z = self.in_proj(self.norm(x)).chunk(2, -1)
        u = torch.nn.functional.silu(F.causal_conv(u, self.conv_weight, self.conv_bias))
        dt, b, c = self.x_proj(u).split([self.rank, self.states, self.states], -1)
        dt = dt @ self.dt_proj.weight.t()
        return x + self.out_proj(F.selective_scan(u, dt, self.A_log, b, c, self.D, z, self.dt_proj.bias))


class LanguageModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 8)
        self.blocks = torch.nn.Sequential(Mamba(8, 16, 4, 2), Mamba(8, 16, 4, 2))
        self.head = torch.nn.Linear(8, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(tokens))).transpose(1, 2)


def test_a_mamba_within_a_budget() -> None:
    torch.manual_seed(0)
    model, tokens = LanguageModel(), torch.randint(11, (2, 2001))
    batch = tokens[:, :-1], tokens[:, 1:].contiguous()
    loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    expected = [p.grad.double() for p in model.parameters() if p.grad is not None]
    bits, planned = [], []
    for budget in (None, "2MiB"):
        step = remat.compile(model, torch.nn.CrossEntropyLoss(), batch, memory_budget=budget)
        assert abs(float(step(*batch)) - loss.item()) <= 1e-5 * loss.item()
        close([p.grad.double() for p in model.parameters() if p.grad is not None], expected, 1e-4)
        bits.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        planned.append(step.plan.budgeted_bytes)
    assert planned[1] <= 2 << 20 < planned[0] / 2, planned
    assert all(torch.equal(a, b) for a, b in zip(*bits, strict=True))


# ---- States


def in_parts(function: Function, given: list[Tensor | None], **options: Any) -> Tensor:
    """The sequence in three parts, each with the states of the one before it."""
    ys, state = [], None
    for first, last in ((0, 4), (4, 5), (5, T)):
        part = [x if x is None or x.shape[:2] != (B, T) else x[:, first:last] for x in given]
        y, state = function(*part, **options, initial_state=state, output_final_state=True)
        ys.append(y)
    states = state if isinstance(state, tuple) else (state,)
    return torch.cat([torch.cat(ys, 1).flatten(1), *(s.reshape(B, -1) for s in states)], 1)


def whole(function: Function, given: list[Tensor | None], **options: Any) -> Tensor:
    y, state = function(*given, **options, output_final_state=True)
    states = state if isinstance(state, tuple) else (state,)
    return torch.cat([y.flatten(1), *(s.reshape(B, -1) for s in states)], 1)


@pytest.mark.parametrize("case", STATEFUL, ids=[f"{CASES[i][0]}{i}" for i in STATEFUL])
def test_states_continue_a_sequence(case: int) -> None:
    """Values and gradients, also those of the final states, are those of the whole sequence."""
    function, _, options = of(case)
    given, found = made(case), []
    for run in (whole, in_parts):
        found.append(gradients(lambda *own: run(function, list(own), **options), given, torch.float32))  # noqa: B023
    assert torch.equal(whole(function, given, **options)[:, : found[0][0].shape[1]].double(), found[0][0])
    close(found[1], found[0])


def test_initial_states_have_gradients() -> None:
    torch.manual_seed(0)
    a, b, first = torch.rand(B, T, 2, 3), torch.randn(B, T, 2, 3), torch.randn(B, 2, 3).requires_grad_()
    y, last = F.linear_scan(a, b, initial_state=first, output_final_state=True)
    (found,) = torch.autograd.grad(last.sum() + y[:, 0].sum(), [first])
    torch.testing.assert_close(found, a.prod(1) + a[:, 0])
    with torch.no_grad():
        assert torch.equal(F.linear_scan(a, b, initial_state=first), y)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (torch.zeros(B, 3), r"initial_state.0 has the shape \(3, 3\); give \(3, 4\)"),
        (torch.zeros(B, 4).double(), "initial_state.0 is torch.float64"),
        ((torch.zeros(B, 4), torch.zeros(B, 4)), "initial_state has 2 tensors; give 1"),
    ],
)
def test_wrong_states(state: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        F.linear_scan(torch.zeros(B, T, 4), torch.zeros(B, T, 4), initial_state=state)


class Continued(torch.nn.Module):
    """A sequence in two layers of time: an encoder whose final states begin a decoder, from learned initial states."""

    def __init__(self) -> None:
        super().__init__()
        self.qk, self.v, self.gates = torch.nn.Linear(4, 12), torch.nn.Linear(4, 6), torch.nn.Linear(4, 4)
        self.first = torch.nn.ParameterList([torch.nn.Parameter(0.1 * torch.randn(1, *s)) for s in ((2, 3, 3), (2, 3), (2,))])

    def layer(self, x: Tensor, states: Any) -> Any:
        q, k = self.qk(x).unflatten(2, (2, 2, 3)).unbind(2)
        i, f = self.gates(x).chunk(2, -1)
        return F.mlstm(q, k, self.v(x).unflatten(2, (2, 3)), i, f, initial_state=states, output_final_state=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        _, states = self.layer(source, [state.expand(B, *state.shape[1:]) for state in self.first])
        y, (c, n, m) = self.layer(target, states)
        return y.mean((1, 2, 3)) + c.mean((1, 2, 3)) + n.mean((1, 2)) + m.mean(1)


def test_states_in_a_compiled_step() -> None:
    torch.manual_seed(0)
    model, batch = Continued(), (torch.randn(B, 7, 4), torch.randn(B, T, 4), torch.randn(B))
    loss = torch.nn.functional.mse_loss(model(*batch[:2]), batch[2])
    loss.backward()
    expected = [p.grad.double() for p in model.parameters() if p.grad is not None]
    step = remat.compile(model, torch.nn.MSELoss(), batch)
    assert abs(float(step(*batch)) - loss.item()) <= 1e-5 * loss.item()
    close([p.grad.double() for p in model.parameters() if p.grad is not None], expected)


def mixed(self: Any, hidden_states: Tensor, *args: Any, **keywords: Any) -> Tensor:
    """The forward of transformers' MambaMixer."""
    u, z = self.in_proj(hidden_states).chunk(2, -1)
    u = self.act(F.causal_conv(u, self.conv1d.weight, self.conv1d.bias))
    dt, b, c = self.x_proj(u).split([self.time_step_rank, self.ssm_state_size, self.ssm_state_size], -1)
    dt = torch.nn.functional.linear(dt, self.dt_proj.weight)
    return self.out_proj(F.selective_scan(u, dt, self.A_log, b, c, self.D, z, self.dt_proj.bias))


def test_transformers_mamba_with_another_mixer(monkeypatch: pytest.MonkeyPatch) -> None:
    mamba = pytest.importorskip("transformers.models.mamba.modeling_mamba", reason="transformers cannot be imported")
    torch.manual_seed(0)
    config = mamba.MambaConfig(vocab_size=50, hidden_size=32, state_size=8, num_hidden_layers=2, use_cache=False)
    model, tokens = mamba.MambaForCausalLM(config), torch.randint(50, (2, 40))

    def found() -> list[Tensor]:
        return [p.grad.double() for p in model.parameters() if p.grad is not None]

    model(tokens, labels=tokens).loss.backward()
    expected = found()
    monkeypatch.setattr(mamba.MambaMixer, "forward", mixed)
    model.zero_grad()
    model(tokens, labels=tokens).loss.backward()
    close(found(), expected)
    step = remat.compile(model, None, {"input_ids": tokens, "labels": tokens})
    step(input_ids=tokens, labels=tokens)
    close(found(), expected)


def test_the_example_learns() -> None:
    example = pathlib.Path(__file__).parents[2] / "examples" / "python" / "mamba.py"
    flags = "--width=16 --batch=2 --length=300 --steps=31 --memory-budget=3MiB".split()
    ran = subprocess.run([sys.executable, example, *flags], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", ran.stdout)]
    assert len(losses) == 4 and losses[3] < losses[0] - 0.5, losses


def test_under_torch_compile() -> None:
    model = Net(3)
    batch = [x.detach() for x in made(3, 2) if x is not None and x.shape[:2] == (B, T)]
    expected, y = model(*batch), torch.compile(model, backend="aot_eager", fullgraph=True)(*batch)
    assert torch.equal(y, expected)
    one, other = (torch.autograd.grad(out.square().sum(), list(model.parameters())) for out in (expected, y))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def scan_of(seed: int, steps: int = T, rows: int = B) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(seed)
    given = [torch.randn(rows, steps, 4).requires_grad_() for _ in range(2)]
    return F.linear_scan(*given), given


def test_calls_before_backward_keep_their_own_values() -> None:
    calls = [scan_of(seed, steps) for seed, steps in ((0, T), (1, T), (2, T + 3))]
    for seed, (y, given) in reversed(list(enumerate(calls))):
        found = torch.autograd.grad(y.square().sum(), given, retain_graph=True)
        again = torch.autograd.grad(y.square().sum(), given)
        other, own = scan_of(seed, y.shape[1])
        expected = torch.autograd.grad(other.square().sum(), own)
        assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(found, expected, again, strict=True))


def test_of_views_and_without_gradients() -> None:
    y, (a, b) = scan_of(0)
    wide = torch.randn(B, 2 * T, 8)
    wide[:, ::2, 1::2] = a.detach()
    assert torch.equal(F.linear_scan(wide[:, ::2, 1::2], b.detach()), y)
    with torch.no_grad():
        assert torch.equal(F.linear_scan(a, b), y)
    with torch.inference_mode():
        assert torch.equal(F.linear_scan(a, b), y)
    (only,) = torch.autograd.grad(F.linear_scan(a.detach(), b).sum(), [b])
    assert torch.equal(only, torch.autograd.grad(y.sum(), [b])[0])


def test_under_autocast_and_checkpoint() -> None:
    y, (a, b) = scan_of(0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(F.linear_scan(a, b), y)
        assert F.linear_scan(a.bfloat16(), b.bfloat16()).dtype == torch.float32
    again = torch.utils.checkpoint.checkpoint(F.linear_scan, a, b, use_reentrant=False)
    one, other = (torch.autograd.grad(out.square().sum(), [a, b]) for out in (y, again))
    assert all(torch.equal(x, z) for x, z in zip(one, other, strict=True))


@pytest.mark.parametrize("case", STATEFUL, ids=str)
def test_backward_keeps_what_it_reads(case: int) -> None:
    """A session reads results in backward; a loss such as a sum does not keep them. Forward runs again only for a second backward."""
    from remat.functional import _pools

    def repeated() -> int:
        return sum(pool.repeated for pool in _pools.values())

    before = repeated()
    function, _, options = of(case)
    given = made(case)
    trained = [x for x in given if x is not None]
    y, ends = function(*given, **options, output_final_state=True)
    results = [y, *(ends if isinstance(ends, tuple) else (ends,))]
    memory = [StorageWeakRef(x.untyped_storage()) for x in results]
    loss = sum(x.sum() for x in results)
    expected = torch.autograd.grad(loss, trained, retain_graph=True)
    assert repeated() == before
    del y, ends, results
    assert not any(storage.expired() for storage in memory)
    found = torch.autograd.grad(loss, trained)
    assert repeated() == before + 1
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    del loss
    assert all(storage.expired() for storage in memory)


def test_types_that_change_before_backward_are_refused() -> None:
    a, b = torch.randn(B, T, 4), torch.nn.Parameter(torch.randn(4, 1, 3))
    y = F.causal_conv(a, b)
    b.data = b.data.double()
    with pytest.raises((RuntimeError, ValueError), match="weight is torch.float64|float64|Double"):
        y.sum().backward()


def test_in_threads() -> None:
    expected = [scan_of(seed)[0].detach() for seed in range(4)]
    given = [scan_of(seed)[1] for seed in range(4)]
    found: list[Any] = [None] * 4

    def work(i: int) -> None:
        for _ in range(20):
            found[i] = F.linear_scan(*given[i])
            found[i].sum().backward()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_module_of_it_is_saved() -> None:
    stream = io.BytesIO()
    torch.save(Net(0), stream)
    stream.seek(0)
    batch = [x.detach() for x in made(0, 2) if x is not None and x.shape[:2] == (B, T)]
    assert torch.equal(torch.load(stream, weights_only=False)(*batch), Net(0)(*batch))


@pytest.mark.parametrize(
    ("one", "other", "error", "message"),
    [
        ((2, 3, 4), (2, 3, 5), remat.Error, "linear_scan: "),
        ((2, 3, 4), (2, 4, 4), ValueError, r"a has the shape \(2, 3, 4\); its first axes are batch and time: give \(2, 4\)"),
        ((2, 3, 4), (3,), ValueError, r"a has the shape \(2, 3, 4\); .* give \(3,\)"),
        ((3,), (3,), ValueError, r"a has the shape \(3,\); its first axes are batch and time"),
        ((2, 0, 4), (2, 0, 4), remat.Error, "a has dimension 0 of size 0"),
    ],
)  # fmt: skip
def test_wrong_shapes(one: tuple[int, ...], other: tuple[int, ...], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        F.linear_scan(torch.randn(one), torch.randn(other))


def test_tensors_without_heads() -> None:
    x = torch.randn(2, 3, 4)
    with pytest.raises(ValueError, match=r"a tensor has the shape \(2, 3, 4\); give \(batch, time, heads, width\)"):
        F.mlstm(x, x, x, x, x)


def test_wrong_types() -> None:
    x = torch.randn(2, 3, 4)
    with pytest.raises(ValueError, match="a is torch.float64; Remat's layers compute in float32: convert it"):
        F.linear_scan(x.double(), x)
    with pytest.raises(ValueError, match="b is on the device meta"):
        F.linear_scan(x, x.to("meta"))


def test_second_derivatives_are_refused() -> None:
    y, given = scan_of(0)
    (d, _) = torch.autograd.grad(y.square().sum(), given, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        d.sum().backward()


def test_memory_of_finished_calls_is_given_back() -> None:
    from remat.functional import _pools

    for steps in range(5, 40):
        scan_of(0, steps)[0].sum().backward()
    gc.collect()
    (pool,) = (p for shaped, p in _pools.items() if shaped.layer.name == "linear_scan" and shaped.axes == ((4,), (4,)))
    assert len(pool.prepared) <= 3
