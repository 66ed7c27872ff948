#!/usr/bin/env python3
"""Cost and savings of recomputation: the tables of docs/notes/planner.md.

    bench/checkpointing.py [--tables=headline,lean,million,every-n,longest] [--rounds=5] [--steps=5]
                           [--python=PYTHON-WITH-TORCH] [--json=FILE]

  headline   activation bytes saved and extra step time, T = 1,000 and 10,000: plans chosen by `--memory-budget`, and
             every `--checkpoint-segments=N`, compared with the literature (Gruslys et al. 2016: 95 % saved at +33 %)
  lean       --checkpoint=lean compared with keeping everything, LSTM and GRU: saved bytes and step time
  million    T = 1,000,000, batch 1, hidden 256, exact back-propagation within 64 MiB of activations: one step
  every-n    the plan chosen for a budget, compared with every N that fits the same budget, all measured
  longest    the longest T that trains in a process of 1 GiB: Remat, PyTorch, PyTorch with checkpointed chunks
             (only this table needs PyTorch: --python or $REMAT_TORCH_PYTHON)

Method. Every measurement is a separate process, `remat train` on a text, with one warm-up step and then --steps steps.
Rounds are interleaved (keep everything, plan, keep everything, plan, ...); the result is the median over rounds of
the ratio within a round, so that a slow phase of the machine affects both. Bytes are those of the plan; the run's own count
must equal them (arena_peak_bytes of the steps).
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
MIB = 2**20
HEADLINE = [  # batch, hidden, timesteps, tile, fraction of activation bytes to be left (0: as many segments as stages)
    dict(B=16, H=256, T=1000, tile=8, left=0.05),
    dict(B=16, H=256, T=1000, tile=4, left=0.02),
    dict(B=8, H=256, T=1000, tile=8, left=0.02),
    dict(B=16, H=256, T=10000, tile=16, left=0.01),
    dict(B=8, H=256, T=10000, tile=16, left=0.01),
    dict(B=1, H=256, T=10000, tile=32, left=0.01),
]


def say(text=""):
    print(text, flush=True)


# ---- Running the program ------------------------------------------------------------------------------------------


def flags(options, B, H, T, tile=0, model="lstm", layers=1):
    return [f"--model={model}", f"--layers={layers}", f"--hidden={H}", "--embed=64", f"--seq-len={T}", f"--batch={B}",
            f"--tile={tile}", "--optimizer=sgd", "--lr=0.1", f"--threads={options.threads}", f"--data={options.data}"]


def plan_of(options, work, policy):
    """The plan as JSON, or None if the budget is too small."""
    command = [options.remat, "plan", *flags(options, **work), *policy, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        if "too small" in done.stderr:
            return None
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def train(options, work, policy, steps):
    """Median step time without the first step, the line of the plan, and the peak memory of the process."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = os.path.join(folder, "metrics.jsonl")
        command = [options.remat, "train", *flags(options, **work), *policy, f"--steps={steps}", f"--metrics={metrics}"]
        environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        with open(metrics) as file:
            events = [json.loads(line) for line in file]
    steps = [e for e in events if e["event"] == "step"]
    plan = next(e for e in events if e["event"] == "plan")
    assert all(e["arena_peak_bytes"] <= plan["planned_peak_bytes"] for e in steps)
    times = [e["step_ms"] for e in steps]
    return {"ms": statistics.median(times[1:] or times), "loss": steps[-1]["loss"], "plan": plan,
            "rss": events[-1]["rss_peak_bytes"]}


