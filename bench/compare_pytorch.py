#!/usr/bin/env python3
"""Compares Remat with PyTorch on the same work: step time, activation memory, and their ratios.

    bench/compare_pytorch.py [--python=PYTHON-WITH-TORCH] [--rows=a,b,...] [--rounds=3] [--steps=3] [--json=FILE]

The work is one training step (forward, backward, SGD) of a byte-level language model, embedding(128) -> LSTM -> linear(256)
-> cross entropy at every timestep, fp32, back-propagated through all T timesteps; both sides do the same
arithmetic (tests/golden compares their numbers). Needs build/release (made by scripts/quickstart.sh) and any Python with
PyTorch: --python, or $REMAT_TORCH_PYTHON, or this interpreter.

Method
  - Every measurement is a separate process. Rounds are interleaved (Remat, PyTorch, PyTorch with checkpoints, Remat, ...), so
    that a slow phase of the machine affects both. A process makes one warm-up step, then --steps steps; the time of a row is the median
    over rounds of the processes' medians.
  - PyTorch gets its best settings: before the rounds, plain PyTorch tries one thread and all threads, with and without oneDNN,
    and PyTorch with checkpoints tries the same and several numbers of chunks; the rounds use the fastest of each.
    Its checkpointing is torch.utils.checkpoint over chunks of time with (h, c) carried and the loss inside the chunk.
  - Activation memory, PyTorch: the peak resident size during the measured steps minus the resident size just before the
    first, after loading the library, parameters and optimizer and a warm-up step over 8 timesteps. Remat, "rss": the
    process's peak minus the peak of the same run at 8 timesteps. Remat, "plan": the figure of `remat plan`.
"""
import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EMBED, VOCABULARY, WARM_UP_TIMESTEPS = 128, 256, 8

ROWS = {  # name: batch, hidden, layers, timesteps, segments (0: keep everything), wanted time and memory ratios
    "a": dict(B=16, H=256, L=1, T=4000, segments=0, time=4, memory=2),
    "b": dict(B=16, H=256, L=1, T=4000, segments=32, time=3, memory=40),
    "c": dict(B=32, H=512, L=2, T=1000, segments=0, time=2.5, memory=2),
    "d": dict(B=1, H=128, L=1, T=20000, segments=64, time=15, memory=60),
}


# ---- The PyTorch process ------------------------------------------------------------------------------------------


def status_kib(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field + ":"))


def release_free_memory():
    import gc

    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except OSError:
        pass


