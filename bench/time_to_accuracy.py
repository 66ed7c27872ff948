#!/usr/bin/env python3
"""Training time to a given accuracy, Remat compared with PyTorch, in the style of DAWNBench: a fixed recipe, the same initial weights, the same
batches in the same order, until the accuracy on a held-out set is reached.

    bench/time_to_accuracy.py --images=IDX --labels=IDX --text=FILE [--cases=cnn,resnet18,gpt] [--seeds=5] [--threads=1]
                              [--python=PYTHON] [--json=FILE]

  cnn       the CNN of PyTorch's MNIST example, on all but the last 1,000 images; Adam at 0.001, batch 64; to 98 % on those 1,000
  resnet18  the same images, torchvision's network with a 3x3 stem; SGD at 0.05, momentum 0.9, batch 64; to 98.5 %
  gpt       GPT-2 with 4 blocks of 128, 4 heads, T = 128, on the bytes of all but the last tenth of the text; AdamW at 0.001, weight decay
            0.01, batch 32; to 1.9 nats per byte on that tenth

Needs build/release, and a Python with PyTorch, torchvision, transformers, safetensors and NumPy: --python, or $REMAT_TORCH_PYTHON, or this
interpreter. PyTorch draws the initial weights; Remat reads them. Both use the sample order of DistributedSampler. Every
run is a separate process; Remat and PyTorch alternate, seed by seed, and evaluate after the same steps. Times are of training steps
alone, without evaluations. Prints medians over the seeds, and the median and range of the seeds' ratios.
"""
import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
T, HELD_OUT, EPOCHS = 128, 1000, 20
MEAN, DEVIATION = 0.1307, 0.3081
CASES = {"cnn": dict(batch=64, target=0.98, every=35, lr=0.001),
         "resnet18": dict(batch=64, target=0.985, every=70, lr=0.05),
         "gpt": dict(batch=32, target=1.9, every=100, lr=0.001)}


# ---- The PyTorch process -------------------------------------------------------------------------------------------


def make_model(case):
    import torch
    from torch import nn

    if case == "gpt":
        from transformers import GPT2Config, GPT2LMHeadModel

        return GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=T, n_embd=128, n_layer=4, n_head=4, resid_pdrop=0,
                                          embd_pdrop=0, attn_pdrop=0, use_cache=False))
    if case == "resnet18":
        import torchvision

        model = torchvision.models.resnet18(num_classes=10)
        model.conv1, model.maxpool = nn.Conv2d(1, 64, 3, padding=1, bias=False), nn.Identity()
        return model

    class Cnn(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
            self.fc1, self.fc2 = nn.Linear(64 * 12 * 12, 128), nn.Linear(128, 10)

        def forward(self, x):
            x = nn.functional.max_pool2d(torch.relu(self.conv2(torch.relu(self.conv1(x)))), 2)
            return self.fc2(torch.relu(self.fc1(x.flatten(1))))

    return Cnn()


def data_of(job):
    """Training inputs and targets, held-out inputs and targets."""
    import numpy as np
    import torch

    if job["case"] == "gpt":
        def windows(path):
            text = torch.from_numpy(np.fromfile(path, dtype=np.uint8).astype(np.int64))
            n = (len(text) - 1) // T
            return text[:n * T].view(n, T), text[1:n * T + 1].view(n, T)

        return (*windows(job["train"]), *windows(job["test"]))

    def images_of(name):
        x = torch.from_numpy(np.load(job[name])).float().div(255).sub(MEAN).div(DEVIATION)
        return x, torch.from_numpy(np.load(job[name + "_labels"])).long()

    return (*images_of("train"), *images_of("test"))


def torch_process(job):
    import time

    import torch
    from safetensors.torch import load_file, save_file

    case, recipe = job["case"], CASES[job["case"]]
    torch.set_num_threads(job["threads"])
    torch.manual_seed(job["seed"])
    model = make_model(case)
    if job["draw"]:
        numbers = {name: x.clone() for name, x in model.state_dict().items()
                   if name != "lm_head.weight" and not name.endswith("num_batches_tracked")}
        return save_file(numbers, job["init"])
    model.load_state_dict(load_file(job["init"]), strict=False)
    x, y, test_x, test_y = data_of(job)
    if case == "resnet18":
        model = model.to(memory_format=torch.channels_last)
    optimizer = (torch.optim.SGD(model.parameters(), lr=recipe["lr"], momentum=0.9) if case == "resnet18" else
                 torch.optim.AdamW(model.parameters(), lr=recipe["lr"], weight_decay=0.01 if case == "gpt" else 0))
    logits = (lambda x: model(x).logits) if case == "gpt" else model
    loss_of = torch.nn.functional.cross_entropy

    def evaluate():
        model.eval()
        with torch.no_grad():
            parts = [(logits(a), b) for a, b in zip(test_x.split(50), test_y.split(50))]
            if case == "gpt":
                found = sum(loss_of(z.flatten(0, 1), b.flatten()).item() * b.numel() for z, b in parts) / test_y.numel()
            else:
                found = sum((z.argmax(1) == b).sum().item() for z, b in parts) / len(test_y)
        model.train()
        return found

    seconds, step = 0.0, 0
    for epoch in range(EPOCHS):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(job["seed"] + epoch))
        for rows in order.split(recipe["batch"]):
            if len(rows) < recipe["batch"]:
                continue
            start = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            z = logits(x[rows])
            loss_of(z.reshape(-1, z.shape[-1]), y[rows].flatten()).backward()
            optimizer.step()
            seconds += time.perf_counter() - start
            step += 1
            if step % recipe["every"] == 0:
                found = evaluate()
                if found <= recipe["target"] if case == "gpt" else found >= recipe["target"]:
                    return report(step, seconds, found)
    report(None, seconds, found)


