#!/usr/bin/env python3
"""Compares an LSTM's training step with PyTorch's, over batches, widths and depths, from tokens and from features.

    bench/sweep.py [--python=PYTHON-WITH-TORCH] [--batch=1,4,16,64] [--hidden=64,128,256,512,1024] [--layers=1,2,3]
                   [--input=tokens,features] [--rounds=3] [--threads=N]

A step is forward, backward and SGD, fp32, through all timesteps: for tokens embedding(128) -> LSTM -> linear(256) -> cross entropy,
for H features LSTM -> linear(1) -> squared error. The number of timesteps is chosen so that a step is neither too short
to be timed nor too long to wait for.

In each round a Remat process and PyTorch alternate; each makes a warm-up step and then some steps, of which the median
counts. The ratio of a shape is the median of the rounds' ratios. PyTorch runs in one process, with its fastest
settings for that shape (one thread or all, with oneDNN or without), found before the rounds.

The table shows PyTorch's time divided by Remat's: below 1, PyTorch is faster."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EMBED, VOCABULARY, SAMPLES = 128, 256, 64
SETTINGS = [(threads, onednn) for threads in ("one", "all") for onednn in (True, False)]


def timesteps(B, H, L):
    """Timesteps for about ten billion multiply-adds per step; the last linear layer hardly counts."""
    return max(48, min(2048, int(1e10 / (3 * B * L * 8 * H * H)) // 16 * 16))


# ---- PyTorch's process ----------------------------------------------------------------------------------------------


def build(work):
    import torch
    from torch import nn

    B, T, H, L = work["B"], work["T"], work["H"], work["L"]
    torch.manual_seed(1)
    tokens = work["input"] == "tokens"
    rnn = nn.LSTM(EMBED if tokens else H, H, L)
    head = nn.Linear(H, VOCABULARY if tokens else 1)
    embedding = nn.Embedding(VOCABULARY, EMBED) if tokens else nn.Identity()
    x = torch.randint(VOCABULARY, (T, B)) if tokens else torch.randn(T, B, H)
    y = torch.randint(VOCABULARY, (T * B,)) if tokens else torch.randn(T * B, 1)
    loss = nn.CrossEntropyLoss() if tokens else nn.MSELoss()
    parameters = [p for module in (embedding, rnn, head) for p in module.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01)

    def step():
        optimizer.zero_grad(set_to_none=True)
        out, _ = rnn(embedding(x))
        loss(head(out).flatten(0, 1), y).backward()
        optimizer.step()

    return step


def child(threads):
    """Reads lines of JSON, each a shape and a setting; answers with the seconds of its steps."""
    import torch

    step, built = None, None
    print(json.dumps(torch.__version__), flush=True)
    for line in sys.stdin:
        work = json.loads(line)
        if built != work["shape"]:
            step, built = build(work["shape"]), work["shape"]
        torch.set_num_threads(1 if work["setting"][0] == "one" else threads)
        torch.backends.mkldnn.enabled = work["setting"][1]
        times = []
        for _ in range(work["steps"] + 1):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        print(json.dumps(statistics.median(times[1:])), flush=True)


# ---- Remat's process ------------------------------------------------------------------------------------------------


class Torch:
    def __init__(self, options):
        environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads))
        self.process = subprocess.Popen([options.python, os.path.abspath(__file__), "--child", str(options.threads)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.version = json.loads(self.process.stdout.readline())

    def seconds(self, shape, setting, steps):
        print(json.dumps(dict(shape=shape, setting=setting, steps=steps)), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())


def write_npy(path, shape, make):
    """Writes random numbers around zero, without NumPy."""
    import array
    import random

    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    count = 1
    for extent in shape:
        count *= extent
    random.seed(1)
    some = array.array("f", (make() for _ in range(min(count, 1 << 16))))
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
        for at in range(0, count, len(some)):
            file.write(some[:count - at].tobytes())


def remat_seconds(options, folder, shape, steps):
    import random

    B, T, H, L = (shape[key] for key in "BTHL")
    metrics = os.path.join(folder, "metrics.jsonl")
    command = [options.remat, "train", "--model=lstm", f"--layers={L}", f"--hidden={H}", f"--batch={B}", f"--steps={steps + 1}",
               "--optimizer=sgd", "--lr=0.01", "--checkpoint=none", f"--threads={options.threads}", f"--metrics={metrics}"]
    if shape["input"] == "tokens":
        command += ["--task=lm", f"--data={options.data}", f"--embed={EMBED}", f"--seq-len={T}"]
    else:
        x, y = (os.path.join(folder, name) for name in ("x.npy", "y.npy"))
        write_npy(x, (B, T, H), lambda: random.gauss(0, 1))
        write_npy(y, (B, T, 1), lambda: random.gauss(0, 1))
        command += ["--task=regress", f"--data={x}", f"--labels={y}"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    with open(metrics) as file:
        events = [json.loads(line) for line in file]
    os.remove(metrics)  # a run refuses to overwrite existing metrics
    return statistics.median([e["step_ms"] / 1e3 for e in events if e["event"] == "step"][1:])


def measure(options, torch, folder, shape):
    tried = {setting: torch.seconds(shape, setting, 1) for setting in SETTINGS}
    best = min(tried, key=tried.get)
    steps = max(2, min(10, int(1 / tried[best])))
    rounds = []
    for _ in range(options.rounds):
        here = remat_seconds(options, folder, shape, steps)
        rounds.append((torch.seconds(shape, best, steps), here))
    ratio = statistics.median(there / here for there, here in rounds)
    return dict(shape=shape, setting=best, ratio=ratio, rounds=rounds)


def numbers(text):
    return [int(word) for word in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("REMAT_TORCH_PYTHON", sys.executable))
    parser.add_argument("--remat", default=os.path.join(ROOT, "build", "release", "remat"))
    parser.add_argument("--data", default=os.path.join(ROOT, "examples", "data", "shakespeare.txt"))
    parser.add_argument("--batch", type=numbers, default=[1, 4, 16, 64])
    parser.add_argument("--hidden", type=numbers, default=[64, 128, 256, 512, 1024])
    parser.add_argument("--layers", type=numbers, default=[1, 2, 3])
    parser.add_argument("--input", type=lambda text: text.split(","), default=["tokens", "features"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.child)
    torch = Torch(options)
    print(f"PyTorch {torch.version}, {options.threads} threads, {options.rounds} rounds\n")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.input:
            for L in options.layers:
                print(f"from {kind}, {L} layer{'s' if L > 1 else ''}\n")
                print("| B | " + " | ".join(f"H {H}" for H in options.hidden) + " |\n|--:|" + "--:|" * len(options.hidden))
                for B in options.batch:
                    row = []
                    for H in options.hidden:
                        shape = dict(input=kind, B=B, H=H, L=L, T=timesteps(B, H, L))
                        results.append(measure(options, torch, folder, shape))
                        row.append(f"{results[-1]['ratio']:.2f}")
                    print(f"| {B} | " + " | ".join(row) + " |", flush=True)
                print()
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
