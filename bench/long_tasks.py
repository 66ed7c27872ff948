#!/usr/bin/env python3
"""Long tasks, solved by recurrent networks with exact back-propagation: adding over 10,000 and 100,000 timesteps, the word problem of S5
at lengths longer than in training, a text to a given loss, and images pixel by pixel, compared with PyTorch.

    bench/long_tasks.py FOLDER [--only=adding-10k,budget,s5,adding-100k,text,pixels,permuted] [--remat=build/release/remat] [--threads=1]
                        [--text=FILE] [--images=IDX --labels=IDX] [--seeds=3]

Runs and their metrics are kept in FOLDER: when started again, the script resumes stopped runs and skips finished ones. Needs NumPy; pixels
also need PyTorch. It prints tables:

  adding-10k    an LSTM with 32 units, a batch of 32, within 32 MiB; three seeds
  budget        the first of these runs again, with everything kept and with a hundredth of those activations: are losses bit-identical?
  adding-100k   the same network within 256 MiB; one seed
  s5            networks of 150,000 parameters, trained on 32 timesteps, evaluated on 32, 320 and 3200
  text          language models of half a million parameters on the characters of --text, batch 16 of 256 timesteps, Adam at 0.003: time to a
                loss of 1.7 per character on the last tenth; without --text it is skipped. It writes text.png if gnuplot is installed
  pixels        an LSTM with 64 units on IDX images (MNIST) as 784 timesteps, all but the last 1,000, batch 32, Adam at 0.003: time to the
                accuracy on those 1,000 that PyTorch's nn.LSTM reaches in ten epochs from the same weights; permuted: with one random order of pixels

The script initialises layers by chrono initialisation (Tallec and Ollivier 2018), except for S5: forget biases log u, input biases -log u, u uniform in
[1, T-1]. Adding is trained by Adam at 0.02 with gradients clipped to a norm of 1. "Solved" is the first step at which the mean loss of the last 50
steps is below 0.01; a constant answer of 1 has a loss of 0.167.
"""
import argparse
import glob
import gzip
import json
import os
import re
import resource
import shutil
import struct
import statistics
import subprocess
import sys
import time

np = None  # NumPy, which --help does not need: main imports it

HIDDEN = 32  # for adding
S5 = {  # about as many parameters as the LSTM's: 149,000
    "lstm": "--model=lstm --layers=1 --hidden=128",
    "xlstm": "--model=xlstm --layers=1 --hidden=128",
    "gdn-negative": "--model=gdn --layers=2 --hidden=64 --heads=1 --allow-neg-eigval",
    "gdn": "--model=gdn --layers=2 --hidden=64 --heads=1",
    "rwkv7": "--model=rwkv7 --layers=2 --hidden=64",
    "mamba": "--model=mamba --layers=2 --hidden=96",
    "mamba2": "--model=mamba2 --layers=2 --hidden=96 --heads=3 --state-size=64",
    "m2rnn": "--model=m2rnn --layers=2 --hidden=72 --heads=2",
    "mingru": "--model=mingru --layers=2 --hidden=72",
}
S5_STEPS = 4000
TEXT = (("lstm", 1, 256, 1000), ("mingru", 2, 128, 500), ("mamba", 2, 192, 500), ("gdn", 2, 128, 500))  # layers, hidden, most steps
TEXT_LOSS = 1.7
PIXELS = dict(hidden=64, batch=32, lr=0.003, epochs=10)


def start(timesteps, seed, features, hidden, outputs):
    random = np.random.default_rng(seed)

    def uniform(*shape):
        return random.uniform(-1 / np.sqrt(hidden), 1 / np.sqrt(hidden), shape).astype("<f4")

    uniform(4 * hidden)  # skip the default biases
    forget = np.log(random.uniform(1, timesteps - 1, hidden))
    bias = np.concatenate([-forget, forget, np.zeros(2 * hidden)]).astype("<f4")  # gates i f g o
    return {"rnn.weight_ih_l0": uniform(4 * hidden, features), "rnn.weight_hh_l0": uniform(4 * hidden, hidden),
            "rnn.bias_ih_l0": bias, "rnn.bias_hh_l0": np.zeros(4 * hidden, "<f4"),
            "head.weight": uniform(outputs, hidden), "head.bias": np.zeros(outputs, "<f4")}


def write_safetensors(path, arrays):
    header, at = {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(a.tobytes() for a in arrays.values()))