def report(step, seconds, found):
    with open("/proc/self/status") as file:
        peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
    print(json.dumps({"step": step, "seconds": seconds, "found": found, "mib": peak / 1024}))


# ---- Measuring -----------------------------------------------------------------------------------------------------


def run_torch(args, job):
    run = subprocess.run([args.python, os.path.abspath(__file__), "--job", json.dumps(job)], capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr)
    return None if job["draw"] else json.loads(run.stdout.splitlines()[-1])


def run_remat(job):
    case, recipe = job["case"], CASES[job["case"]]
    flags = [f"--batch={recipe['batch']}", f"--lr={recipe['lr']}", f"--eval-every={recipe['every']}", f"--seed={job['seed']}",
             f"--init={job['init']}", f"--threads={job['threads']}", f"--epochs={EPOCHS}", "--metrics=-",
             f"--data={job['train']}", f"--eval-data={job['test']}"]
    if case == "gpt":
        flags += ["--model=gpt2", "--heads=4", f"--seq-len={T}", "--optimizer=adamw", "--weight-decay=0.01"]
    else:
        flags += ["--task=classify", f"--model={case}", f"--labels={job['train_labels']}",
                  f"--eval-labels={job['test_labels']}", f"--normalize={MEAN}:{DEVIATION}"]
        flags += ["--optimizer=sgd", "--momentum=0.9", "--stem=cifar"] if case == "resnet18" else ["--optimizer=adam"]
    process = subprocess.Popen([os.path.join(ROOT, "build/release/remat"), "train", *flags], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    seconds, peak = 0.0, 0
    for line in process.stdout:
        event = json.loads(line) if line.startswith("{") else {"event": ""}
        if event["event"] == "step":
            seconds, peak = seconds + event["step_ms"] / 1000, max(peak, event["rss_peak_bytes"])
        if event["event"] != "eval":
            continue
        found = event["loss"] if case == "gpt" else event["accuracy"]
        if found <= recipe["target"] if case == "gpt" else found >= recipe["target"]:
            process.kill()
            return {"step": event["step"], "seconds": seconds, "found": found, "mib": peak / 2**20}
    if process.wait():
        sys.exit(process.stderr.read())
    return {"step": None, "seconds": seconds, "found": found, "mib": peak / 2**20}


def prepare(args, folder):
    import numpy as np

    def idx(path, head):
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
            return np.frombuffer(file.read(), dtype=np.uint8)[head:]

    files = {}
    if args.images:
        images = idx(args.images, 16).reshape(-1, 1, 28, 28)
        for name, part in (("train", slice(None, -HELD_OUT)), ("test", slice(-HELD_OUT, None))):
            for what, array in (("", images), ("_labels", idx(args.labels, 8).astype(np.int32))):
                files[name + what] = os.path.join(folder, name + what + ".npy")
                np.save(files[name + what], array[part])
    if args.text:
        with open(args.text, "rb") as file:
            text = file.read()
        for name, part in (("text", text[:len(text) * 9 // 10]), ("text_test", text[len(text) * 9 // 10:])):
            files[name] = os.path.join(folder, name)
            with open(files[name], "wb") as file:
                file.write(part)
    return files


def measure(args, case, folder, files):
    found = {"Remat": [], "PyTorch": []}
    paths = ({"train": files["text"], "test": files["text_test"]} if case == "gpt" else
             {name: files[name] for name in ("train", "test", "train_labels", "test_labels")})
    for seed in range(args.seeds):
        job = dict(case=case, seed=seed, threads=args.threads, init=os.path.join(folder, "init.safetensors"), **paths)
        run_torch(args, {**job, "draw": True})
        found["Remat"].append(run_remat(job))
        found["PyTorch"].append(run_torch(args, {**job, "draw": False}))
        print(case, seed, found["Remat"][-1], found["PyTorch"][-1], file=sys.stderr, flush=True)
    return found


def row(case, found):
    cells = []
    for runs in found.values():
        steps = [run["step"] for run in runs]
        cells += [f"{statistics.median(steps):.0f}" if None not in steps else f"{steps.count(None)} of {len(steps)} did not",
                  f"{statistics.median(run['seconds'] for run in runs):.0f} s", f"{statistics.median(run['mib'] for run in runs):.0f}"]
    ratios = sorted(a["seconds"] / b["seconds"] for a, b in zip(*found.values()))
    print(f"| {case} | " + " | ".join(cells) + f" | {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images"), parser.add_argument("--labels"), parser.add_argument("--text")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--python", default=os.environ.get("REMAT_TORCH_PYTHON", sys.executable))
    parser.add_argument("--json")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        return torch_process(json.loads(args.job))
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        files = prepare(args, folder)
        print("| | Remat: steps | time | MiB | PyTorch: steps | time | MiB | of PyTorch's time |\n|---|--:|--:|--:|--:|--:|--:|--:|")
        for case in args.cases.split(","):
            if not (args.text if case == "gpt" else args.images and args.labels):
                parser.error(f"{case} needs " + ("--text" if case == "gpt" else "--images and --labels"))
            results[case] = measure(args, case, folder, files)
            row(case, results[case])
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
