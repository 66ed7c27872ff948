#!/usr/bin/env python3
"""Compares Remat on a GPU with PyTorch on the same GPU: step time, device memory, and the longest sequence that trains.

    bench/gpu.sh [--quick] [--rows=c,b,a] [--precisions=fp32,tf32,bf16] [--rounds=3] [--steps=3] [--cap=GIB] [--seconds=N]

The work is the byte-level language model of compare_pytorch.py: embedding(128) -> LSTM -> linear(256) -> cross entropy at
every timestep, SGD, exact back-propagation through all T timesteps; both sides do the same arithmetic.

Method
  - Every measurement is a separate process: two steps that do not count (the first allocates and tunes, in the
    second Remat records CUDA graphs), then --steps steps; a time is the median of the processes' medians. Rounds are interleaved
    (Remat, PyTorch, Remat, ...), so that a slow phase of the card affects both; ratios are taken within a round.
  - PyTorch uses nn.LSTM on cuDNN: one call, or as few as cuDNN's limit of 65,535 timesteps allows, one after the other with (h, c)
    carried and everything kept. "chunked" is torch.utils.checkpoint over chunks of time with (h, c) carried and the
    loss inside the chunk, with sqrt(T) chunks, or 16 if that is faster. bf16 is autocast; tf32 allows TF32 in
    products and in cuDNN, fp32 forbids it in both.
  - Remat: everything kept, with the recurrent kernels that it chooses, and with its own and cuDNN's (--quick: only with those that
    it did not choose); lean (only h is saved); and the plan for a budget that leaves 2 % of the activation bytes. If products
    run in fp32 despite the precision, it prints how many.
  - Memory is the card's, read from NVML every 30 ms, minus the memory in use before the process started. It includes context, libraries and
    caches on both sides, so nothing else may run on the card. GPUs are numbered as by NVML (CUDA_DEVICE_ORDER=PCI_BUS_ID).
  - The longest T: both get the same --cap of device memory (PyTorch by set_per_process_memory_fraction, which does not include its
    context; Remat by --memory-budget, which does). PyTorch's longest T is found by bisection. Remat then trains one step
    of 50 times that length, or of as many times as the remaining time allows. Without --cap: 98 % of the memory that is free at the start.
  - The first minutes cover one of each kind: rows c, b, a in fp32, for each first Remat and PyTorch, then their other variants, then the
    longest T; tf32 and bf16 follow.
  - --seconds: nothing is started after that time, and running processes are ended 20 s later. tests/gpu/run.sh runs --quick: one
    round, few variants.
  - Tiny shapes test this script; their numbers mean nothing: --device=cpu, or --tiny on an emulated device
    (tests/gpu/check_run.sh).
"""
import argparse
import ctypes
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EMBED, VOCABULARY, GIB, MIB = 128, 256, 2**30, 2**20
ROWS = {  # batch, hidden, layers, timesteps; first those that gain most from Remat's own recurrent kernels
    "c": dict(B=1, H=256, L=1, T=100000),
    "b": dict(B=16, H=512, L=1, T=20000),
    "a": dict(B=64, H=1024, L=2, T=2000),
}
TINY = {"a": dict(B=8, H=32, L=2, T=64), "b": dict(B=4, H=24, L=1, T=256), "c": dict(B=1, H=16, L=1, T=10000)}
LEFT = 0.02  # share of the activation bytes in the plan "98 %"
TIMES_LONGER = (50, 20, 10, 5, 2, 1)
MOST_TIMESTEPS = 65535  # limit of a cuDNN call
UNCOUNTED = 2  # warm-up steps of a process
GRACE = 20  # seconds for running processes after time is up
STARTED = time.monotonic()


def say(text=""):
    print(text, flush=True)


# ---- The PyTorch process ------------------------------------------------------------------------------------------


