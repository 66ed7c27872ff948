#!/usr/bin/env python3
"""Compares gradients of the linear recurrence h = a h + b in PyTorch, and of recurrent layers of 2024 to 2026 in PyTorch and in Remat, with
those of loops in double, by version.

    bench/gradients.py [--timesteps=256]      # any PyTorch; mambapy, transformers and xlstm if they are installed

The first table has for each implementation of h = a h + b the largest error of the gradients of a and b, relative to the largest element of
the exact gradient, in fp32 and in fp64. The loss is the sum of h times random weights. An error of 1 means that the gradient is zero or
unrelated; fp32 rounds to 6e-8. The second table has the same for layers: the largest error of y, and of all gradients, in fp32. Two heads of
16 (Mamba: 32 channels, 16 states). Implementations that raise are listed with the error's type. Needs build/release and NumPy for Remat's part.
transformers calls xlstm if it finds it, and then fails, so each belongs into its own environment.
"""
import argparse
import importlib.metadata
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADS, SIZE = 2, 16
WIDE = HEADS * SIZE


def loop(a, b):
    import torch

    h, out = torch.zeros_like(b[0]), []
    for t in range(len(a)):
        h = a[t] * h + b[t]
        out.append(h)
    return torch.stack(out)


def joined(left, right):
    return left[0] * right[0], right[0] * left[1] + right[1]


def associative(mode):
    def way(a, b):
        from torch._higher_order_ops.associative_scan import associative_scan

        return associative_scan(joined, (a, b), 0, combine_mode=mode)[1]

    return way


def scanned(a, b):
    import torch
    from torch._higher_order_ops.scan import scan

    def step(h, x):
        h = x[0] * h + x[1]
        return h, h.clone()

    return scan(step, torch.zeros_like(b[0]), (a, b))[1]


def mambapy(a, b):
    from mambapy.pscan import pscan

    return pscan(a.t()[None, :, :, None].transpose(1, 2), b.t()[None, :, :, None].transpose(1, 2))[0, :, :, 0]


def logarithms(a, b):
    """The parallel form of minGRU-pytorch, for positive numbers: h = exp(s + logcumsumexp(log b - s)), s = cumsum(log a)."""
    total = a.log().cumsum(0)
    return (total + (b.log() - total).logcumsumexp(0)).exp()


WAYS = {"loop": loop, "torch.scan": scanned, "associative_scan, generic": associative("generic"),
        "associative_scan, pointwise": associative("pointwise"), "mambapy's pscan": mambapy,
        "logcumsumexp (minGRU-pytorch)": logarithms}


def gradients(way, numbers, dtype):
    a, b, weights = (x.to(dtype) for x in numbers)
    a.requires_grad_(), b.requires_grad_()
    (way(a, b) * weights).sum().backward()
    return [0 * x.detach().double() if x.grad is None else x.grad.double() for x in (a, b)]


# ---- Layers: (T, features), heads side by side -------------------------------------------------------------------------------


def split(x):
    return x.unflatten(-1, (HEADS, SIZE))


def scan(step, count, *states):
    """Joins the y of step(t, *states) -> y, *states."""
    import torch

    out = []
    for t in range(count):
        y, *states = step(t, *states)
        out.append(y)
    return torch.stack(out)


def outer(k, v):
    return k[..., :, None] * v[..., None, :]


def answer(q, state):
    return (q[..., None, :] @ state).squeeze(-2)


def selective(u, dt, a_log, b, c, d, z):
    import torch

    delta, rate = torch.nn.functional.softplus(dt), -a_log.exp()

    def step(t, h):
        h = (delta[t, :, None] * rate).exp() * h + outer(delta[t] * u[t], b[t])
        return h @ c[t], h

    return (scan(step, len(u), torch.zeros_like(rate)) + d * u) * torch.nn.functional.silu(z)


def ssd(x, dt, a_log, b, c, d):
    import torch

    delta, x = torch.nn.functional.softplus(dt), split(x)

    def step(t, s):
        s = (-delta[t] * a_log.exp()).exp()[:, None, None] * s + outer(b[t], delta[t, :, None] * x[t])
        return answer(c[t], s), s

    return (scan(step, len(x), x.new_zeros(HEADS, SIZE, SIZE)) + d[:, None] * x).flatten(1)


