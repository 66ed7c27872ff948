#!/usr/bin/env python3
"""Compares training on many ranks with PyTorch's DDP: steps, start-up, overlap on a slow link, all-reduce.

    bench/ranks.py [--tables=steps,startup,overlap,all-reduce] [--quick] [--rounds=N] [--build=DIR] [--python=PYTHON-WITH-TORCH]

The work is the byte-level language model of compare_pytorch.py: embedding(128) -> LSTM -> linear(256) -> cross entropy at every
timestep, SGD; both sides do the same arithmetic. Everything runs on this machine. Needs a build with the benchmarks (ninja -C
build/release remat bench_start bench_all_reduce). PyTorch is that of --python, or $REMAT_TORCH_PYTHON, or this interpreter; without PyTorch
its columns stay empty. --quick takes about three minutes on two quiet cores.

Method
  - A round measures every variant once, one after another, so that a slow phase of the machine affects all of them. Ratios are taken
    within a round; the tables show the median over rounds and, in brackets, the quartiles.
  - steps: weak scaling, with the same batch per rank. Remat: one rank with one thread; two such processes side by side
    without communication; two ranks (--devices=cpu:2, engine `local`); one rank with two threads and twice the
    batch. PyTorch: the same except for the side-by-side pair; two ranks are DistributedDataParallel over gloo with gradient_as_bucket_view and,
    if that is faster, static_graph, one inter-op thread; oneDNN is on or off, whichever is faster
    with one thread. A time is the median of a run's steps without the first. Remat starts its processes for each run;
    PyTorch's two workers persist, and sleep between their turns.
  - startup: 8 ranks on this host, timed from just before exec. For Remat (bench/start.c and `remat train`) that is `remat launch`;
    for PyTorch 8 processes started at once that import torch from the file cache, and init_process_group alone, in forks of a
    process that has imported torch: from the last rank's call to the last rank's return. PyTorch's ranks meet through a file.
  - overlap: two network namespaces joined by a veth pair whose two ends are limited by tc's token bucket (tbf). Needs root.
    `link` is the time of the bytes alone at that rate; `hidden` is the share of it that does not lengthen the step:
    1 - (step - side by side) / link. `busy` and `waited` are comm_busy_ms and comm_wait_ms of the metrics.
  - all-reduce: bench/all_reduce.sh.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EMBED, VOCABULARY = 128, 256
SHAPES = [dict(B=16, H=256, L=1, T=500), dict(B=8, H=512, L=2, T=250), dict(B=1, H=128, L=1, T=4000)]
OVERLAP = dict(B=8, H=512, L=2, T=64)
LINK_RATE = 1e9
# Variants: the engine and flags of `remat train`.
OVERLAP_WAYS = [("gloo", ["--bucket-cap-mb=25"]), ("gloo", ["--bucket-cap-mb=4"]), ("gloo", ["--bucket-cap-mb=1"]),
                ("gloo", ["--bucket-cap-mb=1", "--grad-compress=fp16"]), ("mpi", ["--bucket-cap-mb=25"]),
                ("mpi", ["--bucket-cap-mb=1"])]


# ---- PyTorch's processes ------------------------------------------------------------------------------------------


def status_mib(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(field + ":"))


def torch_group(rank, size, place):
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method="file://" + place, rank=rank, world_size=size)


def torch_leave():
    """A rank that exits while another still connects would make that one fail."""
    import torch.distributed as dist

    dist.barrier()


def torch_model(work):
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, EMBED)
            self.rnn = nn.LSTM(EMBED, work["H"], num_layers=work["L"])
            self.head = nn.Linear(work["H"], VOCABULARY)

        def forward(self, x, y):
            out, _ = self.rnn(self.embedding(x))
            return nn.functional.cross_entropy(self.head(out).view(-1, VOCABULARY), y.reshape(-1))

    torch.manual_seed(1)
    return Model()


def torch_measure(work):
    """Trains one variant in this worker; returns the median step time."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(work["threads"])
    torch.backends.mkldnn.set_flags(work["onednn"])
    model = torch_model(work)
    if work["ddp"]:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=work["static"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with open(work["data"], "rb") as file:
        text = torch.frombuffer(bytearray(file.read(work["B"] * work["T"] + 1)), dtype=torch.uint8).long()
    x, y = (part.view(work["B"], work["T"]).t().contiguous() for part in (text[:-1], text[1:]))
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # resets the peak
    times = []
    for _ in range(work["steps"] + 1):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=not work["ddp"])
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        loss.item()
        times.append(time.perf_counter() - start)
    return {"seconds": statistics.median(times[1:]), "mib": status_mib("VmHWM")}


