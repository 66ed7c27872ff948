#!/usr/bin/env python3
"""Cost of --verify-recompute: step time with it divided by step time without, on the same work.

    bench/verify.py [--rounds=9] [--steps=8] [--threads=N] [--remat=PROGRAM]

Every measurement is a separate process (`remat train`, the median of the steps after the first). Rounds are interleaved
(without, with, without, with, ...); the result is the median over rounds of the ratio within a round, with the
quartiles. The losses of both must be equal.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORK = [  # model, batch, hidden, layers, timesteps, plan
    ("lstm", 1, 128, 1, 4000, "--checkpoint=sqrt"),
    ("lstm", 16, 256, 1, 1000, "--checkpoint-segments=8"),
    ("gru", 4, 32, 1, 8000, "--checkpoint=sqrt"),
    ("gru", 2, 256, 3, 500, "--checkpoint-segments=1000"),
    ("rnn", 8, 256, 1, 2000, "--checkpoint=sqrt"),
]


def train(options, work, extra):
    model, B, H, L, T, plan = work
    with tempfile.TemporaryDirectory() as folder:
        metrics = os.path.join(folder, "metrics.jsonl")
        command = [options.remat, "train", f"--model={model}", f"--batch={B}", f"--hidden={H}", f"--layers={L}",
                   f"--seq-len={T}", "--embed=64", f"--threads={options.threads}", f"--data={options.data}", plan,
                   f"--steps={options.steps + 1}", f"--metrics={metrics}", *extra]
        environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        with open(metrics) as file:
            steps = [event for event in map(json.loads, file) if event["event"] == "step"]
    return statistics.median(e["step_ms"] for e in steps[1:]), steps[-1]["loss"]


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--remat", default=os.path.join(ROOT, "build", "release", "remat"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options.data = os.path.join(folder, "data")
        with open(options.data, "wb") as file:
            file.write(bytes(i * i % 251 for i in range(400_000)))
        for work in WORK:
            ratios = []
            for _ in range(options.rounds):
                without, loss = train(options, work, [])
                verified, same = train(options, work, ["--verify-recompute"])
                if loss != same:
                    sys.exit(f"{work}: the losses differ: {loss!r}, {same!r}")
                ratios.append(verified / without - 1)
            low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
            model, B, H, L, T, plan = work
            print(f"{model:<9} B{B:<3} H{H:<4} L{L} T{T:<5} {plan.lstrip('-'):<26} {middle:+.2%}   "
                  f"(quartiles {low:+.2%} {high:+.2%})", flush=True)


if __name__ == "__main__":
    main()
