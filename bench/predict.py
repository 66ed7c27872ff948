#!/usr/bin/env python3
"""Accuracy of predicted step times: compares the predictions of `remat` for about a hundred plans with measured times.

    bench/predict.py [--rounds=2] [--steps=6] [--threads=N] [--shapes=a,b,...] [--remat=PROGRAM] [--json=FILE]

Twelve shapes of recurrent language models with nine plans each: everything kept, lean, sqrt, several numbers of segments, and
the plans for two memory budgets. The first plan of a shape measures its kernels (`--calibration`, a fresh file for this run of
the script); the others read the file. The predicted time is the plan's step_ns + fixed_ns (the plan itself, and the rest of a
step); the measured time is the median of the steps after the first, then over rounds. For comparison it also shows the prediction without
measurements (`--calibration=off`), from the device's rates; not for budgets, which would choose another plan.

Needs a quiet machine: predictions assume that nothing else runs. Rounds visit all plans in turn, so that a slow
minute does not affect only one shape.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

SHAPES = {  # name: model, batch, hidden, layers, timesteps
    "a": ("lstm", 1, 128, 1, 4000),
    "b": ("lstm", 8, 256, 1, 600),
    "c": ("lstm", 4, 128, 2, 2000),
    "d": ("lstm", 32, 64, 1, 1000),
    "e": ("lstm", 2, 512, 1, 400),
    "f": ("lstm", 16, 256, 1, 1000),
    "g": ("gru", 16, 256, 1, 500),
    "h": ("gru", 1, 64, 2, 5000),
    "i": ("gru", 4, 32, 1, 8000),
    "j": ("gru", 2, 256, 3, 500),
    "k": ("rnn", 8, 256, 1, 2000),
    "l": ("rnn", 1, 512, 1, 2000),
}
POLICIES = ["--checkpoint=none", "--checkpoint=lean", "--checkpoint=sqrt", "--checkpoint-segments=2", "--checkpoint-segments=4",
            "--checkpoint-segments=7", "--checkpoint-segments=1000", "budget 0.6", "budget 0.2"]


def say(text=""):
    print(text, flush=True)


def flags(options, shape):
    model, B, H, L, T = SHAPES[shape]
    return [f"--model={model}", f"--batch={B}", f"--hidden={H}", f"--layers={L}", f"--seq-len={T}", "--embed=64",
            f"--threads={options.threads}", f"--data={options.data}"]


def plan_of(options, shape, policy, calibration):
    command = [options.remat, "plan", *flags(options, shape), *policy, f"--calibration={calibration}", "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def policy_flags(options, shape, policy):
    """The flag of a budget at this fraction of the way from the smallest plan to keeping everything."""
    if not policy.startswith("budget"):
        return [policy]
    most = plan_of(options, shape, ["--checkpoint=none"], "off")["budgeted_bytes"]
    least = plan_of(options, shape, ["--checkpoint=sqrt"], "off")["budgeted_bytes"]
    fraction = float(policy.split()[1])
    return [f"--memory-budget={int(least + fraction * (most - least))}"]


def train(options, shape, policy):
    with tempfile.TemporaryDirectory() as folder:
        metrics = os.path.join(folder, "metrics.jsonl")
        command = [options.remat, "train", *flags(options, shape), *policy, f"--steps={options.steps + 1}",
                   f"--calibration={options.calibration}", f"--metrics={metrics}"]
        environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        with open(metrics) as file:
            events = [json.loads(line) for line in file]
    plan = next(e for e in events if e["event"] == "plan")
    assert plan["measured_times"], plan
    return plan, statistics.median(e["step_ms"] for e in events[1:] if e["event"] == "step" and e["step"] > 1)


def predicted_ms(plan):
    return (plan["step_ns"] + plan["fixed_ns"]) / 1e6


# ---- Summaries ----------------------------------------------------------------------------------------------------


def ranks(values):
    order = sorted(range(len(values)), key=values.__getitem__)
    rank = [0] * len(values)
    for place, index in enumerate(order):
        rank[index] = place
    return rank


def rank_correlation(x, y):
    """Spearman's rank correlation, for values without ties."""
    n = len(x)
    distance = sum((a - b) ** 2 for a, b in zip(ranks(x), ranks(y)))
    return 1 - 6 * distance / (n * (n * n - 1))


