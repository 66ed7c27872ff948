#!/usr/bin/env python3
"""Cost of --timeline: processor time of a run with it divided by that of one without, on the same work.

    bench/timeline.py [--rounds=9] [--steps=24] [--remat=PROGRAM]

Every measurement is a job of one or two ranks of one thread (`remat train`), which is the first steps only: all of them are written to
the file, which is the most that a timeline costs. Rounds are interleaved (without, with, ...); the result is the median over
rounds of the ratio within a round, with the quartiles. Processor time is compared, not wall time, because other programs
disturb it less. The losses of both must be equal.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORK = [  # ranks, hidden, batch, timesteps, plan
    (1, 256, 8, 2000, "--checkpoint=sqrt"),
    (1, 128, 1, 4000, "--checkpoint=sqrt"),
    (2, 256, 8, 2000, "--checkpoint=sqrt"),
]


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def train(options, work, folder, extra):
    ranks, hidden, batch, timesteps, plan = work
    metrics = os.path.join(folder, f"metrics{len(os.listdir(folder))}.jsonl")
    launch = [options.remat, "launch", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [*launch, options.remat, "train", f"--hidden={hidden}", f"--batch={batch}", f"--seq-len={timesteps}",
               "--threads=1", f"--data={options.data}", f"--steps={options.steps}", plan, f"--metrics={metrics}", *extra]
    before = cpu_seconds()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    taken = cpu_seconds() - before
    with open(metrics) as file:
        return taken, [e["loss"] for e in map(json.loads, file) if e["event"] == "step"]


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--remat", default=os.path.join(ROOT, "build", "release", "remat"))
    options = parser.parse_args()
    for work in WORK:
        with tempfile.TemporaryDirectory() as folder:
            options.data = os.path.join(folder, "data")
            with open(options.data, "wb") as file:
                file.write(bytes(i * i % 251 for i in range(200000)))
            path, ratios = os.path.join(folder, "timeline.json"), []
            for _ in range(options.rounds):
                plain, losses = train(options, work, folder, [])
                seen, same = train(options, work, folder, [f"--timeline={path}"])
                if losses != same:
                    sys.exit(f"{work}: losses differ with --timeline")
                ratios.append(seen / plain)
            low, middle, high = statistics.quantiles(ratios * 2, n=4)
            print(f"{work[0]} ranks, hidden {work[1]}, batch {work[2]}, {work[3]} timesteps: {middle:.4f} "
                  f"({low:.4f} .. {high:.4f}), file {os.path.getsize(path) / 1024:.0f} KiB", flush=True)


if __name__ == "__main__":
    main()
