#!/usr/bin/env python3
"""Compares Remat with PyTorch on ResNets, a GPT and a U-Net: step time and memory, and their ratios.

    bench/networks.py [--python=PYTHON] [--rows=resnet18,resnet50,gpt2,unet] [--rounds=3] [--steps=4] [--threads=2] [--compiled] [--json=FILE]
    bench/gpu.sh --networks [--precisions=tf32,bf16] [--seconds=N] [flags above]

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

On a GPU (--device=cuda) the sizes are those that are trained there: ResNets on 64 images of 224 x 224, 1000 classes; a GPT-2 with 12 blocks
of 768, 12 heads, T = 1024, a batch of 8; a U-Net with 64 to 1024 channels on 4 images of 512 x 512. The default rows are resnet50, gpt2
and unet, and PyTorch is compiled, too. Precisions are those of bench/gpu.py: bf16 is autocast. Two warm-up steps do not count. Memory is the
card's (bench/gpu.py). Nothing is started after --seconds, so all rows are first trained with everything kept, by Remat and by eager
PyTorch, then by compiled PyTorch, and then in the other ways.
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
import time

import gpu

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SIZES = {  # DEPTH, CHANNELS, PLANE, SCANS, KINDS are the U-Net's
    "cpu": dict(BATCH=16, SIDE=128, CLASSES=100, PICTURES=64, BLOCKS=6, WIDTH=384, HEADS=6, T=1024, TEXTS=4,
                DEPTH=4, CHANNELS=32, PLANE=256, SCANS=2, KINDS=2, WARM=1),
    "cuda": dict(BATCH=64, SIDE=224, CLASSES=1000, PICTURES=128, BLOCKS=12, WIDTH=768, HEADS=12, T=1024, TEXTS=8,
                 DEPTH=4, CHANNELS=64, PLANE=512, SCANS=4, KINDS=2, WARM=2),
    "tiny": dict(BATCH=2, SIDE=32, CLASSES=10, PICTURES=8, BLOCKS=1, WIDTH=16, HEADS=2, T=16, TEXTS=2,
                 DEPTH=2, CHANNELS=4, PLANE=16, SCANS=2, KINDS=2, WARM=2),
}
ROWS = {"cpu": "resnet18,resnet50,gpt2,unet", "cuda": "resnet50,gpt2,unet"}
FIRST = ("Remat, all kept", "PyTorch")  # the comparison that matters most
WAVES = {"cpu": [None], "cuda": [FIRST, ("PyTorch, compiled, budget 1",), None]}  # None: all others


def set_sizes(name):
    globals().update(SIZES[name])


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


def torch_model(job):
    """The model, its optimizer, and a batch."""
    import torch

    if job["row"] == "gpt2":
        model = gpt(job["checkpoint"])
        x, y = torch.randint(256, (TEXTS, T)), torch.randint(256, (TEXTS, T))
    elif job["row"] == "unet":
        model = unet(job["checkpoint"])
        x, y = torch.randn(SCANS, 3, PLANE, PLANE), torch.randint(KINDS, (SCANS, PLANE, PLANE))
    else:
        model = resnet(job["row"], job["checkpoint"])
        x, y = torch.randn(BATCH, 3, SIDE, SIDE), torch.randint(CLASSES, (BATCH,))
    model, x, y = model.to(job["device"]), x.to(job["device"]), y.to(job["device"])
    if job["channels_last"]:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    adamw, sgd = torch.optim.AdamW, torch.optim.SGD
    optimizer = adamw(model.parameters(), lr=1e-3) if job["row"] == "gpt2" else sgd(model.parameters(), lr=0.01)
    return model, optimizer, x, y


def torch_process(job):
    import gc

    import torch

    set_sizes(job["sizes"])
    torch.set_num_threads(job["threads"])
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = job["precision"] == "tf32"
    on_gpu, bf16 = job["device"] == "cuda", job["precision"] == "bf16"
    model, optimizer, x, y = torch_model(job)
    if job["budget"]:
        import torch._functorch.config as functorch

        functorch.activation_memory_budget = job["budget"]
        model = torch.compile(model)
    torch.nn.functional.conv2d(torch.randn(1, 8, 8, 8), torch.randn(8, 8, 3, 3))  # loads the libraries
    torch.randn(64, 64) @ torch.randn(64, 64)
    gc.collect()
    before, seconds = resident_kib("VmRSS"), []
    for step in range(job["steps"] + WARM):
        if step == 1 and job["budget"] and not on_gpu:  # do not count memory used by the compilation
            optimizer.zero_grad(set_to_none=True)
            logits = None
            gc.collect()
            ctypes.CDLL("libc.so.6").malloc_trim(0)
            before = resident_kib("VmRSS") - sum(v.numel() * 4 for s in optimizer.state.values() for v in s.values()) // 1024
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(job["device"], dtype=torch.bfloat16, enabled=bf16):
            logits = model(x)
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
        loss.backward()
        optimizer.step()
        if on_gpu:
            torch.cuda.synchronize()
        if step >= WARM:
            seconds.append(time.perf_counter() - start)
    parameters = sum(p.numel() * 4 for p in model.parameters())
    mib = torch.cuda.max_memory_reserved() / 2**20 if on_gpu else (
        (resident_kib("VmHWM") - before) * 1024 + parameters) / 2**20
    print(json.dumps({"seconds": statistics.median(seconds), "mib": mib}))


# ---- Measuring ----------------------------------------------------------------------------------------------------


def run(args, command):
    """stdout, stderr, and MiB on the card (None: not measured)."""
    text, complaint, peak = gpu.run(args, command, gpu.time_for_one(args) if args.seconds < 1e9 else None)
    return text, complaint, peak / 2**20 if peak is not None and args.device == "cuda" else None


def run_torch(args, row, precision, checkpoint=False, channels_last=False, budget=0):
    job = dict(row=row, checkpoint=checkpoint, channels_last=channels_last, budget=budget, steps=args.steps,
               threads=args.threads, device=args.device, sizes=args.sizes, precision=precision)
    text, complaint, mib = run(args, [args.python, os.path.abspath(__file__), "--job", json.dumps(job)])
    if text is None:
        return {"refused": complaint}
    found = json.loads(text.splitlines()[-1])
    return dict(found, mib=mib) if mib else found


def remat_flags(args, row, precision, files):
    flags = [f"--model={row}", f"--threads={args.threads}", f"--steps={args.steps + WARM}", "--metrics=-",
             f"--device={args.device}"] + ([] if precision == "fp32" else [f"--precision={precision}"])
    if row == "gpt2":
        return flags + [f"--layers={BLOCKS}", f"--hidden={WIDTH}", f"--heads={HEADS}", f"--seq-len={T}", f"--batch={TEXTS}",
                        f"--data={files['text']}", "--optimizer=adamw"]
    if row == "unet":
        return flags + [f"--layers={DEPTH}", f"--hidden={CHANNELS}", f"--data={files['scans']}", f"--labels={files['masks']}",
                        f"--classes={KINDS}", f"--batch={SCANS}", "--optimizer=sgd", "--lr=0.01"]
    return flags + ["--task=classify", f"--data={files['x']}", f"--labels={files['y']}", f"--classes={CLASSES}",
                    f"--batch={BATCH}", "--optimizer=sgd", "--lr=0.01"]


def run_remat(args, row, precision, files, more):
    text, complaint, mib = run(args, [args.remat, "train", *remat_flags(args, row, precision, files), *more])
    if text is None:
        return {"refused": complaint}
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    plan = next(line for line in lines if line["event"] == "plan")
    seconds = [line["step_ms"] / 1000 for line in lines if line["event"] == "step"][WARM:]
    return {"seconds": statistics.median(seconds), "mib": mib or plan["budgeted_bytes"] / 2**20,
            "budgeted_mib": plan["budgeted_bytes"] / 2**20, "activations_mib": plan["activations_peak_bytes"] / 2**20,
            "loss": [line["loss"] for line in lines if line["event"] == "step"]}


def least_mib(args, row, precision, files):
    said = run_remat(args, row, precision, files, ["--checkpoint=optimal", "--memory-budget=1"])["refused"]
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


class Comparison:
    """The ways to train one row in one precision: functions that run a process each, and what they found, by name."""

    def __init__(self, args, row, precision, files):
        self.args, self.row, self.precision, self.files, self.found = args, row, precision, files, {}
        self.ways = {FIRST[0]: lambda: run_remat(args, row, precision, files, [])}
        if not args.torch:
            return
        one = dict(args=args, row=row, precision=precision)
        channels_last = row != "gpt2" and (run_torch(**one, channels_last=True).get("seconds", 1e9) <
                                           run_torch(**one).get("seconds", 1e9))
        self.ways[FIRST[1]] = lambda: run_torch(**one, channels_last=channels_last)
        self.ways["PyTorch, checkpoints"] = lambda: run_torch(**one, checkpoint=True, channels_last=channels_last)
        for budget in (1, 0.5) if args.compiled else ():
            self.ways[f"PyTorch, compiled, budget {budget}"] = lambda budget=budget: run_torch(
                **one, channels_last=channels_last, budget=budget)

    def add_budgets(self):
        job = self.args, self.row, self.precision, self.files
        kept = next(iter(self.found.get(FIRST[0], [])), None) or self.ways[FIRST[0]]()
        if "refused" in kept:
            return
        least = least_mib(*job)
        for name, share in (("half", 0.5), ("quarter", 0.25)):
            budget = kept["budgeted_mib"] - kept["activations_mib"] * (1 - share)
            name += " of the activations" if budget > least else ": below the least; that"
            flags = ["--checkpoint=optimal", f"--memory-budget={int(max(budget, least * 1.001) * 2**20)}"]
            self.ways["Remat, " + name] = lambda flags=flags: run_remat(*job, flags)

    def measure(self, names):
        """Their medians. names: None means all that are not measured yet."""
        if not names:
            self.add_budgets()
            others = [name for name in self.ways if name not in self.found]
            names = sorted(others, key=lambda name: (name not in FIRST, "compiled" in name))  # compiling takes the longest
        names = [name for name in names if name in self.ways]
        for name in names * self.args.rounds:
            runs = self.found.setdefault(name, [])
            if gpu.left(self.args) > 0:
                runs.append(self.ways[name]())
        losses = {json.dumps(run["loss"]) for runs in self.found.values() for run in runs if "loss" in run}
        assert len(losses) <= 1, f"{self.row}: Remat's losses differ from plan to plan"
        medians = {name: self.median(name) for name in names}
        return {name: one for name, one in medians.items() if one}

    def median(self, name):
        """None, with a reason on the screen, if it never ran to its end."""
        runs = self.found.get(name, [])
        done = [run for run in runs if "seconds" in run]
        if done:
            return {key: statistics.median(run[key] for run in done) for key in ("seconds", "mib")}
        complaint = runs[0]["refused"].strip().splitlines()[-1:] if runs else ["no time was left"]
        print(f"({self.row} {self.precision}: {name}: {(complaint or ['?'])[0][:160]})", flush=True)
        return None


def show(row, precision, found, peer):
    print(f"| {row}, {precision} | s a step | of PyTorch's | MiB | of PyTorch's |\n|---|--:|--:|--:|--:|")
    for name, one in found.items():
        of = [f"{one[key] / peer[key]:.2f}" if peer else "" for key in ("seconds", "mib")]
        print(f"| {name} | {one['seconds']:.3f} | {of[0]} | {one['mib']:.0f} | {of[1]} |", flush=True)


def complete(args):
    """Settings derived from the flags."""
    args.sizes = "tiny" if args.tiny else args.device
    set_sizes(args.sizes)
    args.card = gpu.Card(args.device)
    args.rows = args.rows or ROWS[args.device]
    args.compiled = args.compiled or (args.device == "cuda" and not args.tiny)
    args.precisions = args.precisions or ("tf32,bf16" if args.device == "cuda" else "fp32")
    args.remat = args.remat or os.path.join(ROOT, "build/release/remat")
    needs = "import torch" + ("; assert torch.cuda.is_available()" if args.device == "cuda" else "")
    args.torch = not subprocess.run([args.python, "-c", needs], stderr=subprocess.DEVNULL).returncode
    if not args.torch:
        print(f"{args.python} has no PyTorch for this device: Remat is measured alone", flush=True)


def main():
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as in gpu.py
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("REMAT_TORCH_PYTHON", sys.executable))
    parser.add_argument("--remat"), parser.add_argument("--rows"), parser.add_argument("--precisions")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--json"), parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        return torch_process(json.loads(args.job))
    complete(args)
    comparisons, results = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        files = make_files(folder, args.python)
        work = [(row, precision) for precision in args.precisions.split(",") for row in args.rows.split(",")]
        for row, precision, names in [(*one, names) for names in WAVES[args.device] for one in work]:
            if gpu.left(args) <= 0:
                print(f"(not reached: {row} {precision}: {', '.join(names or ['the others'])})", flush=True)
                continue
            if (row, precision) not in comparisons:
                comparisons[row, precision] = Comparison(args, row, precision, files)
            found = comparisons[row, precision].measure(names)
            results.setdefault(f"{row} {precision}", {}).update(found)
            if found:
                show(row, precision, found, results[f"{row} {precision}"].get(FIRST[1]))
            if args.json:
                with open(args.json, "w") as file:
                    json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
