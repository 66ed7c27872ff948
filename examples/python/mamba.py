#!/usr/bin/env python3
"""A Mamba (Gu and Dao 2023) of bytes, written in PyTorch with Mamba's scan from remat.functional, trained by remat.compile.

    python examples/python/mamba.py --length=20000 --memory-budget=64MiB

Back-propagation is exact through the whole window. Without remat.compile the same model runs, too: remat.functional's functions
have gradients of their own. The other recurrences there are used in the same way.
"""

import argparse
import pathlib
import time

import remat.functional as F
import torch
from torch import Tensor, nn

import remat

HERE = pathlib.Path(__file__).resolve().parent


class Block(nn.Module):
    def __init__(self, width: int, states: int = 16, taps: int = 4) -> None:
        super().__init__()
        inner, rank = 2 * width, -(-width // 16)
        self.parts = [rank, states, states]
        self.norm = nn.RMSNorm(width)
        self.in_proj = nn.Linear(width, 2 * inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, taps, groups=inner)  # holds the weights of causal_conv
        self.x_proj = nn.Linear(inner, sum(self.parts), bias=False)
        self.dt_proj = nn.Linear(rank, inner, bias=False)
        step = torch.exp(torch.empty(inner).uniform_(-6.9, -2.3))  # between 0.001 and 0.1
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # softplus's inverse
        self.A_log = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        u, z = self.in_proj(self.norm(x)).chunk(2, dim=-1)
        u = nn.functional.silu(F.causal_conv(u, self.conv.weight, self.conv.bias))
        dt, B, C = self.x_proj(u).split(self.parts, dim=-1)
        return x + self.out_proj(F.selective_scan(u, self.dt_proj(dt), self.A_log, B, C, self.D, z, self.dt_bias))


class Mamba(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)), nn.RMSNorm(width))
        self.head = nn.Linear(width, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(tokens))).flatten(0, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default=HERE.parent / "data" / "shakespeare.txt")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--memory-budget", default="64MiB")
    options = parser.parse_args()

    torch.manual_seed(1)
    text = torch.frombuffer(bytearray(options.data.read_bytes()), dtype=torch.uint8).long()
    model = Mamba(options.width, options.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    example = torch.zeros(options.batch, options.length, dtype=torch.long)
    step = remat.compile(
        model,
        lambda logits, targets: nn.functional.cross_entropy(logits, targets.flatten()),
        (example, example),
        memory_budget=options.memory_budget,
    )
    print(step.plan)
    for i in range(options.steps):
        start = time.perf_counter()
        first = torch.randint(len(text) - options.length, (options.batch,)).tolist()
        windows = torch.stack([text[f : f + options.length + 1] for f in first])
        loss = step(windows[:, :-1], windows[:, 1:])
        optimizer.step()
        if i % 10 == 0 or i == options.steps - 1:
            print(f"step {i}: loss {loss.item():.3f}, {1000 * (time.perf_counter() - start):.0f} ms")


if __name__ == "__main__":
    main()
