#!/usr/bin/env python3
"""Compares PyTorch with remat.nn and remat.compile in a Python script: steps of layers and whole models, small calls, the longest sequence.

    bench/python.py [--python=PYTHON-WITH-TORCH] [--rounds=3] [--threads=1] [--divide=1] [--only=WORDS] [--memory=4]

Steps are forward and backward of a layer, fp32; the loss is the sum of its output. The longest sequence is that of a language model of
bytes, B16 H256 (embedding, LSTM, linear, cross entropy): a process is run at two lengths, and the line through its two peaks
meets --memory GiB there. For remat.compile it is the longest plan that fits, doubling from 10,000. Whole models are those of networks.py,
forward and backward; their times are CPU times, and memory is the process's peak beyond importing PyTorch and torchvision. Every measurement
is a process of its own; candidates alternate, and a time is the median over rounds of the processes' fastest steps. --divide makes all
sequences and images smaller. Needs build/release, or REMAT_LIBRARY.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARY = os.path.join(ROOT, "build", "release", "libremat.so")
STEPS = {  # name: batch, width, layers, timesteps, steps
    "B16 H256 T4000": (16, 256, 1, 4000, 2),
    "B1 H128 T20000": (1, 128, 1, 20000, 2),
    "B32 H512 L2 T1000": (32, 512, 2, 1000, 2),
    "tiny: B2 H8 T4": (2, 8, 1, 4, 300),
}
LAYERS = {"nn.LSTM": None, "remat.nn.LSTM": {}, "remat.nn.LSTM, 32 segments": {"segments": 32}}
MODELS = ("nn.LSTM", "nn.LSTM, checkpoints of 32 chunks", "remat.nn.LSTM, 32 segments", "remat.nn.LSTMCrossEntropy, 32 segments")
WHOLE = {  # name: row of networks.py, memory budget
    "whole model: ResNet-50, B16 128x128": ("resnet50", "200MiB"),
    "whole model: GPT, 6 layers of 384, B4 T1024": ("gpt2", "300MiB"),
}
B, H, V = 16, 256, 256


def layer(name, *sizes, **arguments):
    import torch

    if name.startswith("nn."):
        return torch.nn.LSTM(*sizes, **arguments)
    import remat.nn

    return remat.nn.LSTM(*sizes, **arguments, **LAYERS[name])


def step_times(name, batch, width, layers, timesteps, steps):
    import time

    import torch

    torch.manual_seed(0)
    module, times = layer(name, width, width, layers), []
    x = torch.randn(timesteps, batch, width, requires_grad=True)
    for _ in range(steps + 1):
        start = time.perf_counter()
        module.zero_grad()
        module(x)[0].sum().backward()
        times.append(time.perf_counter() - start)
    kept = None if name.startswith("nn.") else module.plan(timesteps, batch).activations_peak_bytes
    return {"seconds": min(times[1:]), "activations": kept}


def in_chunks(lstm, x):
    """The LSTM over 32 chunks, each of which keeps its input and states alone."""
    import torch
    from torch.utils.checkpoint import checkpoint

    states, made = tuple(torch.zeros(1, x.shape[1], H) for _ in "hc"), []
    for chunk in x.chunk(32):
        y, states = checkpoint(lstm, chunk, states, use_reentrant=False)
        made.append(y)
    return torch.cat(made)


def language_model(name, timesteps):
    """One step; returns the process's peak in bytes."""
    import resource

    import torch

    torch.manual_seed(0)
    tokens = torch.randint(V, (timesteps + 1, B))
    embedding = torch.nn.Embedding(V, H)
    x, targets = embedding(tokens[:-1]), tokens[1:]
    if "CrossEntropy" in name:
        import remat.nn

        loss, _ = remat.nn.LSTMCrossEntropy(H, H, V, segments=32)(x, targets)
    else:
        lstm, head = layer(name if name in LAYERS else "nn.LSTM", H, H), torch.nn.Linear(H, V)
        y = in_chunks(lstm, x) if "chunks" in name else lstm(x)[0]
        loss = torch.nn.functional.cross_entropy(head(y).flatten(0, 1), targets.flatten())
        del y
    del x
    loss.backward()
    return {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def longest_compiled(memory):
    """The most timesteps, doubling, for which remat.compile has a plan: what the process takes already, the batch as
    PyTorch's and as Remat's integers, and the budget are `memory` bytes together."""
    import resource

    import torch

    import remat

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.lstm, self.head = torch.nn.Embedding(V, H), torch.nn.LSTM(H, H), torch.nn.Linear(H, V)

        def forward(self, tokens):
            return self.head(self.lstm(self.embedding(tokens))[0]).flatten(0, 1)

    def loss(logits, targets):
        return torch.nn.functional.cross_entropy(logits, targets.flatten())

    longest, timesteps, model = 0, 10_000, Model()
    while True:
        tokens = torch.zeros((1, B), dtype=torch.int64).expand(timesteps, B)
        taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + 2 * timesteps * B * (8 + 4)
        try:
            step = remat.compile(model, loss, (tokens, tokens), memory_budget=int(memory - taken), plan_only=True)
        except (remat.Error, OverflowError):
            return {"timesteps": longest, "factor": factor if longest else 0}
        longest, factor, timesteps = timesteps, step.plan.recompute_factor, 2 * timesteps


def model_steps(row, budget, divide):
    """budget: None: PyTorch alone; 0: everything kept."""
    import time

    import networks
    import torch
    import torchvision  # noqa: F401  # part of what is not counted

    networks.set_sizes("cpu")
    before = networks.resident_kib("VmRSS")
    torch.manual_seed(0)
    if row == "gpt2":
        networks.T = max(networks.T // divide, 8)
        model, x, y = networks.gpt(False), *torch.randint(256, (2, networks.TEXTS, networks.T))
    else:
        model, y = networks.resnet(row, False), torch.randint(networks.CLASSES, (networks.BATCH,))
        x = torch.randn(networks.BATCH, 3, max(networks.SIDE // divide, 32), max(networks.SIDE // divide, 32))

    def loss(out, target):
        return torch.nn.functional.cross_entropy(out.flatten(0, -2), target.flatten())

    def step(x, y):
        model.zero_grad()
        loss(model(x), y).backward()

    if budget is not None:
        import remat

        step = remat.compile(model, loss, (x, y), **({"memory_budget": budget} if budget else {}))
    times = []
    for _ in range(4):
        start = time.process_time()
        step(x, y)
        times.append(time.process_time() - start)
    return {"seconds": min(times[1:]), "mib": (networks.resident_kib("VmHWM") - before) / 1024}


def run(options, function, *arguments):
    environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads), PYTHONPATH=os.path.join(ROOT, "python"))
    environment.setdefault("REMAT_LIBRARY", LIBRARY)
    command = [options.python, os.path.abspath(__file__), "--child", json.dumps([function.__name__, *arguments])]
    out = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.splitlines()[-1])


def show_steps(options):
    for size, (batch, width, layers, timesteps, steps) in STEPS.items():
        if options.only not in size:
            continue
        timesteps, found = max(timesteps // options.divide, 4), {name: [] for name in LAYERS}
        for _ in range(options.rounds):
            for name in LAYERS:
                found[name].append(run(options, step_times, name, batch, width, layers, timesteps, steps))
        print(f"\n{size}" + (f", {timesteps} timesteps" if options.divide > 1 else ""))
        peer = statistics.median(f["seconds"] for f in found["nn.LSTM"])
        for name, results in found.items():
            seconds = statistics.median(r["seconds"] for r in results)
            kept = results[0]["activations"]
            print(f"  {name:28} {seconds * 1e3:10.3f} ms  {seconds / peer:5.2f} x"
                  + (f"  {kept / 2**20:8.1f} MiB of activations" if kept is not None else ""), flush=True)


def show_models(options):
    for name, (row, budget) in WHOLE.items():
        if options.only not in name:
            continue
        ways = {"PyTorch": None, "remat.compile": 0, f"remat.compile, {budget}": budget}
        found = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way, limit in ways.items():
                found[way].append(run(options, model_steps, row, limit, options.divide))
        print(f"\n{name}")
        middle = {way: [statistics.median(r[of] for r in results) for of in ("seconds", "mib")] for way, results in found.items()}
        for way, (seconds, mib) in middle.items():
            peer = middle["PyTorch"]
            print(f"  {way:28} {seconds:7.3f} s  {seconds / peer[0]:5.2f} x  {mib:6.0f} MiB  {mib / peer[1]:5.2f} x", flush=True)


def show_longest(options):
    if options.only not in "longest":
        return
    print(f"\nlongest sequence of a language model, B{B} H{H}, in {options.memory} GiB")
    longest = {}
    for name in MODELS:
        lengths = [max(n // options.divide, n // 25) for n in (1000, 3000)]
        low, high = (run(options, language_model, name, n)["peak"] for n in lengths)
        slope = (high - low) / (lengths[1] - lengths[0])
        longest[name] = lengths[1] + (options.memory * 2**30 - high) / slope if slope > 0 else float("nan")
        print(f"  {name:40} {longest[name]:10.0f} timesteps  {longest[name] / longest['nn.LSTM']:5.1f} x"
              f"  {slope / 1024:6.1f} KiB a timestep", flush=True)
    found = run(options, longest_compiled, options.memory * 2**30)
    print(f"  {'remat.compile, by its plan':40} {found['timesteps']:10.0f} timesteps"
          f"  {found['timesteps'] / longest['nn.LSTM']:5.1f} x  forward work {found['factor']:.2f} x", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("REMAT_TORCH_PYTHON", sys.executable))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--divide", type=int, default=1)
    parser.add_argument("--only", default="", help="sizes that contain these words, or longest")
    parser.add_argument("--memory", type=float, default=4)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, *arguments = json.loads(options.child)
        print(json.dumps(globals()[name](*arguments)))
        return
    show_steps(options)
    show_models(options)
    show_longest(options)


if __name__ == "__main__":
    main()
