#!/usr/bin/env python3
"""Compares minGRU and minLSTM with PyTorch's recurrent layers and with the log-space versions of minGRU-pytorch.

    bench/minimal.py [--python=PYTHON-WITH-TORCH-AND-minGRU-pytorch] [--rounds=5] [--threads=1,2] [--million]

The work is forward and backward of one layer with 10 numbers per timestep, B64 H100 T1000, fp32; the loss is the mean square of h. With
--million it is a byte-level language model in Remat only, B1 H256 T1,000,000: minGRU with a segment per tile, compared with
the LSTM in 64 segments. Every measurement is a separate process, which makes a warm-up step and then five steps. The candidates
alternate; a number is the median over rounds of the processes' medians, with minimum and maximum. Needs build/release.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = os.path.join(ROOT, "build", "release", "bench", "bench_minimal")
B, I, H, T, STEPS = 64, 10, 100, 1000, 5
REMAT, TORCH = ("mingru", "minlstm", "gru", "lstm"), ("gru", "lstm", "mingru", "minlstm")


def child(cell, threads):
    """Runs PyTorch; prints one JSON line."""
    import time

    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    if cell.startswith("min"):
        from minGRU_pytorch.minGRU import minGRU
        from minGRU_pytorch.minLSTM import minLSTM

        kind = {"mingru": minGRU, "minlstm": minLSTM}[cell]
        layer = kind(I, expansion_factor=H / I, proj_out=False)
        run, shape = layer, (B, T, I)
    else:
        layer = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[cell](I, H)
        run, shape = (lambda x: layer(x)[0]), (T, B, I)
    x, times = torch.randn(shape), []
    for _ in range(STEPS + 1):
        start = time.perf_counter()
        layer.zero_grad(set_to_none=True)
        run(x).square().mean().backward()
        times.append(time.perf_counter() - start)
    print(json.dumps(times))


def run_torch(options, cell, threads):
    command = [options.python, os.path.abspath(__file__), "--child", cell, "--threads", str(threads)]
    out = subprocess.run(command, env=dict(os.environ, OMP_NUM_THREADS=str(threads)), check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    return statistics.median(json.loads(out.splitlines()[-1])[1:])


def run_remat(cell, threads, size=(B, I, H, T), segments=0, steps=STEPS):
    command = [PROGRAM, cell, *map(str, size), str(segments), str(steps + 1), str(threads)]
    out = subprocess.run(command, env=dict(os.environ, GOMP_SPINCOUNT="20000"), check=True, stdout=subprocess.PIPE,
                         text=True).stdout.split()
    return statistics.median(map(float, out[1:-1])), int(out[-1])


def show(seconds):
    return f"{1e3 * statistics.median(seconds):.0f} ({1e3 * min(seconds):.0f} to {1e3 * max(seconds):.0f})"


def compare(options, threads):
    ours, theirs = {cell: [] for cell in REMAT}, {cell: [] for cell in TORCH}
    for _ in range(options.rounds):
        for cell in REMAT:
            ours[cell].append(run_remat(cell, threads)[0])
            theirs[cell].append(run_torch(options, cell, threads))
    print(f"\n{threads} thread{'s' * (threads > 1)}, ms a step, median of {options.rounds} rounds (least to most)\n")
    print("| | mingru | minlstm | gru | lstm |\n|---|--:|--:|--:|--:|")
    for name, times in (("Remat", ours), ("PyTorch, minGRU-pytorch", theirs)):
        print(f"| {name} | " + " | ".join(show(times[cell]) for cell in REMAT) + " |")
    for cell, other in (("mingru", "gru"), ("mingru", "mingru"), ("minlstm", "lstm"), ("minlstm", "minlstm")):
        ratios = [b / a for a, b in zip(ours[cell], theirs[other])]  # within a round
        print(f"Remat's {cell} is {statistics.median(ratios):.1f} times as fast as PyTorch's {other} "
              f"({min(ratios):.1f} to {max(ratios):.1f})")


def million(options, threads):
    size = (1, 0, 256, options.timesteps)
    times = {"mingru": [], "lstm": []}
    for _ in range(options.rounds):
        for cell, segments in (("mingru", 10**6), ("lstm", 64)):
            seconds, activations = run_remat(cell, threads, size, segments, 1)
            times[cell].append(seconds)
            print(f"{cell}: {seconds:.1f} s, activations {activations / 2**20:.1f} MiB", flush=True)
    ratios = [b / a for a, b in zip(times["mingru"], times["lstm"])]
    print(f"T {options.timesteps:,}, {threads} threads: mingru takes 1/{statistics.median(ratios):.1f} of the lstm's step")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("REMAT_TORCH_PYTHON", sys.executable))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--timesteps", type=int, default=10**6, help="of --million")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.child, int(options.threads))
    for threads in map(int, options.threads.split(",")):
        (million if options.million else compare)(options, threads)


if __name__ == "__main__":
    main()