def child(work):
    """Runs one configuration of PyTorch; prints one JSON line."""
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    torch.set_num_threads(work["threads"])
    if work.get("interop"):
        torch.set_num_interop_threads(work["interop"])
    torch.backends.mkldnn.enabled = work["onednn"]
    torch.manual_seed(1)
    B, T, H, L = work["B"], work["T"], work["H"], work["L"]
    embedding, rnn, head = nn.Embedding(VOCABULARY, EMBED), nn.LSTM(EMBED, H, L), nn.Linear(H, VOCABULARY)
    parameters = [p for module in (embedding, rnn, head) for p in module.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    with open(work["data"], "rb") as file:
        text = torch.frombuffer(bytearray(file.read(B * T + 1)), dtype=torch.uint8).long()
    tokens, targets = text[:-1].view(B, T).t().contiguous(), text[1:].view(B, T).t().contiguous()

    def chunk_loss(x, y, h, c):
        out, (h, c) = rnn(embedding(x), (h, c))
        loss = nn.functional.cross_entropy(head(out).view(-1, VOCABULARY), y.reshape(-1), reduction="sum")
        return loss / tokens.numel(), h, c

    def step(x, y, chunks):
        optimizer.zero_grad(set_to_none=True)
        h = c = torch.zeros(L, B, H)
        total = 0
        for xs, ys in zip(x.chunk(chunks), y.chunk(chunks)):
            if chunks == 1:
                loss, h, c = chunk_loss(xs, ys, h, c)
            else:
                loss, h, c = checkpoint(chunk_loss, xs, ys, h, c, use_reentrant=False)
            total = total + loss
        total.backward()
        optimizer.step()
        return total.item()

    step(tokens[:WARM_UP_TIMESTEPS], targets[:WARM_UP_TIMESTEPS], min(work["chunks"], 2))
    release_free_memory()
    before = status_kib("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # resets the peak
    times, losses = [], []
    for _ in range(work["steps"] + 1):
        if times and times[0] > work.get("give_up", 1e9):
            break
        start = time.perf_counter()
        losses.append(step(tokens, targets, work["chunks"]))
        times.append(time.perf_counter() - start)
    peak = status_kib("VmHWM")
    kept = times[1:] or times
    print(json.dumps({"seconds": statistics.median(kept), "activation_bytes": (peak - before) * 1024,
                      "process_bytes": peak * 1024, "losses": losses, "torch": torch.__version__}))


def gemm_peak_child(threads):
    """This machine's practical peak in FLOP/s: the best of several large float products, by PyTorch's MKL and by NumPy's
    OpenBLAS, because MKL uses only half the width of AVX-512 on AMD processors."""
    import torch

    torch.set_num_threads(threads)
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    best = 0
    for x, y in ((a, b), (a.numpy(), b.numpy())):
        for _ in range(8):
            start = time.perf_counter()
            x @ y
            best = max(best, 2 * 2048**3 / (time.perf_counter() - start))
    print(json.dumps({"flops_per_s": best}))


# ---- The parent -----------------------------------------------------------------------------------------------------


def run_torch(options, work):
    environment = dict(os.environ, OMP_NUM_THREADS=str(work["threads"]), MKL_NUM_THREADS=str(work["threads"]))
    environment.pop("OMP_WAIT_POLICY", None)
    command = [options.python, os.path.abspath(__file__), "--child", json.dumps(work)]
    out = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.splitlines()[-1])


def run_remat(options, row, T, steps, segments):
    with tempfile.TemporaryDirectory() as folder:
        metrics = os.path.join(folder, "metrics.jsonl")
        plan = f"--checkpoint-segments={segments}" if segments else "--checkpoint=none"
        command = [options.remat, "train", "--model=lstm", f"--layers={row['L']}", f"--hidden={row['H']}",
                   f"--embed={EMBED}", "--task=lm", f"--data={options.data}", f"--seq-len={T}", f"--batch={row['B']}",
                   f"--steps={steps}", "--optimizer=sgd", "--lr=0.1", "--seed=1", f"--threads={options.threads}", plan,
                   f"--metrics={metrics}"]
        environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        with open(metrics) as file:
            events = [json.loads(line) for line in file]
    times = [e["step_ms"] / 1e3 for e in events if e["event"] == "step"]
    plan = next(e for e in events if e["event"] == "plan")
    end = next(e for e in events if e["event"] == "end")
    return {"seconds": statistics.median(times[1:] or times), "plan_bytes": plan["activations_peak_bytes"],
            "process_bytes": end["rss_peak_bytes"]}


def measure_remat(options, row, segments):
    full = run_remat(options, row, row["T"], options.steps + 1, segments)
    small = run_remat(options, row, WARM_UP_TIMESTEPS, 2, 0)
    full["activation_bytes"] = max(full["process_bytes"] - small["process_bytes"], 1)
    return full


def say(text):
    print(text, flush=True)


def tune(options, base, chunk_counts):
    """The fastest setting of PyTorch for this work, and all settings tried."""
    tried = []

    def attempt(**setting):
        # One step after an uncounted one; a setting three times slower than the best so far stops after the first.
        give_up = 3 * tried[0]["seconds"] if tried else 1e9
        tried.append(dict(setting, seconds=run_torch(options, dict(base, **setting, steps=1, give_up=give_up))["seconds"]))
        tried.sort(key=lambda t: t["seconds"])

    for chunks in chunk_counts:
        attempt(threads=1, onednn=True, chunks=chunks)
    best_chunks = tried[0]["chunks"]
    for threads in sorted({1, options.threads}):
        for onednn in (True, False):
            if (threads, onednn) != (1, True):
                attempt(threads=threads, onednn=onednn, chunks=best_chunks)
    best = {key: value for key, value in tried[0].items() if key != "seconds"}
    attempt(**best, interop=1)  # also try one inter-op thread
    return {key: value for key, value in tried[0].items() if key != "seconds"}, tried


def middle(samples):
    """Medians over several processes; for memory, the minimum."""
    out = {"seconds": statistics.median(s["seconds"] for s in samples),
           "seconds_all": [round(s["seconds"], 4) for s in samples]}
    for key in ("activation_bytes", "process_bytes", "plan_bytes"):
        if key in samples[0]:
            out[key] = min(s[key] for s in samples)
    return out


def floor_flops(row):
    """Forward and backward: six FLOPs per weight, sample and timestep. The input weights of the first layer do not count:
    the embedding is folded into a table of 256 rows."""
    weights = sum((row["H"] if layer else 0) * 4 * row["H"] + 4 * row["H"] * row["H"] for layer in range(row["L"]))
    return 6 * row["B"] * row["T"] * (weights + row["H"] * VOCABULARY)


def onednn_seconds(options, row):
    """Text for the table: oneDNN's own LSTM primitive, forward and backward, if its benchmark was built."""
    program = os.path.join(os.path.dirname(options.remat), "bench", "bench_onednn_lstm")
    if row["L"] != 1 or not os.path.exists(program):
        return None
    command = [program] + [str(row[key]) for key in ("B", "H", "T")] + [str(EMBED)]
    environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads))
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    return result.stdout.strip().splitlines()[-1] if result.returncode == 0 and result.stdout.strip() else None