def unit(x):
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def delta(q, k, v, a, b, a_log):
    import torch

    q, k, v = unit(split(q)) / SIZE**0.5, unit(split(k)), split(v)
    decay, beta = (-a_log.exp() * torch.nn.functional.softplus(a)).exp(), b.sigmoid()

    def step(t, s):
        s = decay[t, :, None, None] * s
        s = s + outer(k[t], beta[t, :, None] * (v[t] - answer(k[t], s)))
        return answer(q[t], s), s

    return scan(step, len(q), q.new_zeros(HEADS, SIZE, SIZE)).flatten(1)


def mlstm(q, k, v, i, f):
    import torch

    q, k, v, keep = split(q), split(k), split(v), torch.nn.functional.logsigmoid(f)

    def step(t, c, n, m):
        top = torch.maximum(keep[t] + m, i[t])
        decay, take = (keep[t] + m - top).exp(), (i[t] - top).exp()
        c = decay[:, None, None] * c + outer(take[:, None] * k[t], v[t])
        n = decay[:, None] * n + take[:, None] * k[t]
        below = torch.maximum((n * q[t]).sum(-1).abs(), (-top).exp() * SIZE**0.5) + 1e-6 * SIZE**0.5
        return answer(q[t], c) / below[:, None], c, n, top

    return scan(step, len(q), q.new_zeros(HEADS, SIZE, SIZE), q.new_zeros(HEADS, SIZE), q.new_zeros(HEADS)).flatten(1)


def slstm(x, r):
    import torch

    x = x.unflatten(-1, (4, HEADS, SIZE))

    def step(t, y, c, n, m):
        i, f, z, o = x[t] + (r @ y[..., None]).view(HEADS, 4, SIZE).transpose(0, 1)
        keep = torch.nn.functional.logsigmoid(f)
        top = torch.maximum(i, m + keep) if t else i
        decay, take = (m + keep - top).exp(), (i - top).exp()
        c, n = decay * c + take * z.tanh(), decay * n + take
        y = o.sigmoid() * c / n
        return y, y, c, n, top

    return scan(step, len(x), *(x.new_zeros(HEADS, SIZE) for _ in range(4))).flatten(1)


def rwkv7(r, w, k, v, kappa, a):
    r, k, v, kappa, a = (split(x) for x in (r, k, v, kappa, a))
    u = kappa / kappa.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    decay, back = split((-(-0.5 * w.new_ones(())).exp() * w.sigmoid()).exp()), u * a.sigmoid()

    def step(t, s):
        s = decay[t, :, :, None] * s - outer(back[t], answer(u[t], s)) + outer(k[t], v[t])
        return answer(r[t], s), s

    return scan(step, len(r), r.new_zeros(HEADS, SIZE, SIZE)).flatten(1)


def m2rnn(q, k, v, f, w):
    q, k, v = split(q), split(k), split(v)

    def step(t, s):
        keep = f[t, :, None, None]
        s = keep * s + (1 - keep) * (s @ w + outer(k[t], v[t])).tanh()
        return answer(q[t], s), s

    return scan(step, len(q), q.new_zeros(HEADS, SIZE, SIZE)).flatten(1)


def ndm(q, k, v, g):
    q, k, v = split(q), split(k), split(v)

    def step(t, s):
        s = (g[t, :, None, None].exp() * s + outer(k[t], v[t] - answer(k[t], s))).tanh()
        return answer(q[t], s), s

    return scan(step, len(q), q.new_zeros(HEADS, SIZE, SIZE)).flatten(1)


def transformers_mamba(**settings):
    def way(u, dt, a_log, b, c, d, z):
        from transformers.models.mamba.modeling_mamba import mamba_selective_scan

        if settings.get("use_mambapy"):
            importlib.import_module("mambapy")  # without it transformers runs its loop
        u, dt, b, c, z = (x.t()[None] for x in (u, dt, b, c, z))
        return mamba_selective_scan(u, dt, -a_log.exp(), b, c, d, z, delta_softplus=True, **settings)[0].t()

    return way


def transformers_ssd(x, dt, a_log, b, c, d):
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

    y = mamba2_chunk_scan(split(x)[None], dt[None], -a_log.exp(), b[None, :, None], c[None, :, None], 64, D=d, dt_softplus=True)
    return (y[0] if isinstance(y, tuple) else y)[0].reshape(len(x), -1)


