#!/usr/bin/env python3
"""Compares Remat with PyTorch on ResNets, a GPT and a U-Net: step time and memory, and their ratios.

    bench/networks.py [--python=PYTHON] [--rows=resnet18,resnet50,gpt2,unet] [--rounds=3] [--steps=4] [--threads=2] [--compiled] [--json=FILE]

The work is one training step, fp32: ResNet-18 and -50 on 16 images of 128 x 128, 100 classes, SGD; a GPT-2 with 6 blocks of 384, 6
heads, T = 1024, a batch of 4, bytes, AdamW; a U-Net with 32 to 512 channels on 2 images of 256 x 256, 2 classes, SGD. Needs build/release, and a
Python with PyTorch, torchvision and NumPy: --python, or $REMAT_TORCH_PYTHON, or this interpreter.

  - Every measurement is a separate process; rounds are interleaved, so that a slow phase of the machine affects all. A process makes
    one warm-up step, then --steps steps; the time of a row is the median over rounds of the processes' medians.
  - PyTorch is eager PyTorch with its best settings: for images, plain and channels_last are tried before the rounds, and the rounds use the
    faster. Its checkpointing is torch.utils.checkpoint around every block. --compiled adds torch.compile, with everything kept and with
    activation_memory_budget 0.5; its memory is measured after compilation and a first step.
  - Memory is everything that a step needs: parameters, gradients, optimizer state, activations. For Remat it is the figure of the plan; its
    process is checked, too. For PyTorch it is the parameters plus the growth of the process from there to its peak.
  - Remat runs without recomputation, and with budgets: PyTorch's memory, and then half and a quarter of the activations between the smallest
    plan and keeping everything.
"""
import argparse
import ctypes
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BATCH, SIDE, CLASSES, PICTURES = 16, 128, 100, 64
BLOCKS, WIDTH, HEADS, T, TEXTS = 6, 384, 6, 1024, 4
DEPTH, CHANNELS, PLANE, SCANS, KINDS = 4, 32, 256, 2, 2  # of the U-Net
ROWS = ("resnet18", "resnet50", "gpt2", "unet")


# ---- The PyTorch process ------------------------------------------------------------------------------------------


def resident_kib(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field + ":"))