def remat(args, *arguments):
    run = subprocess.run([args.remat, *arguments], capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"remat {' '.join(arguments)}\n{run.stderr}")
    return run.stdout


def train(args, name, steps, flags):
    """Trains up to `steps`, from where it stopped. Returns the lines of all steps, in order."""
    state, pieces = os.path.join(args.folder, name), os.path.join(args.folder, name + ".*.jsonl")
    run = {line["step"]: line for path in sorted(glob.glob(pieces)) for line in map(json.loads, open(path))
           if line["event"] == "step"}
    saved = [int(step) for step in re.findall(r"step-(\d+)", " ".join(os.listdir(state)))] if os.path.isdir(state) else []
    if max(saved, default=0) < steps:
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        metrics = f"--metrics={os.path.join(args.folder, f'{name}.{max(saved, default=0):08}.jsonl')}"
        begin = [f"--resume={state}"] if saved else [*flags, f"--save={state}"]
        remat(args, "train", *begin, f"--steps={steps}", "--save-every=25", f"--threads={args.threads}", metrics)
        with open(os.path.join(args.folder, name + ".cpu"), "w") as file:  # of a run that was not interrupted
            file.write(f"{resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before:.1f}")
        return train(args, name, steps, flags)
    return [run[step] for step in sorted(run)]


def evaluate(args, name, flags):
    said = remat(args, "eval", f"--resume={os.path.join(args.folder, name)}", f"--threads={args.threads}", *flags)
    return said.splitlines()[-1]


def adding(args, timesteps, seed, budget):
    init = os.path.join(args.folder, f"chrono-{timesteps}-{seed}.safetensors")
    write_safetensors(init, start(timesteps, seed, 2, HIDDEN, 1))
    return ["--task=adding", "--model=lstm", f"--hidden={HIDDEN}", f"--seq-len={timesteps}", "--batch=32",
            "--samples=100000", f"--seed={seed + 1}", f"--init={init}", "--optimizer=adam", "--lr=0.02",
            "--clip-grad-norm=1", *([f"--memory-budget={budget}"] if budget else [])]


def solve(args, name, timesteps, seed, budget, samples):
    run = train(args, name, 800, adding(args, timesteps, seed, budget))
    losses = [line["loss"] for line in run]
    solved = next((i + 1 for i in range(49, len(run)) if np.mean(losses[i - 49:i + 1]) < 0.01), None)
    seconds = sum(line["step_ms"] for line in run[:solved]) / 1000
    process = max(line["rss_peak_bytes"] for line in run) / 2**20
    error = re.search(r"loss (\S+)", evaluate(args, name, [f"--samples={samples}"]))[1]
    print(f"| {timesteps} | {seed} | {solved or 'not'} | {seconds:.0f} s | {float(error):.2g} | {process:.0f} MiB |", flush=True)


def adding_10k(args):
    print("| timesteps | seed | solved at step | after | test MSE at step 800 | process |\n|--:|--:|--:|--:|--:|--:|")
    for seed in range(3):
        solve(args, f"adding-10k-{seed}", 10000, seed, "32MiB", 1000)


def adding_100k(args):
    print("| timesteps | seed | solved at step | after | test MSE at step 800 | process |\n|--:|--:|--:|--:|--:|--:|")
    solve(args, "adding-100k-0", 100000, 0, "256MiB", 200)


def budget(args):
    paths = [os.path.join(args.folder, f"budget-{name}.jsonl") for name in ("kept", "hundredth")]
    for path, bytes_ in zip(paths, (None, "8500KiB")):
        if not os.path.exists(path):
            remat(args, "train", *adding(args, 10000, 0, bytes_), "--steps=800", f"--threads={args.threads}", f"--metrics={path}.part")
            os.rename(path + ".part", path)
    print(remat(args, "report", "--require-identical", *paths))


def cpu_seconds(args, name):
    with open(os.path.join(args.folder, name + ".cpu")) as file:
        return float(file.read())


def lines_of(args, name):
    return [line for path in sorted(glob.glob(os.path.join(args.folder, name + ".*.jsonl"))) for line in map(json.loads, open(path))]


def parameters(args, name):
    """In thousands."""
    return next(round(line["params_bytes"] / 4000) for line in lines_of(args, name) if line["event"] == "plan")