def compare(options, name, row, peak):
    base = dict({key: row[key] for key in "BHLT"}, data=options.data)
    plain, plain_tried = tune(options, base, [1])
    root = max(2, round(row["T"] ** 0.5 / 16) * 16)
    chunked, chunked_tried = tune(options, base, [16, root] if root != 16 else [16])
    samples = {"remat": [], "remat_kept": [], "plain": [], "chunked": []}
    for _ in range(options.rounds):
        samples["remat"].append(measure_remat(options, row, row["segments"]))
        samples["plain"].append(run_torch(options, dict(base, **plain, steps=options.steps)))
        if row["segments"]:
            samples["remat_kept"].append(run_remat(options, row, row["T"], options.steps + 1, 0))
        samples["chunked"].append(run_torch(options, dict(base, **chunked, steps=options.steps)))
    result = {key: middle(value) for key, value in samples.items() if value}
    result.update(name=name, row=row, plain_setting=plain, plain_tried=plain_tried, chunked_setting=chunked,
                  chunked_tried=chunked_tried, torch=samples["plain"][0]["torch"], onednn=onednn_seconds(options, row))
    remat = result["remat"]
    result["time_ratio"] = result["plain"]["seconds"] / remat["seconds"]
    result["memory_ratio_rss"] = result["plain"]["activation_bytes"] / remat["activation_bytes"]
    result["memory_ratio_plan"] = result["plain"]["activation_bytes"] / remat["plan_bytes"]
    result["floor_seconds"] = floor_flops(row) / peak
    if row["segments"]:
        result["recompute_overhead"] = remat["seconds"] / result["remat_kept"]["seconds"] - 1
    return result


def mib(count):
    return f"{count / 2**20:.1f}" if count < 10 * 2**20 else f"{count / 2**20:.0f}"


def label(row):
    return f"B{row['B']} H{row['H']} L{row['L']} T{row['T']}, " + (f"{row['segments']} segments" if row["segments"] else "none")


def report(results, peak, options):
    say(f"\nPyTorch {results[0]['torch']}; {options.threads} threads; GEMM peak {peak / 1e9:.0f} GFLOP/s; "
        f"{options.rounds} rounds of {options.steps} steps\n")
    say("| work | Remat | PyTorch plain | PyTorch checkpointed | times faster than plain (wanted) |")
    say("|---|--:|--:|--:|--:|")
    for r in results:
        say(f"| {label(r['row'])} | {r['remat']['seconds']:.3f} s | {r['plain']['seconds']:.3f} s | "
            f"{r['chunked']['seconds']:.3f} s | {r['time_ratio']:.1f}x ({r['row']['time']}x) |")
    say("\n| activation memory, MiB | Remat by plan | Remat by rss | PyTorch plain | checkpointed | "
        "plain / Remat rss, plan (wanted) |")
    say("|---|--:|--:|--:|--:|--:|")
    for r in results:
        say(f"| {label(r['row'])} | {mib(r['remat']['plan_bytes'])} | {mib(r['remat']['activation_bytes'])} | "
            f"{mib(r['plain']['activation_bytes'])} | {mib(r['chunked']['activation_bytes'])} | "
            f"{r['memory_ratio_rss']:.0f}x, {r['memory_ratio_plan']:.0f}x ({r['row']['memory']}x) |")
    say("")
    for r in results:
        without = min(t["seconds"] for t in r["plain_tried"] if not t["onednn"])
        extra = f"; recomputing costs {100 * r['recompute_overhead']:.0f} %" if "recompute_overhead" in r else ""
        say(f"{label(r['row'])}: {r['remat']['seconds'] / r['floor_seconds']:.1f} times the GEMM floor of "
            f"{r['floor_seconds']:.3f} s{extra}; PyTorch's best: plain {r['plain_setting']} "
            f"(without oneDNN {without:.2f} s), "
            f"checkpointed {r['chunked_setting']}" + (f"; oneDNN's primitive alone: {r['onednn']}" if r["onednn"] else ""))


def gemm_peak(options):
    command = [options.python, os.path.abspath(__file__), "--gemm-peak", str(options.threads)]
    environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads))
    out = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out)["flops_per_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("REMAT_TORCH_PYTHON", sys.executable))
    parser.add_argument("--remat", default=os.path.join(ROOT, "build", "release", "remat"))
    parser.add_argument("--data", default=os.path.join(ROOT, "examples", "data", "shakespeare.txt"))
    parser.add_argument("--rows", default=",".join(ROWS), help="some of " + ", ".join(f"{k}: {label(v)}" for k, v in ROWS.items()))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", default=os.path.join(ROOT, "build", "compare_pytorch.json"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--gemm-peak", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(json.loads(options.child))
    if options.gemm_peak:
        return gemm_peak_child(options.gemm_peak)
    if subprocess.run([options.python, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode:
        sys.exit(f"{options.python} has no PyTorch; name a Python with PyTorch by --python or $REMAT_TORCH_PYTHON")
    if not os.path.exists(options.remat):
        sys.exit(f"{options.remat} does not exist; run scripts/quickstart.sh or name the program with --remat")
    peak = gemm_peak(options)
    results = []
    for name in options.rows.split(","):
        say(f"measuring {label(ROWS[name])}")
        results.append(compare(options, name, ROWS[name], peak))
        with open(options.json, "w") as file:
            json.dump({"gemm_peak": peak, "threads": options.threads, "rows": results}, file, indent=1)
    report(results, peak, options)


if __name__ == "__main__":
    main()