def torch_worker(rank, place):
    """Measures the variants that the parent writes to stdin, one per line."""
    import torch

    torch.set_num_interop_threads(1)
    torch_group(rank, 2, place)
    print(json.dumps({"torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(torch_measure(json.loads(line))), flush=True)


def torch_start(rank, size, place):
    """One rank in a freshly started process."""
    torch_group(rank, size, place)
    print(json.dumps({"ready": time.monotonic()}), flush=True)
    torch_leave()


def torch_join(size, times):
    """Forks ranks that have already imported everything; ms from the last rank's call to the last rank's return."""
    import torch.distributed  # noqa: F401

    for _ in range(times):
        sys.stdin.readline()
        with tempfile.TemporaryDirectory() as folder:
            readers = [join_forked(rank, size, os.path.join(folder, "store")) for rank in range(size)]
            points = [json.loads(os.fdopen(reader).read()) for reader in readers]
            for _ in readers:
                os.wait()
        print(1e3 * (max(p["ready"] for p in points) - max(p["called"] for p in points)), flush=True)


def join_forked(rank, size, place):
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        return reader
    try:
        called = time.monotonic()
        torch_group(rank, size, place)
        os.write(writer, json.dumps({"called": called, "ready": time.monotonic()}).encode())
        torch_leave()
    finally:
        os._exit(0)


class Torch:
    """Two workers that persist for a whole table."""

    def __init__(self, options):
        self.folder = tempfile.TemporaryDirectory()
        environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
        command = [options.python, os.path.abspath(__file__), "--torch-worker"]
        self.workers = [subprocess.Popen(command + [str(rank), os.path.join(self.folder.name, "store")], env=environment,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for rank in range(2)]
        self.version = [self.read(worker) for worker in self.workers][0]["torch"]

    @staticmethod
    def read(worker):
        line = worker.stdout.readline()
        if not line:
            sys.exit("ranks.py: a PyTorch worker failed; its output is above")
        return json.loads(line)

    def run(self, work, ranks):
        for worker in self.workers[:ranks]:
            worker.stdin.write(json.dumps(work) + "\n")
            worker.stdin.flush()
        answers = [self.read(worker) for worker in self.workers[:ranks]]
        return max(answers, key=lambda a: a["seconds"])

    def close(self):
        for worker in self.workers:
            worker.stdin.close()
        for worker in self.workers:
            worker.wait()
        self.folder.cleanup()


# ---- Remat's processes --------------------------------------------------------------------------------------------


def environment_for_remat(**extra):
    return dict({key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}, **extra)


def train_command(options, row, metrics, steps, *flags):
    return [options.remat, "train", "--model=lstm", f"--layers={row['L']}", f"--hidden={row['H']}", f"--embed={EMBED}",
            "--task=lm", f"--data={options.data}", f"--seq-len={row['T']}", f"--batch={row['B']}", f"--steps={steps + 1}",
            "--optimizer=sgd", "--lr=0.1", "--seed=1", "--checkpoint=none", f"--metrics={metrics}", *flags]


def read_metrics(path):
    with open(path) as file:
        steps = [event for event in map(json.loads, file) if event["event"] == "step"]
    middle = {key: statistics.median(step[key] for step in steps[1:]) for key in steps[-1]
              if key in ("step_ms", "comm_busy_ms", "comm_wait_ms", "comm_bytes")}
    return dict(middle, seconds=middle["step_ms"] / 1e3, mib=steps[-1]["rss_peak_bytes"] / 2**20)


def finish(processes):
    """Waits for all processes; if one fails, prints its output and exits."""
    said = [process.communicate()[0] for process in processes]
    for process, text in zip(processes, said):
        if process.returncode:
            sys.exit(f"ranks.py: {' '.join(process.args)}\n{text}")


def start(command, **environment):
    return subprocess.Popen(command, env=environment_for_remat(**environment), stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def run_remat(options, row, steps, *flags, copies=1):
    """The median step time of one run, or of the slowest of several independent runs side by side."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = [os.path.join(folder, f"metrics{i}") for i in range(copies)]
        finish([start(train_command(options, row, path, steps, *flags)) for path in metrics])
        return max((read_metrics(path) for path in metrics), key=lambda m: m["seconds"])


# ---- Numbers ------------------------------------------------------------------------------------------------------


def say(text):
    print(text, flush=True)


def label(row):
    return f"B{row['B']} H{row['H']} L{row['L']} T{row['T']}"


def quartiles(values):
    if len(values) < 2:
        return values * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return [middle, low, high]


def spread(values, form="{:.2f}"):
    middle, low, high = (form.format(v) for v in quartiles(values))
    return f"{middle} [{low}, {high}]"


def milliseconds(samples):
    middle = statistics.median(s["seconds"] for s in samples) * 1e3
    return f"{middle:.0f}" if middle >= 100 else f"{middle:.1f}"


def ratio(samples, a, b, factor=1):
    return [factor * x["seconds"] / y["seconds"] for x, y in zip(samples[a], samples[b])]


# ---- Table: steps -------------------------------------------------------------------------------------------------


def tune_torch(torch, base):
    """PyTorch's fastest settings: first oneDNN on one rank, then static_graph on two."""
    tried = {onednn: torch.run(dict(base, onednn=onednn), 1)["seconds"] for onednn in (True, False)}
    base = dict(base, onednn=min(tried, key=tried.get), ddp=True)
    tried = {static: torch.run(dict(base, static=static), 2)["seconds"] for static in (True, False)}
    return {"onednn": base["onednn"], "static": min(tried, key=tried.get)}


def measure_steps(options, torch, row):
    base = dict(row, threads=1, ddp=False, static=False, onednn=True, steps=options.steps, data=options.data)
    setting = tune_torch(torch, dict(base, steps=1 if options.quick else 2)) if torch else {}
    base.update(setting)
    double = dict(row, B=2 * row["B"])
    ways = {"one": lambda: run_remat(options, row, options.steps, "--threads=1"),
            "pair": lambda: run_remat(options, row, options.steps, "--threads=1", copies=2),
            "two": lambda: run_remat(options, row, options.steps, "--threads=1", "--devices=cpu:2"),
            "threads": lambda: run_remat(options, double, options.steps, "--threads=2")}
    if torch:
        ways.update({"torch one": lambda: torch.run(base, 1), "torch two": lambda: torch.run(dict(base, ddp=True), 2),
                     "torch threads": lambda: torch.run(dict(base, B=double["B"], threads=2), 1)})
    samples = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            samples[name].append(way())
    return {"row": row, "samples": samples, "setting": setting}


def steps_line(result):
    s, comm = result["samples"], statistics.median(m["comm_busy_ms"] for m in result["samples"]["two"])
    waited = statistics.median(m["comm_wait_ms"] for m in s["two"])
    line = [label(result["row"]), milliseconds(s["one"]), milliseconds(s["pair"]), milliseconds(s["two"]),
            spread(ratio(s, "one", "two")), spread([100 * (r - 1) for r in ratio(s, "two", "pair")], "{:.0f}") + " %",
            f"{comm:.2f}, {waited:.2f}", milliseconds(s["threads"]), spread(ratio(s, "threads", "two")),
            f"{statistics.median(m['mib'] for m in s['two']):.0f}"]
    return "| " + " | ".join(line) + " |"


def torch_line(result):
    s = result["samples"]
    line = [label(result["row"]), milliseconds(s["torch one"]), milliseconds(s["torch two"]),
            spread(ratio(s, "torch one", "torch two")), milliseconds(s["torch threads"]), spread(ratio(s, "torch two", "two")),
            spread(ratio(s, "torch one", "one")), f"{statistics.median(m['mib'] for m in s['torch two']):.0f}",
            ", ".join(f"{k} {'on' if v else 'off'}" for k, v in result["setting"].items())]
    return "| " + " | ".join(line) + " |"


def table_steps(options):
    torch = Torch(options) if options.has_torch else None
    results = []
    for row in SHAPES:
        say(f"measuring steps of {label(row)}")
        results.append(measure_steps(options, torch, row))
    say(f"\nStep time, ms; {options.rounds} rounds of {options.steps} steps; batch B a rank\n")
    say("| Remat | 1 rank | 2 alone, side by side | 2 ranks | efficiency: 1 rank / 2 ranks | 2 ranks over 2 alone | "
        "collectives busy, waited for | 1 rank, 2 threads, batch 2B | that / 2 ranks | MiB a rank |")
    say("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for result in results:
        say(steps_line(result))
    if torch:
        say(f"\n| PyTorch {torch.version} | 1 rank | DDP, 2 ranks | efficiency | 1 rank, 2 threads, batch 2B | "
            "DDP's step / Remat's, 2 ranks | the same, 1 rank | MiB a rank | setting |")
        say("|---|--:|--:|--:|--:|--:|--:|--:|---|")
        for result in results:
            say(torch_line(result))
        torch.close()
    return results


# ---- Table: startup -----------------------------------------------------------------------------------------------


def time_lines(command, **environment):
    """Seconds until the first line, and until the end."""
    begun, first = time.monotonic(), None
    process = start(command, **environment)
    for line in process.stdout:
        first = first or (time.monotonic() - begun, line)
    if process.wait():
        sys.exit(f"ranks.py: {' '.join(command)} ended with {process.returncode}")
    return first, time.monotonic() - begun


def start_remat(options, ranks):
    launch = [options.remat, "launch", f"--nproc-per-node={ranks}", "--no-prefix", "--"]
    tiny = dict(B=2, H=16, L=1, T=32)
    program = os.path.join(options.build, "bench", "bench_start")
    _, launcher = time_lines(launch + ["true"])
    (_, line), _ = time_lines(launch + [program, "local"], REMAT_BENCH_START=str(time.monotonic_ns()))
    (planned, _), end = time_lines(launch + train_command(options, tiny, os.devnull, 0))
    point = json.loads(line)
    return {"`remat launch` of programs that do nothing": launcher * 1e3, "all ranks have reached main()": point["main_ms"],
            "all ranks are connected to the store": point["store_ms"], "**all ranks are in their group**": point["group_ms"],
            "of that, after the last main()": point["group_ms"] - point["main_ms"],
            "processor time of a rank until then": point["cpu_ms"],
            "`remat train`: planned, compared, parameters sent": planned * 1e3,
            "`remat train --steps=1`: all processes ended": end * 1e3}


def exec_torch(options, ranks):
    with tempfile.TemporaryDirectory() as folder:
        command = [options.python, os.path.abspath(__file__), "--torch-start"]
        begun = time.monotonic()
        processes = [subprocess.Popen(command + [str(rank), str(ranks), os.path.join(folder, "store")], text=True,
                                      env=environment_for_remat(OMP_NUM_THREADS="1"), stdout=subprocess.PIPE)
                     for rank in range(ranks)]
        points = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
    return 1e3 * (max(p["ready"] for p in points) - begun)


class TorchJoiner:
    """A process that has imported torch and forks ranks; for each request it measures one joining, in ms."""

    def __init__(self, options, ranks, times):
        command = [options.python, os.path.abspath(__file__), "--torch-join", str(ranks), str(times)]
        self.process = subprocess.Popen(command, env=environment_for_remat(OMP_NUM_THREADS="1"), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def run(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.process.kill()
            sys.exit("ranks.py: PyTorch's ranks did not find each other; their output is above")
        return float(line)


def table_startup(options, ranks=8):
    say(f"measuring the start-up of {ranks} ranks")
    samples, times = {}, 4 * options.rounds
    torch = TorchJoiner(options, ranks, times) if options.has_torch else None
    for i in range(times):
        found = start_remat(options, ranks)
        if torch:
            found["PyTorch: init_process_group('gloo') alone"] = torch.run()
        if torch and i % 16 == 0:
            found["PyTorch: all ranks are in their group, from exec of the ranks"] = exec_torch(options, ranks)
        for name, value in found.items():
            samples.setdefault(name, []).append(value)
    say(f"\nStart-up of {ranks} ranks on this host: ms after exec of the launcher, median [quartiles], and the best\n")
    say("| | ms | best | times measured |\n|---|--:|--:|--:|")
    for name, values in samples.items():
        say(f"| {name} | {spread(values, '{:.1f}')} | {min(values):.1f} | {len(values)} |")
    return samples


# ---- Table: overlap -----------------------------------------------------------------------------------------------


def run_on_two_hosts(options, row, engine, flags):
    """Runs inside netns.sh: starts a rank on each host, for Gloo directly, for MPI by mpirun."""
    on, hosts = os.environ["REMAT_ON"], ("hostA", "hostB")
    with tempfile.TemporaryDirectory() as folder:
        metrics = os.path.join(folder, "metrics")
        train = train_command(options, row, metrics, options.steps, "--threads=1", f"--dist-backend={engine}", *flags)
        if engine == "mpi":
            names = os.path.join(folder, "hosts")
            with open(names, "w") as file:
                file.writelines(f"{host} slots=1\n" for host in hosts)
            network = [word for key in ("btl_tcp_if_include", "oob_tcp_if_include") for word in ("--mca", key, "10.77.0.0/24")]
            mpirun = ["mpirun", "--hostfile", names, "--bind-to", "none", "-np", "2", "--map-by", "node", "--mca",
                      "plm_rsh_agent", os.environ["REMAT_AGENT"], "--mca", "btl", "tcp,self", "--mca", "pml", "ob1", *network]
            root = dict(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
            finish([start([on, "hostA", *mpirun, *train], **root)])
        else:
            told = dict(WORLD_SIZE="2", MASTER_ADDR="hostA", MASTER_PORT="23456")
            finish([start([on, host, *train], RANK=str(rank), **told) for rank, host in enumerate(hosts)])
        return read_metrics(metrics)


def shape_links():
    """None if it can run, else the reason."""
    if not shutil.which("tc", path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
        return "tc is missing (apt-get install iproute2)"
    for host, device in (("hostA", "vA"), ("hostB", "vB")):
        done = subprocess.run([os.environ["REMAT_ON"], host, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate",
                               f"{LINK_RATE:.0f}", "burst", "256kb", "latency", "50ms"], stderr=subprocess.PIPE, text=True)
        if done.returncode:
            return f"tc cannot limit the link: {done.stderr.strip()}"
    return None


def overlap_inside(options):
    why = shape_links()
    if why:
        print(json.dumps({"why": why}))
        return
    ways = [way for way in OVERLAP_WAYS if way[0] != "mpi" or shutil.which("mpirun")]
    samples = {"pair": [], **{f"{engine} {' '.join(flags)}": [] for engine, flags in ways}}
    for _ in range(options.rounds):
        samples["pair"].append(run_remat(options, OVERLAP, options.steps, "--threads=1", copies=2))
        for engine, flags in ways:
            samples[f"{engine} {' '.join(flags)}"].append(run_on_two_hosts(options, OVERLAP, engine, flags))
    print(json.dumps(samples))


def overlap_line(name, samples, pair):
    link = samples[0]["comm_bytes"] * 8 / LINK_RATE  # with two ranks, each sends all bytes once
    hidden = [100 * (1 - (s["seconds"] - p["seconds"]) / link) for s, p in zip(samples, pair)]
    best = [s["seconds"] / max(p["seconds"], link) for s, p in zip(samples, pair)]
    busy, waited = (statistics.median(s[key] for s in samples) for key in ("comm_busy_ms", "comm_wait_ms"))
    return (f"| {name} | {1e3 * link:.0f} | {milliseconds(samples)} | {busy:.0f} | {waited:.0f} | {spread(hidden, '{:.0f}')} % | "
            f"{spread(best)} |")


def table_overlap(options):
    say(f"measuring overlap on a link of {LINK_RATE / 1e9:g} Gbit/s")
    command = [os.path.join(ROOT, "tests", "cluster", "netns.sh"), sys.executable, os.path.abspath(__file__), "--overlap-inside",
               f"--build={options.build}", f"--rounds={options.rounds}", f"--steps={options.steps}", f"--data={options.data}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        say(f"\noverlap: {done.stderr.strip() or 'failed'}")
        return {"why": done.stderr}
    samples = json.loads(done.stdout.splitlines()[-1])
    if "why" in samples:
        say(f"\noverlap: skipped: {samples['why']}")
        return samples
    pair = samples["pair"]
    say(f"\nTwo ranks, a link of {LINK_RATE / 1e9:g} Gbit/s between them; {label(OVERLAP)}, "
        f"{options.rounds} rounds of {options.steps} steps; ms. Side by side, without a link: {milliseconds(pair)}\n")
    say("| engine, flags | link | step | busy | waited | hidden | step / max(side by side, link) |")
    say("|---|--:|--:|--:|--:|--:|--:|")
    for name in samples:
        if name != "pair":
            say(overlap_line(name, samples[name], pair))
    return samples


# ---- Table: all-reduce --------------------------------------------------------------------------------------------


def table_all_reduce(options):
    say("measuring all-reduces")
    rounds = min(101, 1 + 6 * options.rounds)
    done = subprocess.run([os.path.join(ROOT, "bench", "all_reduce.sh"), options.build, "2", str(rounds)],
                          stdout=subprocess.PIPE, text=True)
    say("\n" + done.stdout if done.returncode == 0 else f"\nall-reduce: all_reduce.sh ended with {done.returncode}")
    return re.findall(r"^\|.*\|$", done.stdout, re.M)


TABLES = {"steps": table_steps, "startup": table_startup, "overlap": table_overlap, "all-reduce": table_all_reduce}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--quick", action="store_true", help="3 rounds of 3 steps")
    parser.add_argument("--rounds", type=int, help="[7; with --quick 3]")
    parser.add_argument("--steps", type=int, help="counted steps per run [7; with --quick 3]")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"))
    parser.add_argument("--python", default=os.environ.get("REMAT_TORCH_PYTHON", sys.executable))
    parser.add_argument("--data", default=os.path.join(ROOT, "examples", "data", "shakespeare.txt"))
    parser.add_argument("--json", default=os.path.join(ROOT, "build", "ranks.json"))
    parser.add_argument("--torch-worker", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--torch-start", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--torch-join", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--overlap-inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.rounds = options.rounds or (3 if options.quick else 7)
    options.steps = options.steps or (3 if options.quick else 7)
    options.build = os.path.abspath(options.build)
    options.remat = os.path.join(options.build, "remat")
    return options


def check(options):
    unknown = [name for name in options.tables.split(",") if name not in TABLES]
    if unknown:
        sys.exit(f"ranks.py: unknown table {unknown[0]}; use {', '.join(TABLES)}")
    for program in ("remat", "bench/bench_start", "bench/bench_all_reduce"):
        if not os.path.exists(os.path.join(options.build, program)):
            sys.exit(f"ranks.py: {options.build}/{program} does not exist; run ninja -C {options.build} remat bench_start "
                     "bench_all_reduce, or name another build with --build")
    needed = {"steps", "startup"} & set(options.tables.split(","))
    probe = [options.python, "-c", "import torch"]
    options.has_torch = bool(needed) and not subprocess.run(probe, stderr=subprocess.DEVNULL).returncode
    if needed and not options.has_torch:
        say(f"{options.python} has no PyTorch: its columns are left out; name a Python with PyTorch by --python")


def main():
    options = parse()
    if options.torch_worker:
        return torch_worker(int(options.torch_worker[0]), options.torch_worker[1])
    if options.torch_start:
        return torch_start(int(options.torch_start[0]), int(options.torch_start[1]), options.torch_start[2])
    if options.torch_join:
        return torch_join(*options.torch_join)
    if options.overlap_inside:
        return overlap_inside(options)
    check(options)
    load, found = os.getloadavg()[0], {}
    say(f"{len(os.sched_getaffinity(0))} processors; load before: {load:.1f}" + (" (not quiet)" if load > 0.5 else ""))
    for name in options.tables.split(","):
        found[name] = TABLES[name](options)
        with open(options.json, "w") as file:
            json.dump({"load": load, "rounds": options.rounds, "steps": options.steps, **found}, file, indent=1)


if __name__ == "__main__":
    main()