def transformers_delta(form):
    def way(q, k, v, a, b, a_log):
        import torch
        from transformers.models.qwen3_next import modeling_qwen3_next as qwen

        q, k, v = (split(x)[None] for x in (q, k, v))
        decay = -a_log.exp() * torch.nn.functional.softplus(a)
        return getattr(qwen, f"torch_{form}_gated_delta_rule")(q, k, v, decay[None], b.sigmoid()[None], use_qk_l2norm_in_kernel=True,
                                                               initial_state=None, output_final_state=False)[0][0].flatten(1)

    return way


def xlstm_parallel(q, k, v, i, f):
    from xlstm.blocks.mlstm.backends import parallel_stabilized_simple

    heads = (split(x).transpose(0, 1)[None] for x in (q, k, v))
    return parallel_stabilized_simple(*heads, *(x.t()[None, :, :, None] for x in (i, f)))[0].transpose(0, 1).flatten(1)


def remat_layer(build, *parameters):
    """Runs a layer of Remat in the forward and backward passes of PyTorch; `build` adds it to a graph of values by name. All inputs but
    `parameters` are sequences."""

    def way(**inputs):
        import numpy
        import torch

        sys.path.insert(0, os.path.join(ROOT, "python"))
        os.environ.setdefault("REMAT_LIBRARY", os.path.join(ROOT, "build", "release", "libremat.so"))
        import remat

        graph = remat.Graph()
        arrays = {name: x.detach().numpy() for name, x in inputs.items()}
        sequences = {name: x[:, None] for name, x in arrays.items() if name not in parameters}
        values = {name: graph.requires_grad(graph.input(name, "f32", "sequence", sequences[name].shape)) if name in sequences
                  else graph.param(name, x.shape, remat.uniform(1)) for name, x in arrays.items()}
        session = remat.Session(graph, outputs={"y": build(graph, **values)}, threads=1)
        for name in parameters:
            session.parameters[name][...] = arrays[name]

        class Layer(torch.autograd.Function):
            @staticmethod
            def forward(context, *_):
                return torch.from_numpy(session.forward(**sequences)["y"][:, 0].copy())

            @staticmethod
            def backward(context, dy):
                session.backward(numpy.ascontiguousarray(dy.numpy()[:, None]))
                return tuple(torch.from_numpy(session.gradients[name].reshape(x.shape).copy()) for name, x in arrays.items())

        return Layer.apply(*inputs.values())

    return way


def by_name(way):
    return lambda **inputs: way(*inputs.values())


HEAD, ALL = "T", "TW"  # one number per head and timestep, or one per channel
LAYERS = {  # name: shapes of inputs; the definition; implementations
    "Mamba": (dict(u=ALL, dt=ALL, a_log=(WIDE, SIZE), b="TN", c="TN", d=(WIDE,), z=ALL), selective, {
        "transformers' loop": by_name(transformers_mamba()), "mambapy": by_name(transformers_mamba(use_mambapy=True)),
        "Remat": remat_layer(lambda g, **x: g.selective_scan(**x, dt_bias=None), "a_log", "d")}),
    "Mamba-2": (dict(x=ALL, dt=HEAD, a_log=(HEADS,), b="TN", c="TN", d=(HEADS,)), ssd, {
        "transformers' chunks": by_name(transformers_ssd), "Remat": remat_layer(lambda g, **x: g.ssd(**x, dt_bias=None, groups=1), "a_log", "d")}),
    "Gated DeltaNet": (dict(q=ALL, k=ALL, v=ALL, a=HEAD, b=HEAD, a_log=(HEADS,)), delta, {
        "transformers' loop": by_name(transformers_delta("recurrent")), "transformers' chunks": by_name(transformers_delta("chunk")),
        "Remat": remat_layer(lambda g, **x: g.delta_scan(**x, dt_bias=None, key_heads=HEADS), "a_log")}),
    "mLSTM": (dict(q=ALL, k=ALL, v=ALL, i=HEAD, f=HEAD), mlstm, {
        "xlstm's parallel form": by_name(xlstm_parallel), "Remat": remat_layer(lambda g, **x: g.mlstm(**x))}),
    "sLSTM": (dict(x="TG", r=(HEADS, 4 * SIZE, SIZE)), slstm, {"Remat": remat_layer(lambda g, **x: g.slstm(**x, bias=None), "r")}),
    "RWKV-7": (dict(r=ALL, w=ALL, k=ALL, v=ALL, kappa=ALL, a=ALL), rwkv7, {
        "Remat": remat_layer(lambda g, **x: g.rwkv7(**x, heads=HEADS))}),
    "M2RNN": (dict(q=ALL, k=ALL, v=ALL, f=HEAD, w=(HEADS, SIZE, SIZE)), m2rnn, {"Remat": remat_layer(lambda g, **x: g.m2rnn(**x), "w")}),
    "NDM": (dict(q=ALL, k=ALL, v=ALL, g=HEAD), ndm, {"Remat": remat_layer(lambda graph, **x: graph.ndm(**x))}),
}