def gpt(checkpoint):
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint as again

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.c_fc, self.c_out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            q, k, v = (p.unflatten(2, (HEADS, -1)).transpose(1, 2) for p in self.c_attn(self.ln_1(x)).chunk(3, 2))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.c_proj(y.transpose(1, 2).flatten(2))
            return x + self.c_out(nn.functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(256, WIDTH), nn.Embedding(T, WIDTH)
            self.blocks, self.ln_f = nn.ModuleList(Block() for _ in range(BLOCKS)), nn.LayerNorm(WIDTH)

        def forward(self, tokens):
            x = self.wte(tokens) + self.wpe.weight
            for block in self.blocks:
                x = again(block, x, use_reentrant=False) if checkpoint else block(x)
            return self.ln_f(x) @ self.wte.weight.t()

    return Gpt()


def resnet(name, checkpoint):
    import torchvision
    from torch.utils.checkpoint import checkpoint as again

    model = getattr(torchvision.models, name)(num_classes=CLASSES)
    for layer in (model.layer1, model.layer2, model.layer3, model.layer4) if checkpoint else ():
        for block in layer:
            block.forward = (lambda run: lambda x: again(run, x, use_reentrant=False))(block.forward)
    return model


def unet(checkpoint):
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint as again

    def twice(channels, middle, outputs):
        layers = []
        for c, o in ((channels, middle), (middle, outputs)):
            layers += [nn.Conv2d(c, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)

    class Unet(nn.Module):
        def __init__(self):
            super().__init__()
            wide = [CHANNELS << i for i in range(DEPTH)] + [CHANNELS << (DEPTH - 1)]
            self.down = nn.ModuleList(twice(c, o, o) for c, o in zip([3] + wide, wide))
            up = [wide[max(i - 1, 0)] for i in range(DEPTH)]
            self.up = nn.ModuleList(twice(2 * wide[i], wide[i], up[i]) for i in reversed(range(DEPTH)))
            self.pool, self.larger = nn.MaxPool2d(2), nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            self.out = nn.Conv2d(CHANNELS, KINDS, 1)

        def forward(self, x):
            run = (lambda block, x: again(block, x, use_reentrant=False)) if checkpoint else (lambda block, x: block(x))
            skips = []
            for i, block in enumerate(self.down):
                x = run(block, self.pool(x) if i else x)
                skips.append(x)
            for i, block in enumerate(self.up):
                x = run(block, torch.cat([skips[-2 - i], self.larger(x)], 1))
            return self.out(x).permute(0, 2, 3, 1)

    return Unet()


def torch_process(job):
    import gc
    import time

    import torch

    torch.set_num_threads(job["threads"])
    torch.manual_seed(0)
    if job["row"] == "gpt2":
        model = gpt(job["checkpoint"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        x, y = torch.randint(256, (TEXTS, T)), torch.randint(256, (TEXTS, T))
    elif job["row"] == "unet":
        model = unet(job["checkpoint"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x, y = torch.randn(SCANS, 3, PLANE, PLANE), torch.randint(KINDS, (SCANS, PLANE, PLANE))
    else:
        model = resnet(job["row"], job["checkpoint"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x, y = torch.randn(BATCH, 3, SIDE, SIDE), torch.randint(CLASSES, (BATCH,))
    if job["channels_last"]:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    if job["budget"]:
        import torch._functorch.config as functorch

        functorch.activation_memory_budget = job["budget"]
        model = torch.compile(model)
    torch.nn.functional.conv2d(torch.randn(1, 8, 8, 8), torch.randn(8, 8, 3, 3))  # loads the libraries
    torch.randn(64, 64) @ torch.randn(64, 64)
    gc.collect()
    before, seconds = resident_kib("VmRSS"), []
    for step in range(job["steps"] + 1):
        if step == 1 and job["budget"]:  # do not count memory used by the compilation
            optimizer.zero_grad(set_to_none=True)
            logits = None
            gc.collect()
            ctypes.CDLL("libc.so.6").malloc_trim(0)
            before = resident_kib("VmRSS") - sum(v.numel() * 4 for s in optimizer.state.values() for v in s.values()) // 1024
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        logits = model(x)
        torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1)).backward()
        optimizer.step()
        if step:
            seconds.append(time.perf_counter() - start)
    parameters = sum(p.numel() * 4 for p in model.parameters())
    print(json.dumps({"seconds": statistics.median(seconds),
                      "mib": ((resident_kib("VmHWM") - before) * 1024 + parameters) / 2**20}))


# ---- Measuring ----------------------------------------------------------------------------------------------------


def run_torch(args, row, checkpoint=False, channels_last=False, budget=0):
    job = dict(row=row, checkpoint=checkpoint, channels_last=channels_last, budget=budget, steps=args.steps,
               threads=args.threads)
    out = subprocess.run([args.python, os.path.abspath(__file__), "--job", json.dumps(job)], check=True,
                         capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def remat_flags(args, row, files):
    flags = [f"--model={row}", f"--threads={args.threads}", f"--steps={args.steps + 1}", "--metrics=-"]
    if row == "gpt2":
        return flags + [f"--layers={BLOCKS}", f"--hidden={WIDTH}", f"--heads={HEADS}", f"--seq-len={T}", f"--batch={TEXTS}",
                        f"--data={files['text']}", "--optimizer=adamw"]
    if row == "unet":
        return flags + [f"--layers={DEPTH}", f"--hidden={CHANNELS}", f"--data={files['scans']}", f"--labels={files['masks']}",
                        f"--classes={KINDS}", f"--batch={SCANS}", "--optimizer=sgd", "--lr=0.01"]
    return flags + ["--task=classify", f"--data={files['x']}", f"--labels={files['y']}", f"--classes={CLASSES}",
                    f"--batch={BATCH}", "--optimizer=sgd", "--lr=0.01"]


def run_remat(args, row, files, more):
    run = subprocess.run([os.path.join(ROOT, "build/release/remat"), "train", *remat_flags(args, row, files), *more],
                         capture_output=True, text=True)
    if run.returncode:
        return {"refused": run.stderr}
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    plan = next(line for line in lines if line["event"] == "plan")
    seconds = [line["step_ms"] / 1000 for line in lines if line["event"] == "step"][1:]
    return {"seconds": statistics.median(seconds), "mib": plan["budgeted_bytes"] / 2**20,
            "activations_mib": plan["activations_peak_bytes"] / 2**20,
            "loss": [line["loss"] for line in lines if line["event"] == "step"]}


def least_mib(args, row, files):
    said = run_remat(args, row, files, ["--checkpoint=optimal", "--memory-budget=1"])["refused"]
    return int(re.search(r"--memory-budget=(\d+) is the least", said).group(1)) / 2**20


def make_files(folder, python):
    files = {name: os.path.join(folder, name + ".npy") for name in ("x", "y", "scans", "masks")}
    files["text"] = os.path.join(folder, "text")
    program = (f"import numpy as np; r = np.random.default_rng(0);"
               f"np.save({files['x']!r}, r.integers(0, 256, ({PICTURES}, 3, {SIDE}, {SIDE}), dtype=np.uint8));"
               f"np.save({files['y']!r}, r.integers(0, {CLASSES}, {PICTURES}).astype(np.int32));"
               f"np.save({files['scans']!r}, r.integers(0, 256, ({4 * SCANS}, 3, {PLANE}, {PLANE}), dtype=np.uint8));"
               f"np.save({files['masks']!r}, r.integers(0, {KINDS}, ({4 * SCANS}, {PLANE}, {PLANE})).astype(np.int32));"
               f"open({files['text']!r}, 'wb').write(r.integers(32, 127, {T * TEXTS * 4 + 1}).astype(np.uint8).tobytes())")
    subprocess.run([python, "-c", program], check=True)
    return files


def measure(args, row, files):
    channels_last = row != "gpt2" and (run_torch(args, row, channels_last=True)["seconds"] <
                                       run_torch(args, row)["seconds"])
    kept, least = run_remat(args, row, files, []), least_mib(args, row, files)
    budgets = {"none": None}
    for name, share in (("half", 0.5), ("quarter", 0.25)):
        budget = kept["mib"] - kept["activations_mib"] * (1 - share)
        budgets[f"{name} of the activations" if budget > least else f"{name}: below the least; that"] = max(budget, least * 1.001)
    ways = {"PyTorch": lambda: run_torch(args, row, channels_last=channels_last),
            "PyTorch, checkpoints": lambda: run_torch(args, row, True, channels_last)}
    for budget in (1, 0.5) if args.compiled else ():
        ways[f"PyTorch, compiled, budget {budget}"] = lambda budget=budget: run_torch(args, row, False, channels_last, budget)
    for name, mib in budgets.items():
        flags = ["--checkpoint=optimal", f"--memory-budget={int(mib * 2**20)}"] if mib else []
        ways["Remat, " + ("all kept" if not mib else name)] = lambda flags=flags: run_remat(args, row, files, flags)
    found = {name: [] for name in ways}
    for _ in range(args.rounds):
        for name, way in ways.items():
            found[name].append(way())
    losses = {json.dumps(run["loss"]) for name, runs in found.items() for run in runs if "loss" in run}
    assert len(losses) == 1, f"{row}: Remat's losses differ from plan to plan"
    return {name: {"seconds": statistics.median(run["seconds"] for run in runs),
                   "mib": statistics.median(run["mib"] for run in runs)} for name, runs in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("REMAT_TORCH_PYTHON", sys.executable))
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json"), parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        return torch_process(json.loads(args.job))
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        files = make_files(folder, args.python)
        for row in args.rows.split(","):
            results[row] = found = measure(args, row, files)
            peer = found["PyTorch"]
            print(f"| {row} | s a step | of PyTorch's | MiB | of PyTorch's |\n|---|--:|--:|--:|--:|")
            for name, one in found.items():
                print(f"| {name} | {one['seconds']:.3f} | {one['seconds'] / peer['seconds']:.2f} | {one['mib']:.0f} "
                      f"| {one['mib'] / peer['mib']:.2f} |", flush=True)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
