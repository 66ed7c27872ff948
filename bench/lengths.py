#!/usr/bin/env python3
"""Sequences of different lengths: the cost of padding, with shuffled batches and with --bucket-by-length, compared with PyTorch's packed
sequences.

    bench/lengths.py [--python=PYTHON-WITH-TORCH-AND-NUMPY] [--remat=PROGRAM] [--rounds=3] [--threads=1] [--pairs]

2,048 samples of 8 to 512 timesteps with 32 features, log-normal lengths (98 on average), ten classes; a bidirectional LSTM with two layers
of 128, batch 32, Adam. A row is the mean step time of an epoch, the median over rounds; Remat and PyTorch alternate. PyTorch uses
pack_padded_sequence on batches cut to their longest sample. Without lengths Remat computes all 512
timesteps.

--pairs: as many pairs of lines of 8 to 512 bytes, including the line end, with sources as long as above and targets of similar length, for
--task=seq2seq; an encoder and a decoder with one layer of 128, batch 32; Remat only."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
N, T, F, BATCH, WIDTH = 2048, 512, 32, 32, 128


def make(folder):
    import numpy as np

    draw = np.random.default_rng(1)
    np.save(f"{folder}/x.npy", draw.standard_normal((N, T, F), dtype=np.float32))
    np.save(f"{folder}/y.npy", draw.integers(0, 10, N).astype(np.uint8))
    np.save(f"{folder}/lengths.npy", np.clip(draw.lognormal(4.3, 0.8, N), 8, T).astype(np.int32))


def pytorch(folder, sort, threads):
    """Seconds per step, printed by a separate process."""
    import time

    import numpy as np
    import torch
    from torch import nn
    from torch.nn.utils.rnn import pack_padded_sequence

    torch.set_num_threads(threads)
    x, y, lengths = (np.load(f"{folder}/{name}.npy", mmap_mode="r") for name in ("x", "y", "lengths"))
    rnn, head = nn.LSTM(F, WIDTH, 2, bidirectional=True, batch_first=True), nn.Linear(2 * WIDTH, 10)
    optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()], 1e-3)
    draw = np.random.default_rng(0)
    order = draw.permutation(N)
    if sort:
        order = order[np.argsort(lengths[order], kind="stable")]
    batches, seconds = order.reshape(-1, BATCH), 0
    for batch in batches[draw.permutation(len(batches))]:
        batch = np.sort(batch)
        ends = torch.tensor(lengths[batch]).long()
        inputs = torch.from_numpy(np.ascontiguousarray(x[batch][:, :int(ends.max())]))
        labels = torch.tensor(y[batch]).long()
        start = time.perf_counter()
        optimizer.zero_grad()
        _, (h, _) = rnn(pack_padded_sequence(inputs, ends, batch_first=True, enforce_sorted=False))
        nn.functional.cross_entropy(head(torch.cat([h[-2], h[-1]], 1)), labels).backward()
        optimizer.step()
        seconds += time.perf_counter() - start
    print(seconds / len(batches))


def mean_step(options, folder, *flags):
    metrics = f"{folder}/metrics.jsonl"
    if os.path.exists(metrics):
        os.unlink(metrics)
    command = [options.remat, "train", f"--hidden={WIDTH}", f"--batch={BATCH}", f"--steps={N // BATCH}",
               f"--threads={options.threads}", f"--metrics={metrics}", *flags]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(metrics) as file:
        return statistics.mean(e["step_ms"] / 1e3 for e in map(json.loads, file) if e["event"] == "step")


def remat(options, folder, *flags):
    return mean_step(options, folder, "--task=classify", f"--data={folder}/x.npy", f"--labels={folder}/y.npy", "--bidirectional",
                     "--layers=2", *flags)


def make_pairs(folder):
    import random

    draw = random.Random(1)
    with open(f"{folder}/source", "w") as source, open(f"{folder}/target", "w") as target:
        for i in range(N):
            length = min(T - 1, max(7, int(draw.lognormvariate(4.3, 0.8)) - 1)) if i else T - 1
            other = min(T - 1, max(7, int(length * draw.lognormvariate(0, 0.2)))) if i else T - 1
            for file, letters in ((source, length), (target, other)):
                file.write("".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=letters)) + "\n")


def show(ways, rounds):
    found = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way())
    print("| | ms a step |\n|---|--:|")
    for name, seconds in found.items():
        print(f"| {name} | {1e3 * statistics.median(seconds):.0f} |")


def pairs(options, folder):
    make_pairs(folder)
    flags = ["--task=seq2seq", f"--data={folder}/source", f"--labels={folder}/target", "--layers=1", "--embed=64"]
    return {"Remat, pairs": lambda: mean_step(options, folder, *flags),
            "Remat, pairs, `--bucket-by-length`": lambda: mean_step(options, folder, *flags, "--bucket-by-length")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("REMAT_TORCH_PYTHON", sys.executable))
    parser.add_argument("--remat", default=f"{ROOT}/build/release/remat")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", action="store_true")
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        return make(options.job[1]) if options.job[0] == "make" else pytorch(options.job[1], options.job[0] == "sort", options.threads)

    def child(*job):
        command = [options.python, os.path.abspath(__file__), f"--threads={options.threads}", "--job", *job]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    with tempfile.TemporaryDirectory() as folder:
        if options.pairs:
            return show(pairs(options, folder), options.rounds)
        child("make", folder)
        lengths = f"--lengths={folder}/lengths.npy"
        ways = {"Remat, all timesteps": lambda: remat(options, folder),
                "Remat, `--lengths`": lambda: remat(options, folder, lengths),
                "Remat, `--lengths --bucket-by-length`": lambda: remat(options, folder, lengths, "--bucket-by-length"),
                "PyTorch, packed": lambda: float(child("as-they-come", folder)),
                "PyTorch, packed, sorted by length": lambda: float(child("sort", folder))}
        show(ways, options.rounds)


if __name__ == "__main__":
    main()