PREPARED = {  # what the layers' models do to inputs before
    "M2RNN": {"f": lambda f: f.sigmoid()},
    "NDM": {"q": lambda q: normalised(q), "k": lambda k: normalised(k), "g": lambda g: -g.exp()},
}


def normalised(x):
    return (split(x) / split(x).norm(dim=-1, keepdim=True)).flatten(1)


def drawn(shape, timesteps):
    import torch

    widths = {HEAD: HEADS, ALL: WIDE, "TN": SIZE, "TG": 4 * WIDE}
    x = torch.randn(timesteps, widths[shape]) if isinstance(shape, str) else torch.randn(shape) / SIZE**0.5
    return x.float().double()  # the same numbers in both precisions


def run_layer(way, inputs, weights, dtype):
    inputs = {name: x.to(dtype, copy=True).requires_grad_() for name, x in inputs.items()}
    y = way(**inputs)
    (y * weights.to(dtype)).sum().backward()
    return {"y": y.detach().double(), **{name: x.grad.double() for name, x in inputs.items()}}


def layers_table(timesteps):
    import torch

    print("\n| layer | implementation, fp32 | y | gradients | the worst |\n|---|---|--:|--:|---|")
    for layer, (shapes, definition, ways) in LAYERS.items():
        inputs, weights = {name: drawn(shape, timesteps) for name, shape in shapes.items()}, torch.randn(timesteps, WIDE).double()
        for name, prepare in PREPARED.get(layer, {}).items():
            inputs[name] = prepare(inputs[name]).float().double()
        exact = run_layer(by_name(definition), inputs, weights, torch.float64)
        for name, way in {"the loop": by_name(definition), **ways}.items():
            try:
                got = run_layer(way, inputs, weights, torch.float32)
            except Exception as error:  # what an implementation cannot do is a result
                print(f"| {layer} | {name} | {type(error).__name__} | | |")
                continue
            errors = {of: ((got[of] - e).abs().max() / e.abs().max()).item() for of, e in exact.items()}
            y, worst = errors.pop("y"), max(errors, key=errors.get)
            print(f"| {layer} | {name} | {y:.1e} | {errors[worst]:.1e} | {worst} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timesteps", type=int, default=256)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.manual_seed(1)
    shape = options.timesteps, 32
    numbers = [0.5 + 0.49 * torch.rand(shape).double(), torch.rand(shape).double() + 0.01, torch.randn(shape).double()]
    numbers = [x.float().double() for x in numbers]  # the same numbers in both precisions
    exact = gradients(loop, [x.clone() for x in numbers], torch.float64)
    versions = [f"torch {torch.__version__}"]
    for package in ("mambapy", "transformers", "xlstm"):
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    print(f"{', '.join(versions)}; T {options.timesteps}\n\n| implementation | da, fp32 | db, fp32 | da, fp64 | db, fp64 |")
    print("|---|--:|--:|--:|--:|")
    for name, way in WAYS.items():
        cells = []
        for dtype in (torch.float32, torch.float64):
            try:
                got = gradients(way, [x.clone() for x in numbers], dtype)
                cells += [f"{(g - e).abs().max() / e.abs().max():.1e}" for g, e in zip(got, exact)]
            except Exception as error:  # what an implementation cannot do is a result
                cells += [type(error).__name__] * 2
        print(f"| {name} | {' | '.join(cells)} |")
    layers_table(options.timesteps)


if __name__ == "__main__":
    main()