class TorchModel:
    def __init__(self, work):
        import torch
        from torch import nn

        self.torch, self.work, self.device = torch, work, work["device"]
        tf32 = work["precision"] == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        torch.manual_seed(1)
        self.embedding = nn.Embedding(VOCABULARY, EMBED)
        self.rnn = nn.LSTM(EMBED, work["H"], num_layers=work["L"])
        self.head = nn.Linear(work["H"], VOCABULARY)
        self.all = nn.ModuleList([self.embedding, self.rnn, self.head]).to(self.device)
        self.optimizer = torch.optim.SGD(self.all.parameters(), lr=0.1)

    def data(self, T):
        with open(self.work["data"], "rb") as file:
            raw = file.read()
        count = self.work["B"] * T + 1
        raw = (raw * (1 + count // len(raw)))[:count]
        text = self.torch.frombuffer(bytearray(raw), dtype=self.torch.uint8).long().to(self.device)
        return tuple(part.view(self.work["B"], T).t().contiguous() for part in (text[:-1], text[1:]))

    def chunk_loss(self, x, y, h, c, count):
        from torch import nn

        out, (h, c) = self.rnn(self.embedding(x), (h, c))
        loss = nn.functional.cross_entropy(self.head(out).view(-1, VOCABULARY), y.reshape(-1), reduction="sum")
        return loss / count, h, c

    def step(self, x, y, chunks, again):
        """`again`: recompute chunks in the backward pass."""
        from torch.utils.checkpoint import checkpoint

        self.optimizer.zero_grad(set_to_none=True)
        bf16 = self.work["precision"] == "bf16"
        with self.torch.autocast(self.device, dtype=self.torch.bfloat16, enabled=bf16):
            h = c = self.torch.zeros(self.work["L"], self.work["B"], self.work["H"], device=self.device)
            total = 0
            for xs, ys in zip(x.chunk(chunks), y.chunk(chunks)):
                if not again:
                    loss, h, c = self.chunk_loss(xs, ys, h, c, y.numel())
                else:
                    loss, h, c = checkpoint(self.chunk_loss, xs, ys, h, c, y.numel(), use_reentrant=False)
                total = total + loss
        total.backward()
        self.optimizer.step()
        return total.item()


def torch_steps(work):
    model = TorchModel(work)
    x, y = model.data(work["T"])
    times, losses = [], []
    for _ in range(work["steps"] + UNCOUNTED):
        start = time.perf_counter()
        losses.append(model.step(x, y, work["chunks"], work["again"]))
        times.append(time.perf_counter() - start)
    return {"seconds": statistics.median(times[UNCOUNTED:]), "losses": losses, "torch": model.torch.__version__}


def torch_longest(work):
    """The longest T of a step that fits the cap, to 5 %: doubled, then bisected."""
    model, reason = TorchModel(work), {}
    torch, until = model.torch, time.monotonic() + work["seconds"]
    if work["device"] == "cuda":
        torch.cuda.set_per_process_memory_fraction(min(1.0, work["cap"] / torch.cuda.mem_get_info()[1]))

    def fits(T):
        chunks = root_chunks(T) if work["again"] else fewest_calls(T)
        try:
            if work["device"] == "cpu":
                with open("/proc/self/clear_refs", "w") as file:
                    file.write("5")
            model.step(*model.data(T), chunks, work["again"])
            if work["device"] == "cpu" and torch_peak() > work["cap"]:
                raise MemoryError("the process is larger than the cap")
            return True
        except (RuntimeError, MemoryError) as error:
            reason[T] = str(error).splitlines()[0][:160]
            return False
        finally:
            if work["device"] == "cuda":
                torch.cuda.empty_cache()

    low, high = 0, work["T"]
    while fits(high) and time.monotonic() < until:
        low, high = high, 2 * high
    while high > 1.05 * low and high > 8 and time.monotonic() < until:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return {"T": low, "stopped_by": reason.get(high, "time")}


def torch_peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))


