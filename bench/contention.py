#!/usr/bin/env python3
"""Step times while other programs use the processors, too: Remat and PyTorch on one thread and on several, with no, one and
two busy loops running.

    bench/contention.py [--python=PYTHON-WITH-TORCH] [--busy=0,1,2] [--rows=a,b] [--rounds=3] [--steps=8] [--threads=N]
                        [--before=PROGRAM] [--no-torch] [--json=FILE]

The work is that of compare_pytorch.py: one training step of embedding(128) -> LSTM -> linear(256) -> cross entropy, fp32, through all T
timesteps. Every measurement is a separate process, which makes one warm-up step and then --steps steps. The candidates alternate;
a number is the median over rounds of the processes' medians, followed by the slowest step of all rounds. A busy loop is a counting
Python process with the same priority as the measured processes. --before: another build of `remat`, to compare with.
"""
import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile

import compare_pytorch

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROWS = {"a": dict(B=1, H=128, L=1, T=4000), "b": dict(B=16, H=256, L=1, T=256)}


def processor():
    """The name that the system gives; virtual machines often hide the generation, but the newest instructions reveal it."""
    with open("/proc/cpuinfo") as file:
        lines = dict(line.split(":", 1) for line in file.read().split("\n\n")[0].splitlines() if ":" in line)
    field = {key.strip(): value.strip() for key, value in lines.items()}
    newest = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_tile", "avx512_vp2intersect") if flag in field.get("flags", "").split()]
    return f"{field.get('model name', 'unknown')}, family {field.get('cpu family')}, model {field.get('model')}, {' '.join(newest)}"


@contextlib.contextmanager
def busy_loops(n):
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_remat(options, program, row, threads):
    with tempfile.TemporaryDirectory() as folder:
        metrics = os.path.join(folder, "metrics.jsonl")
        command = [program, "train", "--model=lstm", f"--layers={row['L']}", f"--hidden={row['H']}",
                   f"--embed={compare_pytorch.EMBED}", "--task=lm", f"--data={options.data}", f"--seq-len={row['T']}",
                   f"--batch={row['B']}", f"--steps={options.steps + 1}", "--optimizer=sgd", "--lr=0.1", "--seed=1",
                   f"--threads={threads}", "--checkpoint=none", f"--metrics={metrics}"]
        environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        with open(metrics) as file:
            events = [json.loads(line) for line in file]
    return [e["step_ms"] for e in events if e["event"] == "step"][1:]


def run_torch(options, row, threads):
    work = dict(row, data=options.data, threads=threads, onednn=True, chunks=1, steps=options.steps)
    return [1e3 * compare_pytorch.run_torch(options, work)["seconds"]]


def contestants(options):
    list_ = [("Remat, 1 thread", lambda row: run_remat(options, options.remat, row, 1))]
    if options.before:
        list_.append((f"before, {options.threads} threads", lambda row: run_remat(options, options.before, row, options.threads)))
    list_.append((f"Remat, {options.threads} threads", lambda row: run_remat(options, options.remat, row, options.threads)))
    if not options.no_torch:
        list_.append(("PyTorch, 1 thread", lambda row: run_torch(options, row, 1)))
        list_.append((f"PyTorch, {options.threads} threads", lambda row: run_torch(options, row, options.threads)))
    return list_


def measure(options, row, busy):
    times = {name: [] for name, _ in contestants(options)}
    with busy_loops(busy):
        for _ in range(options.rounds):
            for name, run in contestants(options):
                times[name].append(run(row))
    return times


def show(rounds):
    median, slowest = statistics.median(map(statistics.median, rounds)), max(map(max, rounds))
    return f"{median:.0f} ({slowest:.0f})" if slowest > median else f"{median:.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("REMAT_TORCH_PYTHON", sys.executable))
    parser.add_argument("--remat", default=os.path.join(ROOT, "build", "release", "remat"))
    parser.add_argument("--before")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--data", default=os.path.join(ROOT, "examples", "data", "shakespeare.txt"))
    parser.add_argument("--rows", default=",".join(ROWS), help="some of " + ", ".join(f"{k}: B{r['B']} H{r['H']} T{r['T']}" for k, r in ROWS.items()))
    parser.add_argument("--busy", default="0,1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json")
    options = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} processors: {processor()}; load before: {os.getloadavg()[0]:.1f}\n", flush=True)
    print("ms a step, and the slowest (of PyTorch, the slowest process's median)\n")
    names, results = [name for name, _ in contestants(options)], []
    print("| work | busy loops | " + " | ".join(names) + " |\n|---|--:|" + "--:|" * len(names))
    for row in (ROWS[key] for key in options.rows.split(",")):
        for busy in map(int, options.busy.split(",")):
            times = measure(options, row, busy)
            results.append(dict(row=row, busy=busy, ms=times))
            print(f"| B{row['B']} H{row['H']} T{row['T']} | {busy} | " + " | ".join(show(times[n]) for n in names) + " |", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(dict(processor=processor(), threads=options.threads, results=results), file, indent=1)


if __name__ == "__main__":
    main()