def summarize(rows, key):
    rows = [row for row in rows if row[key] is not None]
    errors = [row[key] / row["measured_ms"] - 1 for row in rows]
    sizes = sorted(abs(e) for e in errors)
    within = []
    for shape in {row["shape"] for row in rows}:
        own = [row for row in rows if row["shape"] == shape]
        if len(own) > 2:
            within.append(rank_correlation([r[key] for r in own], [r["measured_ms"] for r in own]))
    return {"plans": len(rows), "median": statistics.median(sizes), "p95": sizes[int(0.95 * (len(sizes) - 1))],
            "largest": sizes[-1], "bias": statistics.median(errors),
            "rank_correlation": rank_correlation([r[key] for r in rows], [r["measured_ms"] for r in rows]),
            "rank_correlation_within_a_shape": statistics.median(within) if within else None}


def show(name, summary):
    within = summary["rank_correlation_within_a_shape"]
    say(f"{name:<24} {summary['plans']} plans: error {summary['median']:.1%} median, {summary['p95']:.1%} p95, "
        f"{summary['largest']:.1%} largest, bias {summary['bias']:+.1%}; rank correlation "
        f"{summary['rank_correlation']:.4f}, within a shape {within if within is None else round(within, 3)}")


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--remat", default=os.path.join(ROOT, "build", "release", "remat"))
    parser.add_argument("--json")
    options = parser.parse_args()
    unknown = set(options.shapes.split(",")) - set(SHAPES)
    if unknown:
        sys.exit(f"unknown shapes {sorted(unknown)}; use {', '.join(SHAPES)}")
    with tempfile.TemporaryDirectory() as folder:
        options.data = os.path.join(folder, "data")
        options.calibration = os.path.join(folder, "calibration.txt")
        with open(options.data, "wb") as file:
            file.write(bytes(i * i % 251 for i in range(400_000)))
        rows = measure(options)
    say()
    show("from measured kernels", summarize(rows, "predicted_ms"))
    show("from rates alone", summarize(rows, "guessed_ms"))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"rows": rows, "measured": summarize(rows, "predicted_ms"),
                       "rates": summarize(rows, "guessed_ms")}, file, indent=1)


def measure(options):
    work = [(shape, policy, policy_flags(options, shape, policy))
            for shape in options.shapes.split(",") for policy in POLICIES]
    results = {(shape, policy): [] for shape, policy, _ in work}
    for _ in range(options.rounds):
        for shape, policy, arguments in work:
            results[shape, policy].append(train(options, shape, arguments))
    rows = []
    say(f"{'shape':<28}{'plan':<28}{'predicted':>10}{'measured':>10}{'error':>8}{'rates say':>11}   [ms]")
    for shape, policy, arguments in work:
        plan = results[shape, policy][0][0]
        row = {"shape": shape, "policy": policy, "segments": plan["segments"], "strategy": plan["strategy"],
               "predicted_ms": predicted_ms(plan), "recompute_factor": plan["recompute_factor"],
               "measured_ms": statistics.median(ms for _, ms in results[shape, policy]),
               "guessed_ms": None if policy.startswith("budget") else predicted_ms(plan_of(options, shape, arguments, "off"))}
        rows.append(row)
        guess = "" if row["guessed_ms"] is None else f"{row['guessed_ms']:.2f}"
        model, B, H, L, T = SHAPES[shape]
        say(f"{f'{model} B{B} H{H} L{L} T{T}':<28}{policy.lstrip('-'):<28}{row['predicted_ms']:>10.2f}"
            f"{row['measured_ms']:>10.2f}{row['predicted_ms'] / row['measured_ms'] - 1:>+8.1%}{guess:>11}")
    return rows


if __name__ == "__main__":
    main()
