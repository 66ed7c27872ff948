#!/usr/bin/env python3
"""Compares layers of language models of 2024 to 2026 with their references in PyTorch, and long sequences with and without recomputation.

    bench/recurrences.py [--python=PYTHON-WITH-THE-PEERS] [--xlstm-python=PYTHON-WITH-XLSTM] [--rows=mamba,...] [--rounds=3] [--threads=N]

A step is forward and backward, batch 1 unless said, fp32; the loss of a layer is its mean square. Rows, with T timesteps:

  mamba        mixer of the 130m size, D 768, T 1024; mambapy's parallel scan in transformers' mixer, its fastest way on a CPU
  mamba-long   the same, T 100,000: everything kept, or within 1 GiB, which counts inputs, parameters and gradients, too
  mamba-130m   `remat train` on the whole model of 24 layers and 50,280 tokens, T 16,384: everything kept, which takes 17 GiB
               and is left out if fewer are free, or within --memory-budget=1920MiB: its steps add less than 1 GiB
  gdn          Gated DeltaNet, D 768, 4 heads of keys, 8 of values, of 64, T 1024; transformers' chunked form
  gdn-32       Gated DeltaNet, D 2048, 16 heads of keys, 32 of values, of 128, T 4096; the same
  slstm        batch 16, D 256, 4 heads, T 256; xlstm's vanilla layer
  m2rnn        16 heads of 64 x 64, T 1024; its definition, a loop in PyTorch
  m2rnn-long   the same, T 1024 and 4096
  mingru       a language model of 256 units, T 1,000,000: minGRU, a segment per tile, and an LSTM in 64 segments

--python needs PyTorch, transformers and mambapy. transformers calls xlstm if it finds it, and then fails, so xlstm belongs into a second
environment, --xlstm-python. A row whose peer cannot be imported is measured without it. Every measurement is a separate process. Below
T 4096 it makes a warm-up step and then two steps, longer sequences one of each, and in most rows once; mamba-130m and mingru make one
step, which also touches their memory for the first time. Candidates alternate; a time is the median over rounds of the processes' medians,
with minimum and maximum, and a ratio is taken within a round. Memory is what the steps add to the process, for both sides with gradients of
parameters; "plan" is what Remat has promised for activations. Needs build/release.
"""
import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, "build", "release")
SHAPES = {"mamba": (1, 768), "gdn": (1, 768), "gdn-32": (1, 2048), "slstm": (16, 256), "m2rnn": (1, 1024)}  # batch, D
MODEL = dict(layers=24, hidden=768, vocab=50280, timesteps=16384, needs=18 << 30)


def steps(timesteps):
    """Warm-up steps, and measured ones."""
    return (1, 2) if timesteps < 4096 else (1, 1)


# ---- The PyTorch process --------------------------------------------------------------------------------------------------


def mamba(width):
    from transformers import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer

    return MambaMixer(MambaConfig(hidden_size=width, use_mambapy=True), layer_idx=0)


def gdn(width):
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    keys, size = (4, 64) if width < 2048 else (16, 128)
    return Qwen3NextGatedDeltaNet(Qwen3NextConfig(hidden_size=width, linear_num_key_heads=keys, linear_num_value_heads=2 * keys,
                                                  linear_key_head_dim=size, linear_value_head_dim=size), layer_idx=0)


def slstm(width):
    from xlstm.blocks.slstm.layer import sLSTMLayer, sLSTMLayerConfig

    return sLSTMLayer(sLSTMLayerConfig(embedding_dim=width, num_heads=4, conv1d_kernel_size=4, backend="vanilla"))


