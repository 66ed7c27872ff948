#!/usr/bin/env python3
"""Compares the op conv with PyTorch's conv2d: forward and backward on ResNet shapes, a batch of 16, fp32, and their ratios.

    bench/conv.py [--python=PYTHON] [--rounds=5] [--threads=2] [--calls=10]

Needs build/release (bench_conv), and a Python with PyTorch: --python, or $REMAT_TORCH_PYTHON, or this interpreter. Each round
runs a process of bench_conv and a process of PyTorch, which runs every row plain and channels_last. The time of a process is the
best of its calls; for PyTorch the faster layout counts. Prints medians over the rounds, and the median and range of the ratios.
"""
import argparse
import os
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# As in conv.c: channels, side, outputs, filter, stride, padding.
ROWS = ((64, 32, 64, 3, 1, 1), (128, 16, 128, 3, 1, 1), (256, 8, 256, 3, 1, 1), (64, 32, 256, 1, 1, 0), (3, 128, 64, 7, 2, 3),
        (128, 32, 128, 3, 2, 1), (512, 4, 512, 3, 1, 1), (512, 7, 512, 3, 1, 1))


def torch_process(row, threads, calls):
    import time

    import torch

    torch.set_num_threads(threads)
    channels, side, outputs, size, stride, padding = ROWS[row]
    best = float("inf")
    for layout in (torch.contiguous_format, torch.channels_last):
        conv = torch.nn.Conv2d(channels, outputs, size, stride, padding).to(memory_format=layout)
        x = torch.randn(16, channels, side, side).to(memory_format=layout).requires_grad_()
        dy = torch.randn_like(conv(x))
        for _ in range(calls + 2):
            start = time.perf_counter()
            conv(x).backward(dy)
            best = min(best, time.perf_counter() - start)
            x.grad = None
    print(best * 1e3)


def numbers(command, threads):
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    return sum(map(float, subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("REMAT_TORCH_PYTHON", sys.executable))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row is not None:
        return torch_process(args.row, args.threads, args.calls)
    print(f"| batch of 16, {args.threads} threads | Remat [ms] | PyTorch [ms] | of PyTorch's time | from | to |\n"
          "|---|--:|--:|--:|--:|--:|")
    for row, (channels, side, outputs, size, stride, _) in enumerate(ROWS):
        ours, theirs = [], []
        for _ in range(args.rounds):
            ours.append(numbers([f"{ROOT}/build/release/bench/bench_conv", str(args.calls), str(row)], args.threads))
            theirs.append(numbers([args.python, __file__, f"--row={row}", f"--threads={args.threads}",
                                   f"--calls={args.calls}"], args.threads))
        ratios = [a / b for a, b in zip(ours, theirs)]
        print(f"| {channels} x {side} x {side}, {size} x {size} to {outputs}, stride {stride} | {statistics.median(ours):.1f} "
              f"| {statistics.median(theirs):.1f} | {statistics.median(ratios):.2f} | {min(ratios):.2f} | {max(ratios):.2f} |",
              flush=True)


if __name__ == "__main__":
    main()
