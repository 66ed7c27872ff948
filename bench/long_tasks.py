#!/usr/bin/env python3
"""Long tasks, solved by nonlinear recurrent nets with exact back-propagation: adding over 10,000 and 100,000 timesteps, and the word
problem of S5 at lengths that training never saw.

    bench/long_tasks.py FOLDER [--only=adding-10k,budget,adding-100k,s5] [--remat=build/release/remat] [--threads=1]

Runs and their metrics are kept in FOLDER: started again, the script resumes what was stopped and skips what is done. Needs NumPy. It
prints tables:

  adding-10k    an LSTM of 32 units, a batch of 32, within 32 MiB; three seeds
  budget        the first of these again, with everything kept, and with a hundredth of those activations: the losses' bits
  adding-100k   the same net within 256 MiB; one seed
  s5            an LSTM and two minGRUs of 128 units, trained on 32 timesteps, evaluated on 32, 320 and 3200

The recipe of adding is chrono initialisation (Tallec and Ollivier 2018), made here: forget biases log u, input biases -log u, u
uniform in [1, T-1]; then Adam at a rate of 0.02, gradients clipped to a norm of 1. "Solved" is the first step with a mean loss of the 50
steps up to it below 0.01; answering 1 always has 0.167.
"""
import argparse
import glob
import json
import os
import re
import struct
import subprocess
import sys

import numpy as np

HIDDEN = 32


def chrono(path, timesteps, seed):
    random = np.random.default_rng(seed)

    def uniform(*shape):
        return random.uniform(-1 / np.sqrt(HIDDEN), 1 / np.sqrt(HIDDEN), shape).astype("<f4")

    uniform(4 * HIDDEN)  # what the bias would be otherwise
    forget = np.log(random.uniform(1, timesteps - 1, HIDDEN))
    bias = np.concatenate([-forget, forget, np.zeros(2 * HIDDEN)]).astype("<f4")  # gates i f g o
    arrays = {"rnn.weight_ih_l0": uniform(4 * HIDDEN, 2), "rnn.weight_hh_l0": uniform(4 * HIDDEN, HIDDEN),
              "rnn.bias_ih_l0": bias, "rnn.bias_hh_l0": np.zeros(4 * HIDDEN, "<f4"),
              "head.weight": uniform(1, HIDDEN), "head.bias": np.zeros(1, "<f4")}
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
    """Up to `steps`, from where it stopped. The steps' lines of all pieces, in order."""
    state, pieces = os.path.join(args.folder, name), os.path.join(args.folder, name + ".*.jsonl")
    run = {line["step"]: line for path in sorted(glob.glob(pieces)) for line in map(json.loads, open(path))
           if line["event"] == "step"}
    saved = [int(step) for step in re.findall(r"step-(\d+)", " ".join(os.listdir(state)))] if os.path.isdir(state) else []
    if max(saved, default=0) < steps:
        metrics = f"--metrics={os.path.join(args.folder, f'{name}.{max(saved, default=0):08}.jsonl')}"
        begin = [f"--resume={state}"] if saved else [*flags, f"--save={state}"]
        remat(args, "train", *begin, f"--steps={steps}", "--save-every=25", f"--threads={args.threads}", metrics)
        return train(args, name, steps, flags)
    return [run[step] for step in sorted(run)]


def evaluate(args, name, flags):
    said = remat(args, "eval", f"--resume={os.path.join(args.folder, name)}", f"--threads={args.threads}", *flags)
    return said.splitlines()[-1]


def adding(args, timesteps, seed, budget):
    init = os.path.join(args.folder, f"chrono-{timesteps}-{seed}.safetensors")
    chrono(init, timesteps, seed)
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


def s5(args):
    print("| model | T = 32 | T = 320 | T = 3200 |\n|---|--:|--:|--:|")
    for model, layers in (("lstm", 1), ("mingru", 2)):
        train(args, f"s5-{model}", 4000, [
            "--task=s5", "--seq-len=32", f"--model={model}", f"--layers={layers}", "--hidden=128", "--batch=64",
            "--samples=1000000", "--lr=0.003", "--lr-schedule=cosine", "--clip-grad-norm=1"])
        found = [re.search(r"accuracy (\S+) %", evaluate(args, f"s5-{model}", [f"--seq-len={T}", "--samples=300"]))[1]
                 for T in (32, 320, 3200)]
        print(f"| {model}, {layers} x 128 | " + " | ".join(f"{accuracy} %" for accuracy in found) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    tasks = {"adding-10k": adding_10k, "budget": budget, "s5": s5, "adding-100k": adding_100k}
    parser.add_argument("--only", default=",".join(tasks))
    parser.add_argument("--remat", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../build/release/remat"))
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    for name in args.only.split(","):
        if name not in tasks:
            parser.error(f"--only: there is no '{name}'; there are {', '.join(tasks)}")
        tasks[name](args)
        print()


if __name__ == "__main__":
    main()
