"""distributed_data_parallel.py: data-parallel training of a script with a layer of remat.nn, under PyTorch's DistributedDataParallel.

    torchrun --nproc-per-node=2 examples/python/distributed_data_parallel.py

An LSTM adds up numbers of a long sequence where a mark is set. Each rank has its own sequences; DistributedDataParallel averages
the gradients. Compared with a script for torch.nn only the import of LSTM differs. segments=16 keeps a small part of the
activations and recomputes the rest; the losses are the same to the last bit for any number of segments.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from remat.nn import LSTM


class Adder(nn.Module):
    def __init__(self, hidden: int, segments: int) -> None:
        super().__init__()
        self.lstm = LSTM(2, hidden, segments=segments)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, (h, _) = self.lstm(x)
        return self.head(h[0]).squeeze(1)


def batch(timesteps: int, rows: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.rand(timesteps, rows, generator=generator)
    marks = (torch.rand(timesteps, rows, generator=generator) < 10 / timesteps).float()
    return torch.stack([numbers, marks], 2), (numbers * marks).sum(0) / 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--timesteps", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--segments", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Adder(options.hidden, options.segments))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(options.steps):
        x, y = batch(options.timesteps, options.rows, generator)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item() / dist.get_world_size():.5f}", flush=True)
    if dist.get_rank() == 0:
        plan = model.module.lstm.plan(options.timesteps, options.rows)
        print(f"the LSTM keeps {plan.activations_peak_bytes / 2**20:.1f} MiB of activations")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