def s5(args):
    print("| model | parameters | CPU time | process | T = 32 | T = 320 | T = 3200 |\n|---|--:|--:|--:|--:|--:|--:|")
    for model in S5:
        name = f"s5-{model}"
        run = train(args, name, S5_STEPS, [
            "--task=s5", "--seq-len=32", *S5[model].split(), "--batch=64", "--samples=1000000", "--lr=0.003", "--lr-schedule=cosine",
            "--clip-grad-norm=1"])
        found = [re.search(r"accuracy (\S+) %", evaluate(args, name, [f"--seq-len={T}", "--samples=300"]))[1]
                 for T in (32, 320, 3200)]
        process = max(line["rss_peak_bytes"] for line in run) / 2**20
        print(f"| {model} | {parameters(args, name)} k | {cpu_seconds(args, name):.0f} s | {process:.0f} MiB | "
              + " | ".join(f"{accuracy} %" for accuracy in found) + " |", flush=True)


# ---- Text ----------------------------------------------------------------------------------------------------------


def plot(path, curves):
    """curves: names and their points (CPU seconds, loss)."""
    data = "".join(f"${name} << E\n" + "".join(f"{x} {y}\n" for x, y in points) + "E\n" for name, points in curves.items())
    lines = ", ".join(f"${name} with linespoints title '{name}'" for name in curves)
    script = f"set term png size 900,500; set output '{path}'; set xlabel 'CPU seconds'; set ylabel 'loss per character'; plot {lines}\n"
    subprocess.run(["gnuplot"], input=data + script, text=True, check=True)


def text(args):
    if not args.text:
        return print("text: skipped without --text")
    print(f"| model | parameters | step at a loss of {TEXT_LOSS} | CPU time | process | loss at the end |\n|---|--:|--:|--:|--:|--:|")
    curves = {}
    for model, layers, hidden, steps in TEXT:
        name = f"text-{model}"
        run = train(args, name, steps, [
            f"--data={args.text}", "--tokenizer=chars", "--eval-split=0.1", "--eval-every=25", "--seq-len=256", f"--model={model}",
            f"--layers={layers}", f"--hidden={hidden}", "--batch=16", "--lr=0.003", "--clip-grad-norm=1"])
        lines = lines_of(args, name)
        losses = {line["step"]: line["loss"] for line in lines if line["event"] == "eval"}
        reached, each = next((step for step in sorted(losses) if losses[step] <= TEXT_LOSS), None), cpu_seconds(args, name) / steps
        curves[model] = [(step * each, losses[step]) for step in sorted(losses)]
        process = max(line["rss_peak_bytes"] for line in run) / 2**20
        print(f"| {model}, {layers} x {hidden} | {parameters(args, name)} k | {reached or f'not in {steps}'} | {(reached or steps) * each:.0f} s "
              f"| {process:.0f} MiB | {losses[max(losses)]:.3f} |", flush=True)
    if shutil.which("gnuplot"):
        plot(os.path.join(args.folder, "text.png"), curves)


# ---- Pixels --------------------------------------------------------------------------------------------------------


def read_idx(path):
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
        data = file.read()
    return np.frombuffer(data, "u1", offset=4 + 4 * data[3]).reshape(np.frombuffer(data, ">i4", data[3], 4))


def pixel_files(args, kind):
    paths = [os.path.join(args.folder, f"{kind}-{name}.npy") for name in ("x", "y", "test-x", "test-y")]
    if not os.path.exists(paths[-1]):
        images, labels = read_idx(args.images), read_idx(args.labels)
        x = images.reshape(len(images), -1, 1)
        if kind == "permuted":
            x = x[:, np.random.default_rng(0).permutation(x.shape[1])]
        for path, array in zip(paths, (x[:-1000], labels[:-1000], x[-1000:], labels[-1000:])):
            np.save(path, np.ascontiguousarray(array))
    return paths