def ratio(options, work, policy, default_tile=False):
    """Time of `policy` relative to keeping everything, from interleaved rounds; losses must be identical. With default_tile
    also relative to keeping everything in tiles of the default length (whose losses differ in the last bits)."""
    base, ratios, default_ratios, kept, planned = ["--checkpoint=none"], [], [], [], []
    for _ in range(options.rounds):
        kept.append(train(options, work, base, options.steps + 1))
        planned.append(train(options, work, policy, options.steps + 1))
        ratios.append(planned[-1]["ms"] / kept[-1]["ms"])
        default = train(options, dict(work, tile=0), base, options.steps + 1) if default_tile else kept[-1]
        default_ratios.append(planned[-1]["ms"] / default["ms"])
        if planned[-1]["loss"] != kept[-1]["loss"]:
            sys.exit(f"the losses of {policy} and {base} differ: {planned[-1]['loss']!r}, {kept[-1]['loss']!r}")
    return {"ratio": statistics.median(ratios), "ratios": ratios, "default_ratio": statistics.median(default_ratios), "kept_ms": statistics.median(k["ms"] for k in kept),
            "ms": statistics.median(p["ms"] for p in planned), "kept": kept[0]["plan"], "plan": planned[0]["plan"],
            "rss": max(p["rss"] for p in planned)}


def fit(options, work, left):
    """The largest budget whose plan leaves at most `left` of the activation bytes. It is found by bisection, because the
    budget includes the tables of the plan, which differ from plan to plan."""
    kept = plan_of(options, work, ["--checkpoint=none"])
    goal = left * kept["activations_peak_bytes"]
    low, high = 1, kept["budgeted_bytes"]
    while high - low > 1024:
        middle = (low + high) // 2
        plan = plan_of(options, work, [f"--memory-budget={middle}"])
        if plan is None or plan["activations_peak_bytes"] <= goal:
            low = middle
        else:
            high = middle
    plan = plan_of(options, work, [f"--memory-budget={low}"])
    return low if plan else None


# ---- The tables ----------------------------------------------------------------------------------------------------


def headline(options):
    say("\n| work | plan | activation bytes, MiB | saved | recompute factor | time, to keeping everything | ... in tiles of the default length |")
    say("|---|---|--:|--:|--:|--:|--:|")
    results = []
    for row in HEADLINE:
        work = {key: row[key] for key in ("B", "H", "T", "tile")}
        budget = fit(options, work, row["left"])
        if budget is None:
            say(f"| {label(work)} | none fits in {100 * row['left']:.0f} % | | | | | |")
            continue
        result = ratio(options, work, [f"--memory-budget={budget}"], default_tile=True)
        results.append(dict(row, **result))
        say_row(work, f"--memory-budget={budget}", result)
    for work, n in ((dict(B=16, H=256, T=1000, tile=8), 25), (dict(B=16, H=256, T=10000, tile=16), 100)):
        result = ratio(options, work, [f"--checkpoint-segments={n}"], default_tile=True)
        say_row(work, f"--checkpoint-segments={n}", result)
    return results


def label(work):
    return f"B{work['B']} H{work['H']} T{work['T']}, tiles of {work['tile']}"


def say_row(work, policy, result):
    before, after = result["kept"]["activations_peak_bytes"], result["plan"]["activations_peak_bytes"]
    say(f"| {label(work)} | `{policy}` | {before / MIB:.1f} → {after / MIB:.2f} | {100 * (1 - after / before):.1f} % | "
        f"{result['plan']['recompute_factor']:.2f} | {100 * (result['ratio'] - 1):+.0f} % | "
        f"{100 * (result['default_ratio'] - 1):+.0f} % |")


def saved_bytes(plan):
    return sum(stage["saved_bytes"] for stage in plan["stages"])


def lean(options):
    say("\n| cell | batch | hidden | saved bytes, all / lean | step time |")
    say("|---|--:|--:|--:|--:|")
    results = []
    for model in ("lstm", "gru"):
        for B in (1, 8, 32):
            for H in (128, 256, 512):
                work = dict(B=B, H=H, T=1000, model=model)
                bytes_ratio = saved_bytes(plan_of(options, work, ["--checkpoint=none"])) / saved_bytes(
                    plan_of(options, work, ["--checkpoint=lean"]))
                result = ratio(options, work, ["--checkpoint=lean"])
                results.append(dict(work, bytes_ratio=bytes_ratio, ratio=result["ratio"], ratios=result["ratios"]))
                say(f"| {model} | {B} | {H} | {bytes_ratio:.1f}x | {100 * (result['ratio'] - 1):+.0f} % |")
    return results