def fewest_calls(T):
    return -(-T // MOST_TIMESTEPS)


def root_chunks(T):
    return max(2, round(T**0.5))


def child(work):
    try:
        answer = (torch_longest if work.get("longest") else torch_steps)(work)
    except RuntimeError as error:  # out of memory; cuDNN refuses sequences of more than 65,535 timesteps
        answer = {"error": str(error).splitlines()[0][:160]}
    print(json.dumps(answer))


# ---- Processes, and their memory on the card ----------------------------------------------------------------------


class Card:
    """The used memory of the first GPU visible by CUDA_VISIBLE_DEVICES; nothing for a CPU."""

    class Memory(ctypes.Structure):
        _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]

    def __init__(self, device):
        self.library, self.device = None, device
        if device != "cuda":
            return
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            say("libnvidia-ml.so.1 was not found: the GPU's memory is not measured")
            return
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
        self.handle = ctypes.c_void_p()
        name = ctypes.create_string_buffer(96)
        found = library.nvmlInit_v2() == 0 and 0 == (
            library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(first)), ctypes.byref(self.handle))
            if first.isdigit() else library.nvmlDeviceGetHandleByUUID(first.encode(), ctypes.byref(self.handle)))
        if found:
            self.library = library
            library.nvmlDeviceGetName(self.handle, name, ctypes.c_uint(96))
            say(f"{name.value.decode()}, {self.read('total') / GIB:.0f} GiB")

    def read(self, field="used"):
        memory = self.Memory()
        return getattr(memory, field) if self.library.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(memory)) == 0 else 0

    def free(self):
        return self.read("free") if self.library else 0

    def watch(self, process):
        """Peak bytes on the card until the process ends; on the CPU, of the process; None if unknown."""
        if not self.library:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage.ru_maxrss * 1024 if self.device == "cpu" else None
        peak = 0
        while process.poll() is None:
            peak = max(peak, self.read())
            time.sleep(0.03)  # more frequent queries might slow down the measured process
        return peak


def run(options, command, limit=None, **environment):
    """stdout, stderr and peak bytes of a process; stdout is None if it failed, bytes are None if they are not measured."""
    before = options.card.read() if options.card.library else 0
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=dict(os.environ, **environment))
        ended_by_clock = threading.Event()

        def end():
            ended_by_clock.set()
            process.kill()

        clock = threading.Timer(limit, end) if limit else None
        if clock:
            clock.start()
        peak = options.card.watch(process)
        if clock:
            clock.cancel()
        out.seek(0), err.seek(0)
        text, complaint = out.read(), err.read()
    if process.returncode == -9:
        complaint = "no time is left for it" if ended_by_clock.is_set() else "killed (SIGKILL): the host may lack memory"
    return (text if process.returncode == 0 else None), complaint, None if peak is None else max(peak - before, 0)


def left(options):
    return options.seconds - (time.monotonic() - STARTED)


def time_for_one(options):
    return max(left(options), 0) + GRACE


# ---- Remat
# ------------------------------------------------------------------------------------------------------------


def flags(options, row, precision, T=None):
    own = [] if precision == "fp32" else [f"--precision={precision}"]
    return ["--model=lstm", f"--layers={row['L']}", f"--hidden={row['H']}", f"--embed={EMBED}", "--task=lm",
            f"--seq-len={T or row['T']}", f"--batch={row['B']}", "--optimizer=sgd", "--lr=0.1", "--seed=1",
            f"--device={options.device}", *own]


