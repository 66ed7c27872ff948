#!/usr/bin/env python3
"""The same training in several processes: each computes its rows of the batch, and gradients are averaged.

    remat launch --nproc-per-node=2 -- python3 examples/python/two_ranks.py       torchrun, srun and mpirun work, too
    python3 examples/python/two_ranks.py                                          one rank, with the same code

An LSTM learns the adding problem: the sum of the two numbers of a sequence that are marked. All ranks end with the same
bits, as the hashes in the output show.
"""

import argparse
import zlib

import numpy as np

import remat

TIMESTEPS, BATCH, HIDDEN = 20, 64, 32


def adding(draw: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    """x (T,B,2): numbers, and two marks in each row; y (B,1): the sum of the marked numbers."""
    x = np.zeros((TIMESTEPS, rows, 2), np.float32)
    x[:, :, 0] = draw.random((TIMESTEPS, rows))
    for row in range(rows):
        x[draw.choice(TIMESTEPS, 2, replace=False), row, 1] = 1
    return {"x": x, "y": (x[:, :, 0] * x[:, :, 1]).sum(0)[:, None]}


def network(rows: int) -> tuple[remat.Graph, remat.Value]:
    g, init = remat.Graph(), remat.uniform(HIDDEN**-0.5)
    x, y = g.input("x", "f32", "sequence", (TIMESTEPS, rows, 2)), g.input("y", "f32", "static", (rows, 1))
    shapes = {"weight_ih": (4 * HIDDEN, 2), "weight_hh": (4 * HIDDEN, HIDDEN), "bias_ih": (4 * HIDDEN,)}
    h = g.lstm(x, *(g.param(name, shape, init) for name, shape in shapes.items()))
    out = g.linear(g.last_step(h), g.param("head.weight", (1, HIDDEN), init), g.param("head.bias", (1,), init))
    return g, g.mse(out, y)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--steps", type=int, default=400)
    given = flags.parse_args()

    remat.distributed.init()
    rank, size = remat.distributed.rank(), remat.distributed.world_size()
    graph, loss = network(BATCH // size)
    session = remat.Session(graph, loss, memory_budget="1MiB", optimizer="adam", clip_grad_norm=1.0, threads=1)
    draw = np.random.default_rng([0, rank])  # each rank has samples of its own
    for step in range(1, given.steps + 1):
        result = session.step(**adding(draw, BATCH // size), lr=1e-2)
        if rank == 0 and step % 100 == 0:
            print(f"step {step}: loss {result.loss:.4f} over the rows of all ranks", flush=True)
    bits = zlib.crc32(b"".join(value.tobytes() for value in session.parameters.values()))
    print(f"rank {rank} of {size}: parameters {bits:08x}", flush=True)


if __name__ == "__main__":
    main()