def million(options):
    work = dict(B=1, H=256, T=10**6)
    with tempfile.NamedTemporaryFile() as text:
        source = open(options.data, "rb").read()
        text.write((source * (1 + 10**6 // len(source)))[: 10**6 + 1])
        text.flush()
        own = argparse.Namespace(**{**vars(options), "data": text.name})
        kept = plan_of(own, work, ["--checkpoint=none"])
        say(f"\nT = 1,000,000, batch 1, hidden 256; keeping everything would take "
            f"{kept['activations_peak_bytes'] / MIB:.0f} MiB of activations")
        say("\n| plan | activations, MiB | arena, MiB | process, MiB | step |")
        say("|---|--:|--:|--:|--:|")
        results = []
        for left in (64, 16, 4):
            budget = fit(own, work, left * MIB / kept["activations_peak_bytes"])
            if budget is None:
                say(f"| at most {left} MiB of activations | none fits | | | |")
                continue
            policy = [f"--memory-budget={budget}"]
            result = train(own, work, policy, 1)
            plan = result["plan"]
            results.append(result)
            say(f"| at most {left} MiB of activations | {plan['activations_peak_bytes'] / MIB:.2f} | "
                f"{plan['planned_peak_bytes'] / MIB:.1f} | {result['rss'] / MIB:.1f} | {result['ms'] / 1e3:.1f} s |")
    return results


def every_n(options):
    """For several budgets: compares the chosen plan with every segments=N that fits the same budget."""
    say("\n| work | budget for activations | picked, ms | best N | its ms | picked / best |")
    say("|---|--:|--:|--:|--:|--:|")
    results = []
    for work in (dict(B=16, H=128, T=1000, tile=16), dict(B=1, H=256, T=4000, tile=64)):
        kept = plan_of(options, work, ["--checkpoint=none"])
        stages = kept["n_stages"]
        plans = {n: plan_of(options, work, [f"--checkpoint-segments={n}"]) for n in range(1, stages + 1)}
        for left in (0.4, 0.15, 0.06):
            budget = int(kept["budgeted_bytes"] - (1 - left) * kept["activations_peak_bytes"])
            fitting = [n for n, plan in plans.items() if plan["budgeted_bytes"] <= budget]
            if not fitting or not plan_of(options, work, [f"--memory-budget={budget}"]):
                continue
            policies = {"picked": [f"--memory-budget={budget}"]}
            policies.update({n: [f"--checkpoint-segments={n}"] for n in fitting})
            times = {key: [] for key in policies}
            for _ in range(options.rounds):
                for key, policy in policies.items():
                    times[key].append(train(options, work, policy, options.steps + 1)["ms"])
            medians = {key: statistics.median(value) for key, value in times.items()}
            best = min(fitting, key=lambda n: medians[n])
            results.append(dict(work, left=left, picked=medians["picked"], best=best, best_ms=medians[best]))
            say(f"| {label(work)} | {100 * left:.0f} % | {medians['picked']:.1f} | {best} of {len(fitting)} | "
                f"{medians[best]:.1f} | {medians['picked'] / medians[best]:.3f} |")
    return results


# ---- The longest T in a process of 1 GiB ----------------------------------------------------------------------------

LIMIT = 2**30
HIDDEN, EMBED = 256, 64


def torch_child(T, chunks):
    """One step of the same work in PyTorch; prints the process's peak. Batch 1."""
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    torch.set_num_threads(1)
    embedding, rnn, head = nn.Embedding(256, EMBED), nn.LSTM(EMBED, HIDDEN), nn.Linear(HIDDEN, 256)
    parameters = [p for module in (embedding, rnn, head) for p in module.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    tokens, targets = torch.randint(256, (2, T, 1))

    def chunk_loss(x, y, h, c):
        out, (h, c) = rnn(embedding(x), (h, c))
        return nn.functional.cross_entropy(head(out).view(-1, 256), y.reshape(-1), reduction="sum") / T, h, c

    h = c = torch.zeros(1, 1, HIDDEN)
    total = 0
    for x, y in zip(tokens.chunk(chunks), targets.chunk(chunks)):
        if chunks == 1:
            loss, h, c = chunk_loss(x, y, h, c)
        else:
            loss, h, c = checkpoint(chunk_loss, x, y, h, c, use_reentrant=False)
        total = total + loss
    total.backward()
    optimizer.step()
    print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


def torch_peak(options, T, chunks):
    """Peak bytes, or more than the limit if the process fails (it is limited to four times the limit, to protect the machine)."""
    command = [options.python, os.path.abspath(__file__), "--torch-child", f"{T},{chunks}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return json.loads(done.stdout.splitlines()[-1])["peak"] if done.returncode == 0 else 4 * LIMIT


def longest_by(peak_at, first):
    """The longest T (to 5 %) whose peak is within the limit."""
    low, high = first, 2 * first
    while peak_at(high) <= LIMIT:
        low, high = high, 2 * high
    while high > 1.05 * low:
        middle = (low + high) // 2
        low, high = (middle, high) if peak_at(middle) <= LIMIT else (low, middle)
    return low


def longest(options):
    say("\nThe longest sequence that trains in a process of 1 GiB: LSTM, batch 1, hidden 256, exact gradients")
    say("\n| | T | process, MiB | one step |")
    say("|---|--:|--:|--:|")
    plain = longest_by(lambda T: torch_peak(options, T, 1), 2000)
    say(f"| PyTorch | {plain:,} | {torch_peak(options, plain, 1) / MIB:.0f} | |")
    root = lambda T: max(2, round(T**0.5))
    chunked = longest_by(lambda T: torch_peak(options, T, root(T)), plain)
    say(f"| PyTorch, checkpointed in sqrt(T) chunks | {chunked:,} | {torch_peak(options, chunked, root(chunked)) / MIB:.0f} | |")
    T = options.longest_t
    with tempfile.NamedTemporaryFile() as text:
        source = open(options.data, "rb").read()
        text.write((source * (1 + T // len(source)))[: T + 1])
        text.flush()
        own = argparse.Namespace(**{**vars(options), "data": text.name})
        result = train(own, dict(B=1, H=HIDDEN, T=T), [f"--memory-budget={LIMIT - 32 * MIB}"], 1)
    say(f"| Remat | {T:,} | {result['rss'] / MIB:.0f} | {result['ms'] / 1e3:.0f} s |")
    return dict(plain=plain, chunked=chunked, remat=T, rss=result["rss"], ms=result["ms"])


TABLES = {"headline": headline, "lean": lean, "million": million, "every-n": every_n, "longest": longest}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("REMAT_TORCH_PYTHON", sys.executable))
    parser.add_argument("--remat", default=os.path.join(ROOT, "build", "release", "remat"))
    parser.add_argument("--data", default=os.path.join(ROOT, "examples", "data", "shakespeare.txt"))
    parser.add_argument("--tables", default="headline,lean,million,every-n,longest")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--longest-t", type=int, default=10**7, help="sequence length at which Remat is measured")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", default=os.path.join(ROOT, "build", "checkpointing.json"))
    parser.add_argument("--torch-child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torch_child:
        return torch_child(*map(int, options.torch_child.split(",")))
    if not os.path.exists(options.remat):
        sys.exit(f"{options.remat} does not exist; run scripts/quickstart.sh or name the program with --remat")
    results = {}
    for name in options.tables.split(","):
        results[name] = TABLES[name](options)
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