def text_of(options, folder, count):
    """A file of at least this many bytes."""
    with open(options.data, "rb") as file:
        raw = file.read()
    if len(raw) > count:
        return options.data
    path = os.path.join(folder, "text")
    with open(path, "wb") as file:
        file.write(raw * (1 + count // len(raw)))
    return path


def remat_plan(options, row, precision, policy):
    with tempfile.TemporaryDirectory() as folder:
        data = text_of(options, folder, row["B"] * row["T"] + 1)
        text, complaint, _ = run(options, [options.remat, "plan", *flags(options, row, precision), f"--data={data}", *policy,
                                           "--json"], time_for_one(options))
    return json.loads(text) if text else {"error": complaint.strip().splitlines()[0] if complaint.strip() else "?"}


def remat_steps(options, row, precision, policy, steps, T=None, limit=None):
    with tempfile.TemporaryDirectory() as folder:
        metrics = os.path.join(folder, "metrics.jsonl")
        data = text_of(options, folder, row["B"] * (T or row["T"]) + 1)
        command = [options.remat, "train", *flags(options, row, precision, T), f"--data={data}", *policy,
                   f"--steps={steps}", f"--metrics={metrics}"]
        text, complaint, peak = run(options, command, limit or time_for_one(options))
        if text is None:
            return {"error": (complaint.strip().splitlines() or ["?"])[0]}
        with open(metrics) as file:
            events = [json.loads(line) for line in file]
    times = [e["step_ms"] / 1e3 for e in events if e["event"] == "step"]
    plan = next(e for e in events if e["event"] == "plan")
    gpu = next((e for e in events if e["event"] == "gpu"), None)
    return {"seconds": statistics.median(times[UNCOUNTED:] or times[-1:]), "bytes": peak, "plan": plan,
            "losses": [e["loss"] for e in events if e["event"] == "step"],
            "gpu": gpu}


def remat_ways(options, row, precision):
    """Name and flags of each variant; the last is left out if no plan saves that much. No plan needs less than one running
    tile, so its tiles may have to be shorter than the default."""
    ways = [("Remat, kept", ["--checkpoint=none"]), ("Remat, lean", ["--checkpoint=lean"])]
    kept = remat_plan(options, row, precision, ["--checkpoint=none"])
    for kernels in ("cudnn", "remat"):
        chosen = options.quick and kept.get("rnn_kernels") == kernels
        if options.device == "cuda" and not chosen and (kernels, precision) != ("cudnn", "bf16"):
            ways.append((f"Remat, kept, {kernels}'s kernels", ["--checkpoint=none", f"--rnn-kernels={kernels}"]))
    tile = kept.get("tile", 0)
    while tile >= 1:
        budget = int(kept["budgeted_bytes"] - (1 - LEFT) * kept["activations_peak_bytes"])
        policy = [f"--memory-budget={budget}", f"--tile={tile}"]
        if "error" not in remat_plan(options, row, precision, policy + ["--calibration=off"]):
            return ways + [("Remat, 98 % saved", policy)]
        tile //= 2
    return ways


# ---- Step times
# ---------------------------------------------------------------------------------------------------------


def torch_run(options, row, precision, chunks, again, **more):
    work = dict(row, precision=precision, chunks=chunks, again=again, device=options.device, data=options.data, **more)
    text, complaint, peak = run(options, [options.python, os.path.abspath(__file__), "--child", json.dumps(work)],
                                time_for_one(options))
    if text is None:
        return {"error": (complaint.strip().splitlines() or ["?"])[-1][:160]}
    return dict(json.loads(text.splitlines()[-1]), bytes=peak)


def torch_ways(options, row, precision):
    if not options.torch:
        return []
    chunks = root_chunks(row["T"])
    if not options.quick:
        tried = {n: torch_run(options, row, precision, n, True, steps=1) for n in sorted({16, chunks})}
        chunks = min(tried, key=lambda n: tried[n].get("seconds", 1e9))
    return [("PyTorch", fewest_calls(row["T"]), False), ("PyTorch, chunked", chunks, True)]


def measure(options, name, precision):
    row = options.rows_of[name]
    ways = {way: (lambda policy=policy: remat_steps(options, row, precision, policy, options.steps + UNCOUNTED))
            for way, policy in remat_ways(options, row, precision)}
    for way, chunks, again in torch_ways(options, row, precision):
        ways[way] = lambda chunks=chunks, again=again: torch_run(options, row, precision, chunks, again, steps=options.steps)
    samples = {way: [] for way in sorted(ways, key=lambda way: way not in ("Remat, kept", "PyTorch"))}
    for _ in range(options.rounds):
        for way in samples:
            measure_once = ways[way]
            broken = samples[way] and "error" in samples[way][-1]
            if left(options) > 0 and not broken:
                samples[way].append(measure_once())
    return {"row": row, "precision": precision, "samples": {way: s for way, s in samples.items() if s},
            "not_reached": [way for way, s in samples.items() if not s]}


def median_of(samples, key):
    values = [s[key] for s in samples if s.get(key) is not None]
    return statistics.median(values) if values else None


def ratio(result, way, base):
    """Median over rounds of the ratio of the times of `way` and `base`."""
    pairs = zip(result["samples"].get(way, []), result["samples"].get(base, []))
    values = [a["seconds"] / b["seconds"] for a, b in pairs if "seconds" in a and "seconds" in b]
    return statistics.median(values) if values else None


def label(row):
    return f"B{row['B']} H{row['H']} L{row['L']} T{row['T']}"


def show_row(result):
    for way, samples in result["samples"].items():
        seconds, size = median_of(samples, "seconds"), median_of(samples, "bytes")
        if seconds is None:
            say(f"| {label(result['row'])} | {result['precision']} | {way} | {samples[-1].get('error', '?')[:100]} | | | |")
            continue
        to = [ratio(result, way, base) for base in ("PyTorch", "Remat, kept")]
        activations = samples[-1].get("plan", {}).get("activations_peak_bytes")
        gpu = samples[-1].get("gpu") or {}
        products, ended = gpu.get("products", {}), gpu.get("graphs", {}).get("ended")
        way += f" ({products['in_fp32']} of {products['shapes']} products in fp32)" if products.get("in_fp32") else ""
        way += f" ({products['by_cublas']} of {products['shapes']} by cuBLAS)" if products.get("by_cublas") else ""
        way += f" (recording ended: {ended})" if ended else ""
        say(f"| {label(result['row'])} | {result['precision']} | {way} | {1e3 * seconds:.1f} | "
            + " | ".join(f"{t:.2f}" if t else "" for t in to)
            + f" | {f'{size / MIB:.0f}' if size is not None else ''} | {f'{activations / MIB:.1f}' if activations else ''} |")


# ---- The longest sequence
# ---------------------------------------------------------------------------------------------


def longest(options, name):
    row = options.rows_of[name]
    result = {"row": row, "cap": options.cap}
    if options.torch:
        for way, again in (("PyTorch", False), ("PyTorch, chunked", True)):
            seconds = max(5, min(options.longest_seconds, left(options) / 3))
            result[way] = torch_run(options, dict(row, T=max(32, row["T"] // 16)), "fp32", 0, again, longest=True,
                                    cap=options.cap, seconds=seconds)
    base = result.get("PyTorch", {}).get("T") or row["T"]
    for times in TIMES_LONGER:
        if left(options) < 1:
            break
        limit = max(10, min(options.longest_seconds, left(options)))
        trained = remat_steps(options, row, "fp32", [f"--memory-budget={options.cap}", "--calibration=off"], 1, T=times * base,
                              limit=limit)
        if "seconds" in trained:
            result["Remat"] = dict(trained, T=times * base)
            break
        result.setdefault("refused", []).append({"T": times * base, "error": trained["error"]})
    return result


def show_longest(result):
    plain = result.get("PyTorch", {}).get("T")
    for way in ("PyTorch", "PyTorch, chunked", "Remat"):
        got = result.get(way)
        if not got:
            continue
        times = f"{got['T'] / plain:.1f}x" if plain and got.get("T") else ""
        note = got.get("stopped_by") or got.get("error") or f"one step of {got['seconds']:.1f} s"
        say(f"| {label(result['row'])} | {way} | {got.get('T', 0):,} | {times} | {note[:110]} |")
    for refused in result.get("refused", []):
        say(f"| {label(result['row'])} | Remat | ({refused['T']:,}) | | {refused['error'][:110]} |")


# ---- The whole
# ------------------------------------------------------------------------------------------------------------


def against_targets(results, longests):
    """Compares the targets with the measurements."""
    say("\nwanted -> measured")
    for result in results:
        wanted = [("Remat, kept", "PyTorch", 1.0), ("Remat, kept, cudnn's kernels", "PyTorch", 1.0),
                  ("Remat, lean", "Remat, kept", 1.05), ("Remat, 98 % saved", "Remat, kept", 1.2)]
        for way, base, most in wanted:
            got = ratio(result, way, base)
            if got:
                say(f"  {label(result['row'])} {result['precision']}: {way} at most {most:.2f} of {base} -> {got:.2f}")
    for result in longests:
        plain, remat = result.get("PyTorch", {}).get("T"), result.get("Remat", {}).get("T")
        if plain and remat:
            say(f"  {label(result['row'])}: 50 times the longest T of PyTorch -> {remat / plain:.0f} times")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("REMAT_TORCH_PYTHON", sys.executable))
    parser.add_argument("--remat", default=os.path.join(ROOT, "build", "gpu", "remat"))
    parser.add_argument("--data", default=os.path.join(ROOT, "examples", "data", "shakespeare.txt"))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--precisions", default="fp32,tf32,bf16")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--cap", type=float, help="GiB of device memory for the longest T [98 %% of the free memory; --quick: 2]")
    parser.add_argument("--longest-rows", help="rows for the longest T [all; --quick: a]")
    parser.add_argument("--longest-seconds", type=float, default=None, help="seconds for each search, and for each step [600; 60]")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--json", default=os.path.join(ROOT, "build", "gpu.json"))
    parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def complete(options):
    """Settings derived from the flags and the machine."""
    options.card = Card(options.device)
    options.rows_of = ROWS if options.device == "cuda" and not options.tiny else TINY
    options.precision_list = options.precisions.split(",") if options.device == "cuda" else ["fp32"]
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.steps = options.steps or (2 if options.quick else 3)
    options.longest_list = (options.longest_rows or ("a" if options.quick else ",".join(ROWS))).split(",")
    options.longest_seconds = options.longest_seconds or (60 if options.quick else 600)
    few = options.quick or options.device == "cpu" or not options.card.library
    options.cap = int(options.cap * GIB if options.cap else 2 * GIB if few else 0.98 * options.card.free())
    options.torch = not subprocess.run([options.python, "-c", "import torch" + ("; assert torch.cuda.is_available()" if
                                        options.device == "cuda" else "")], stderr=subprocess.DEVNULL).returncode
    if not options.torch:
        say(f"{options.python} has no PyTorch{' that sees the GPU' if options.device == 'cuda' else ''} (name one that has in "
            "REMAT_TORCH_PYTHON): Remat is measured alone")
    if not os.path.exists(options.remat):
        sys.exit(f"{options.remat} does not exist; bench/gpu.sh builds it")


def save(options, results, longests):
    with open(options.json, "w") as file:
        json.dump({"device": options.device, "cap": options.cap, "steps": results, "longest": longests}, file, indent=1)


def main():
    options = arguments()
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # for both programs
    if options.child:
        return child(json.loads(options.child))
    complete(options)
    results, longests, unreached = [], [], []
    say("\n| work | precision | | step [ms] | to PyTorch | to kept | memory [MiB] | activations [MiB] |")
    say("|---|---|---|--:|--:|--:|--:|--:|")
    order = [(name, precision) for precision in options.precision_list for name in options.rows.split(",")]
    for at, (name, precision) in enumerate(order):
        if left(options) <= 0:
            unreached += [" ".join(more) for more in order[at:]]
            break
        results.append(measure(options, name, precision))
        show_row(results[-1])
        unreached += [f"{name} {precision} {way}" for way in results[-1]["not_reached"]]
        save(options, results, longests)
        if at + 1 == len(options.rows.split(",")):
            longests = [longest(options, n) for n in options.longest_list if left(options) > 0]
            save(options, results, longests)
    say(f"\nThe longest sequence that trains within {options.cap / GIB:.2f} GiB")
    say("\n| work | | T | to PyTorch | |")
    say("|---|---|--:|--:|---|")
    for result in longests:
        show_longest(result)
    against_targets(results, longests)
    if unreached:
        say(f"\n(not reached: {'; '.join(unreached)})")


if __name__ == "__main__":
    main()
