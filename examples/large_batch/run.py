#!/usr/bin/env python3
"""Trains one network on the same samples with small batches and, in several ways, with batches 64 times as large,
for five seeds. Prints a table, and writes it to results.json and a plot to losses.svg.

    examples/large_batch/run.py [PATH/TO/remat] [--jobs=2] [--seeds=5]

Needs Python 3 and, for the plot, gnuplot. Each run uses one thread; `jobs` runs go on in parallel.
"""
import argparse
import concurrent.futures
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SMALL, LARGE, EPOCHS, SAMPLES = 4, 256, 15, 20000
SOLVED = 1e-3  # a constant answer of 1 has a loss of 1/6
TASK = ["--task=adding", "--seq-len=20", "--samples=%d" % SAMPLES, "--model=gru", "--layers=1", "--hidden=32",
        "--epochs=%d" % EPOCHS, "--eval-every=1000000000", "--threads=1", "--log-every=1000000000"]

SGD = ["--optimizer=sgd", "--momentum=0.9", "--lr=0.0075", "--lr-schedule=cosine"]
SCALED = ["--scale-lr=linear", "--base-batch=%d" % SMALL]
WARM_UP = ["--warmup-epochs=5"]
LARS = ["--optimizer=lars", "--momentum=0.9", "--lr=10", "--adapt-vectors", "--lr-schedule=poly"]
LAMB = ["--optimizer=lamb", "--lr=0.02", "--lr-schedule=poly"]

RUNS = [  # name, batch, flags; the first is the baseline
    ("small batch", SMALL, SGD),
    ("large batch, same rate", LARGE, SGD),
    ("rate x8 (sqrt), no warm-up", LARGE, SGD + ["--scale-lr=sqrt", "--base-batch=%d" % SMALL]),
    ("rate x64 (linear), no warm-up", LARGE, SGD + SCALED),
    ("rate x64 (linear), warm-up", LARGE, SGD + SCALED + WARM_UP),
    ("Nesterov, rate x21, warm-up", LARGE, SGD + SCALED + WARM_UP + ["--nesterov", "--lr=0.0025"]),
    ("LARS, warm-up", LARGE, LARS + WARM_UP),
    ("LAMB, warm-up", LARGE, LAMB + WARM_UP),
    ("LAMB, no warm-up", LARGE, LAMB),
]


def train(remat, seed, name, batch, flags):
    """Training losses by epoch, and the loss on held-out samples: None if the run diverged."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = os.path.join(folder, "metrics.jsonl")
        command = [remat, "train"] + TASK + flags + ["--batch=%d" % batch, "--seed=%d" % seed, "--metrics=" + metrics]
        done = subprocess.run(command, capture_output=True, text=True)
        events = [json.loads(line) for line in open(metrics)] if os.path.exists(metrics) else []
    steps = [e["loss"] for e in events if e["event"] == "step"]
    evals = [e["loss"] for e in events if e["event"] == "eval"]
    if done.returncode and "diverged" not in done.stderr:
        sys.exit("%s\n%s" % (" ".join(command), done.stderr))
    numbers = [loss for loss in steps if isinstance(loss, float)]
    return {"run": name, "seed": seed, "steps": len(steps), "held_out": evals[-1] if evals else None,
            "losses": means(numbers, SAMPLES // batch)}


# Losses are averaged over thirteenths of the first epoch (6 large batches) and over quarters of the others, so that
# small and large batches have equally smooth curves.
EDGES = [k / 13 for k in range(13)] + [1 + k / 4 for k in range((EPOCHS - 1) * 4 + 1)]


def means(losses, per_epoch):
    points = []
    for begin, end in zip(EDGES, EDGES[1:]):
        part = losses[round(begin * per_epoch):round(end * per_epoch)]
        if len(part) == round(end * per_epoch) - round(begin * per_epoch):
            points.append(float("%.4g" % (sum(part) / len(part))))
    return points


def row(results):
    """Median and range over the seeds that finished; how many diverged, and when; how many solved the problem."""
    ended = sorted(r["held_out"] for r in results if r["held_out"] is not None)
    text = "%.5f  (%.5f .. %.5f)" % (statistics.median(ended), ended[0], ended[-1]) if ended else "-"
    when = sorted(r["steps"] for r in results if r["held_out"] is None)
    broke = "%d of %d" % (len(when), len(results)) + (" (update %d .. %d)" % (when[0], when[-1]) if when else "")
    return text, broke, "%d of %d" % (sum(loss < SOLVED for loss in ended), len(results))


def table(results):
    title = ("", "updates", "held-out loss: median (range)", "diverged", "below %g" % SOLVED)
    print("%-30s %7s  %-32s %-26s %s" % title)
    for name, batch, _ in RUNS:
        text, broke, solved = row([r for r in results if r["run"] == name])
        print("%-30s %7d  %-32s %-26s %s" % (name, SAMPLES // batch * EPOCHS, text, broke, solved))


DRAWN = [(0, "#888888"), (1, "#e69f00"), (3, "#d55e00"), (4, "#0072b2"), (7, "#009e73")]


def plot(results, path):
    """The median training loss over seeds; the curve ends where most seeds have diverged."""
    with tempfile.TemporaryDirectory() as folder:
        lines = []
        for k, colour in DRAWN:
            curves = [r["losses"] for r in results if r["run"] == RUNS[k][0]]
            data = os.path.join(folder, "%d.dat" % k)
            with open(data, "w") as file:
                for i, (begin, end) in enumerate(zip(EDGES, EDGES[1:])):
                    there = [c[i] for c in curves if i < len(c)]
                    if len(there) * 2 > len(curves):
                        print((begin + end) / 2, min(statistics.median(there), 1e3), file=file)
            lines.append("'%s' using 1:2 with lines lw 2 lc rgb '%s' title '%s'" % (data, colour, RUNS[k][0]))
        script = ("set terminal svg size 760,420 font 'sans,12' background 'white'\nset output '%s'\n"
                  "set logscale y\nset format y '%%g'\nset yrange [2e-5:10]\n"
                  "set xrange [-0.3:%d]\nset xlabel 'epochs'\n"
                  "set ylabel 'training loss (median of seeds)'\nset key outside right top\nset grid\nplot %s\n"
                  % (path, EPOCHS, ", ".join(lines)))
        subprocess.run(["gnuplot"], input=script, text=True, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("remat", nargs="?", default=os.path.join(HERE, "../../build/release/remat"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--draw", action="store_true", help="only redraw and print results.json")
    options = parser.parse_args()
    saved = os.path.join(HERE, "results.json")
    if options.draw:
        results = json.load(open(saved))
    else:
        work = [(options.remat, seed) + run for seed in range(options.seeds) for run in RUNS]
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            results = list(pool.map(lambda arguments: train(*arguments), work))
        with open(saved, "w") as file:
            file.write("[\n" + ",\n".join(json.dumps(r) for r in results) + "\n]\n")
    table(results)
    plot(results, os.path.join(HERE, "losses.svg"))


if __name__ == "__main__":
    main()