def m2rnn(width):
    """xma's definition, but linear in T: it unbinds its inputs once, so no gradient is as long as the sequence at each timestep."""
    import torch

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkvf = torch.nn.Linear(width, 3 * width + width // 64, bias=False)
            self.weight, self.out = torch.nn.Parameter(torch.eye(64).repeat(width // 64, 1, 1)), torch.nn.Linear(width, width, bias=False)

        def forward(self, x):
            parts = self.qkvf(x).split([width, width, width, width // 64], -1)
            q, k, v = (part.unflatten(-1, (-1, 64)).unbind(1) for part in parts[:3])
            f, state, y = parts[3].sigmoid()[..., None, None].unbind(1), x.new_zeros(len(x), width // 64, 64, 64), []
            for t in range(len(q)):
                state = f[t] * state + (1 - f[t]) * torch.tanh(state @ self.weight + k[t][..., None] * v[t][..., None, :])
                y.append((q[t][..., None, :] @ state).flatten(1))
            return self.out(torch.stack(y, 1))

    return Layer()


PEERS = {"mamba": mamba, "gdn": gdn, "gdn-32": gdn, "slstm": slstm, "m2rnn": m2rnn}


def status_bytes(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(field + ":"))


def child(layer, threads, timesteps):
    """Prints one JSON line: the steps' median in seconds, and the growth of the process in bytes. Exits with 77 without the peer."""
    import time

    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    batch, width = SHAPES[layer]
    try:
        module = PEERS[layer](width)
    except ImportError as error:
        sys.exit(print(error, file=sys.stderr) or 77)
    x, times, before = torch.randn(batch, timesteps, width), [], status_bytes("VmRSS")
    warm, measured = steps(timesteps)
    for _ in range(warm + measured):
        start = time.perf_counter()
        module.zero_grad(set_to_none=True)
        module(x).square().mean().backward()
        times.append(time.perf_counter() - start)
    print(json.dumps([statistics.median(times[warm:]), status_bytes("VmHWM") - before]))


# ---- Candidates: each returns seconds a step, bytes that steps add to the process, and bytes of activations in the plan, or None ----------


def output_of(command, threads, **settings):
    env = dict(os.environ, OMP_NUM_THREADS=str(threads), GOMP_SPINCOUNT="20000", TRANSFORMERS_VERBOSITY="error")
    done = subprocess.run([str(word) for word in command], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings)
    if done.returncode not in (0, 77):
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stderr}")
    return done.stdout if done.returncode == 0 else None


def torch(layer, timesteps):
    def run(options, threads):
        python = options.xlstm_python if layer == "slstm" else options.python
        out = output_of([python, os.path.abspath(__file__), "--child", layer, "--threads", threads, "--timesteps", timesteps], threads)
        return out and (*json.loads(out.splitlines()[-1]), None)

    return run


def layer(name, timesteps, keep=0):
    def run(options, threads):
        warm, measured = steps(timesteps)
        out = output_of([os.path.join(BUILD, "bench", "bench_recurrences"), name.split("-")[0], *SHAPES[name], timesteps, keep, warm + measured,
                         threads], threads).split()
        return statistics.median(map(float, out[warm:-2])), int(out[-1]), int(out[-2])

    return run


def minimal(cell, segments):
    def run(options, threads):
        out = output_of([os.path.join(BUILD, "bench", "bench_minimal"), cell, 1, 0, 256, 10**6, segments, 1, threads], threads).split()
        return float(out[0]), None, int(out[-1])

    return run


def free_bytes():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))


def model(*flags):
    """Memory is the peak of the process, less parameters and gradients."""

    def run(options, threads):
        if not flags and free_bytes() < MODEL["needs"]:
            return None
        with tempfile.TemporaryDirectory() as folder:
            data, metrics = os.path.join(folder, "tokens.bin"), os.path.join(folder, "metrics")
            with open(data, "wb") as file:
                file.write(b"".join((7919 * i % MODEL["vocab"]).to_bytes(2, "little") for i in range(MODEL["timesteps"] + 1)))
            output_of([os.path.join(BUILD, "remat"), "train", "--model=mamba", f"--layers={MODEL['layers']}", f"--hidden={MODEL['hidden']}",
                       f"--vocab={MODEL['vocab']}", f"--data={data}", f"--seq-len={MODEL['timesteps']}", "--batch=1", "--optimizer=sgd",
                       "--steps=1", f"--threads={threads}", f"--metrics={metrics}", *flags], threads)
            with open(metrics) as file:
                lines = [json.loads(line) for line in file]
        step, plan = (next(line for line in lines if line["event"] == event) for event in ("step", "plan"))
        resident = plan["params_bytes"] + plan["gradients_bytes"]
        return step["step_ms"] / 1000, step["rss_peak_bytes"] - resident, plan["activations_peak_bytes"]

    return run


# ---- The table ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Row:
    candidates: dict
    claims: list  # (sentence, numerator, denominator, 0: time or 1: memory, bound, at least or at most)
    once: bool = False


KEPT, SEGMENTS, BUDGET = "Remat, everything kept", "Remat, 4 segments", "Remat, within a budget"


def compared(name, timesteps, peer, *claims):
    return Row({KEPT: layer(name, timesteps), SEGMENTS: layer(name, timesteps, 4), peer: torch(name, timesteps)},
               [(f"{'memory' if what else 'time'} of {peer}, over Remat's", peer, SEGMENTS if what else KEPT, what, bound, True)
                for what, bound in claims])


def budgeted(kept, held):
    return Row({KEPT: kept, BUDGET: held}, [("time within the budget, over that with everything kept", BUDGET, KEPT, 0, 1.4, False),
                                            ("GiB", BUDGET, None, 1, 1, False)], once=True)


ROWS = {
    "mamba": compared("mamba", 1024, "mambapy", (0, 4), (1, 20)),
    "mamba-long": budgeted(layer("mamba", 100000), layer("mamba", 100000, "1024MiB")),
    "mamba-130m": budgeted(model(), model("--memory-budget=1920MiB")),
    "gdn": compared("gdn", 1024, "transformers", (0, 1)),
    "gdn-32": Row({"Remat, 32 segments": layer("gdn-32", 4096, 32), "transformers": torch("gdn-32", 4096)},
                  [("seconds", "Remat, 32 segments", None, 0, 10, False), ("GiB", "Remat, 32 segments", None, 1, 0.5, False)], once=True),
    "slstm": compared("slstm", 256, "xlstm", (0, 10)),
    "m2rnn": compared("m2rnn", 1024, "the loop", (0, 1)),
    "m2rnn-long": Row({"T 1024": layer("m2rnn", 1024, 4), "T 4096": layer("m2rnn", 4096, 16)},
                      [("time at T 4096, over that at T 1024", "T 4096", "T 1024", 0, 5, False), ("seconds", "T 4096", None, 0, 10, False)]),
    "mingru": Row({"Remat's minGRU": minimal("mingru", 10**6), "Remat's LSTM": minimal("lstm", 64)},
                  [("time of the LSTM, over minGRU's", "Remat's LSTM", "Remat's minGRU", 0, 3, True)], once=True),
}


def spread(numbers, form):
    least, middle, most = (form.format(f(numbers)) for f in (min, statistics.median, max))
    return middle if len(numbers) == 1 or least == most else f"{middle} ({least} to {most})"


def show(name, threads, results):
    for candidate, rounds in results.items():
        if not rounds:
            print(f"| {name} | {threads} | {candidate} | not measured | | |")
            continue
        grown, plan = ([r[i] / 2**20 for r in rounds if r[i] is not None] for i in (1, 2))
        print(f"| {name} | {threads} | {candidate} | {spread([r[0] for r in rounds], '{:.3g}')} | {spread(grown, '{:.0f}') if grown else ''} "
              f"| {spread(plan, '{:.0f}') if plan else ''} |", flush=True)


def judged(name, threads, claim, results):
    text, over, under, what, bound, least = claim
    if not results[over] or under and not results[under]:
        return f"| {name} | {threads} | {text} | not measured | | |"
    unit = 1 if under or what == 0 else 2**30
    numbers = [a[what] / (b[what] if under else unit) for a, b in zip(results[over], results[under] if under else results[over])]
    middle = statistics.median(numbers)
    met = middle >= bound if least else middle <= bound
    return f"| {name} | {threads} | {text} | {spread(numbers, '{:.3g}')} | {'>=' if least else '<='} {bound} | {'yes' if met else '**no**'} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("REMAT_TORCH_PYTHON", sys.executable))
    parser.add_argument("--xlstm-python", help="default: --python")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", default=str(len(os.sched_getaffinity(0))), help="one number, or several: 1,2")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--timesteps", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.xlstm_python = options.xlstm_python or options.python
    if options.child:
        return child(options.child, int(options.threads), options.timesteps)
    names, claims = options.rows.split(","), []
    for name in names:
        if name not in ROWS:
            parser.error(f"--rows: unknown row '{name}'; use {', '.join(ROWS)}")
    print("| row | threads | candidate | seconds a step | MiB that steps add | MiB of activations in the plan |\n|---|--:|---|--:|--:|--:|")
    for name in names:
        row = ROWS[name]
        for threads in map(int, options.threads.split(",")):
            results = {candidate: [] for candidate in row.candidates}
            for _ in range(1 if row.once else options.rounds):
                for candidate, run in row.candidates.items():
                    results[candidate] += filter(None, [run(options, threads)])
            show(name, threads, results)
            claims += [judged(name, threads, claim, results) for claim in row.claims]
    print("\n| row | threads | | measured | target | met |\n|---|--:|---|--:|--:|---|\n" + "\n".join(claims))


if __name__ == "__main__":
    main()