def torch_pixels(args, kind, seed):
    """Trains in a separate process; returns the results after the last epoch."""
    import torch

    torch.set_num_threads(args.threads)
    x, y, test_x, test_y = (torch.from_numpy(np.load(path)) for path in pixel_files(args, kind))
    x, test_x, y, test_y = x.transpose(0, 1).float() / 255, test_x.transpose(0, 1).float() / 255, y.long(), test_y.long()
    net = torch.nn.ModuleDict({"rnn": torch.nn.LSTM(1, PIXELS["hidden"]), "head": torch.nn.Linear(PIXELS["hidden"], 10)})
    net.load_state_dict({name: torch.from_numpy(a) for name, a in start(784, seed, 1, PIXELS["hidden"], 10).items()})
    optimizer, batch, seconds = torch.optim.Adam(net.parameters(), PIXELS["lr"]), PIXELS["batch"], 0.0

    def logits(x):
        return net["head"](net["rnn"](x)[0][-1])

    for epoch in range(PIXELS["epochs"]):
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed + epoch))
        begin = time.perf_counter()
        for rows in order[:len(y) // batch * batch].split(batch):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(logits(x[:, rows]), y[rows]).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1)
            optimizer.step()
        seconds += time.perf_counter() - begin
    with torch.no_grad():
        right = sum((logits(a).argmax(1) == b).sum().item() for a, b in zip(test_x.split(100, 1), test_y.split(100)))
    with open("/proc/self/status") as file:
        peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
    print(json.dumps({"accuracy": right / len(test_y), "seconds": seconds, "mib": peak / 1024}))


def peer(args, kind, seed):
    path = os.path.join(args.folder, f"{kind}-torch-{seed}.json")
    if not os.path.exists(path):
        run = subprocess.run([sys.executable, __file__, args.folder, f"--threads={args.threads}", f"--job={kind}:{seed}"],
                             check=True, capture_output=True, text=True)
        with open(path, "w") as file:
            file.write(run.stdout)
    with open(path) as file:
        return json.load(file)


def pixels(args, kind="pixels"):
    print("| seed | PyTorch after 10 epochs | time | MiB | Remat: epochs to that | time | MiB | after 10 epochs |"
          "\n|--:|--:|--:|--:|--:|--:|--:|--:|")
    x, y, test_x, test_y = pixel_files(args, kind)
    each, times = len(np.load(y)) // PIXELS["batch"], []
    for seed in range(args.seeds):
        other, name = peer(args, kind, seed), f"{kind}-{seed}"
        init = os.path.join(args.folder, f"pixels-{seed}.safetensors")
        write_safetensors(init, start(784, seed, 1, PIXELS["hidden"], 10))
        steps = train(args, name, 2 * PIXELS["epochs"] * each, [
            "--task=classify", "--model=lstm", f"--init={init}", f"--seed={seed}", f"--data={x}", f"--labels={y}",
            f"--eval-data={test_x}", f"--eval-labels={test_y}", "--optimizer=adam", f"--lr={PIXELS['lr']}",
            "--clip-grad-norm=1", f"--batch={PIXELS['batch']}", f"--eval-every={each}"])
        evals = {line["step"]: line["accuracy"] for path in glob.glob(os.path.join(args.folder, name + ".*.jsonl"))
                 for line in map(json.loads, open(path)) if line["event"] == "eval"}
        reached = next((step for step in sorted(evals) if evals[step] >= other["accuracy"]), None)
        seconds = sum(line["step_ms"] for line in steps[:reached]) / 1000
        times.append(seconds / other["seconds"])
        print(f"| {seed} | {100 * other['accuracy']:.1f} % | {other['seconds']:.0f} s | {other['mib']:.0f} "
              f"| {reached // each if reached else 'not in 20'} | {seconds:.0f} s | {max(l['rss_peak_bytes'] for l in steps) / 2**20:.0f} "
              f"| {100 * evals[PIXELS['epochs'] * each]:.1f} % |", flush=True)
    print(f"\nmedian of PyTorch's time: {statistics.median(times):.2f}")


def permuted(args):
    pixels(args, "permuted")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    tasks = {"adding-10k": adding_10k, "budget": budget, "s5": s5, "adding-100k": adding_100k, "text": text, "pixels": pixels,
             "permuted": permuted}
    parser.add_argument("--only", default=",".join(tasks))
    parser.add_argument("--remat", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../build/release/remat"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds for pixels and permuted")
    parser.add_argument("--text"), parser.add_argument("--images"), parser.add_argument("--labels"), parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    global np
    import numpy as np

    if args.job:
        return torch_pixels(args, args.job.split(":")[0], int(args.job.split(":")[1]))
    os.makedirs(args.folder, exist_ok=True)
    for name in args.only.split(","):
        if name not in tasks:
            parser.error(f"--only: unknown task '{name}'; use {', '.join(tasks)}")
        if tasks[name] in (pixels, permuted) and not (args.images and args.labels):
            parser.error(f"{name} needs --images and --labels")
        tasks[name](args)
        print()


if __name__ == "__main__":
    main()
