#!/usr/bin/env python3
"""Compares layers of language models of 2024 to 2026 with their references in PyTorch.

    bench/recurrences.py [--python=PYTHON-WITH-THE-PEERS] [--layers=mamba,gdn,slstm] [--rounds=3] [--threads=1,2] [--timesteps=1024]

The work is forward and backward of one layer, batch 1 unless said, fp32; the loss is the mean square. Peers: for mamba the mixer of the 130m size
(D 768) of transformers, with mambapy's parallel scan, which is its fastest way on a CPU; for gdn transformers' chunked Gated DeltaNet (D 768, 4 heads
of keys, 8 of values, of 64); for slstm (batch 16, D 256, 4 heads, a quarter of the timesteps) the layer of xlstm. transformers calls other packages if it
finds them, so xlstm belongs into a second environment: --layers=slstm with its --python. Every measurement is a separate process, which
makes a warm-up step and then two steps; candidates alternate. A time is the median over rounds of the processes' medians, with minimum
and maximum; memory is what the steps add to the process. Needs build/release.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = os.path.join(ROOT, "build", "release", "bench", "bench_recurrences")
SHAPES, STEPS = {"mamba": (1, 768), "gdn": (1, 768), "slstm": (16, 256)}, 2  # batch, D


def mamba(width):
    from transformers import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer

    return MambaMixer(MambaConfig(hidden_size=width, use_mambapy=True), layer_idx=0)


def gdn(width):
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    return Qwen3NextGatedDeltaNet(Qwen3NextConfig(hidden_size=width, linear_num_key_heads=4, linear_num_value_heads=8,
                                                  linear_key_head_dim=64, linear_value_head_dim=64), layer_idx=0)


def slstm(width):
    from xlstm.blocks.slstm.layer import sLSTMLayer, sLSTMLayerConfig

    return sLSTMLayer(sLSTMLayerConfig(embedding_dim=width, num_heads=4, conv1d_kernel_size=4, backend="vanilla"))


def peak_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


def child(layer, threads, timesteps):
    """Runs PyTorch; prints one JSON line: the steps' seconds, and the growth of the process in bytes."""
    import time

    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    batch, width = SHAPES[layer]
    module = {"mamba": mamba, "gdn": gdn, "slstm": slstm}[layer](width)
    x, times, before = torch.randn(batch, timesteps, width), [], peak_bytes()
    for _ in range(STEPS + 1):
        start = time.perf_counter()
        module.zero_grad(set_to_none=True)
        module(x).square().mean().backward()
        times.append(time.perf_counter() - start)
    print(json.dumps([statistics.median(times[1:]), peak_bytes() - before]))


def timesteps(options, layer):
    return options.timesteps // 4 if layer == "slstm" else options.timesteps


def run_torch(options, layer, threads):
    command = [options.python, os.path.abspath(__file__), "--child", layer, "--threads", str(threads), "--timesteps",
               str(timesteps(options, layer))]
    out = subprocess.run(command, env=dict(os.environ, OMP_NUM_THREADS=str(threads)), check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.splitlines()[-1])


def run_remat(options, layer, threads, segments):
    command = [PROGRAM, layer, *map(str, (*SHAPES[layer], timesteps(options, layer), segments, STEPS + 1, threads))]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    return [statistics.median(map(float, out[1:-1])), int(out[-1])]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("REMAT_TORCH_PYTHON", sys.executable))
    parser.add_argument("--layers", default="mamba,gdn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--timesteps", type=int, default=1024)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.child, int(options.threads), options.timesteps)
    print(f"T {options.timesteps}, median of {options.rounds} rounds (least to most)\n")
    print("| layer | threads | candidate | ms a step | MiB |\n|---|--:|---|--:|--:|")
    for layer in options.layers.split(","):
        for threads in map(int, options.threads.split(",")):
            candidates = {"Remat, all kept": lambda: run_remat(options, layer, threads, 0),
                          "Remat, 4 segments": lambda: run_remat(options, layer, threads, 4),
                          "reference": lambda: run_torch(options, layer, threads)}
            results = {name: [] for name in candidates}
            for _ in range(options.rounds):
                for name, run in candidates.items():
                    results[name].append(run())
            for name, rounds in results.items():
                ms = [1e3 * seconds for seconds, _ in rounds]
                mib = statistics.median(memory for _, memory in rounds) / 2**20
                print(f"| {layer} | {threads} | {name} | {statistics.median(ms):.0f} ({min(ms):.0f} to {max(ms):.0f}) | {mib:.0f} |")


if __name__ == "__main__":
    main()
