#!/usr/bin/env python3
"""Makes loss_mean.golden: losses of one batch and their gradients, with unequally weighted targets, in double precision.

    python3 tests/golden/make_loss_mean.py      # any PyTorch; run it by hand and commit the result

A hidden layer with tanh and a head, over four samples: in the first of them nothing counts, where a loss can leave targets out. The
test cuts the batch into micro steps, ranks and shards. The format is make.py's.
"""
import os

import torch
from torch.nn import functional

from make import write

T, N, F, H, K = 5, 4, 3, 6, 4
WEIGHTS = [0.5, 2.0, 1.25, 0.0]


def labels(*shape):
    """(..,N,..) classes; -100 in all of sample 0 and in a third of the rest."""
    target = torch.randint(0, K, shape)
    return target.masked_fill(torch.rand(shape) < 0.33, -100)


def run(name, x, loss, **inputs):
    w = {"hidden.weight": (H, F), "hidden.bias": (H,), "head.weight": (K, H), "head.bias": (K,)}
    w = {key: (0.6 * torch.randn(shape)).float() for key, shape in w.items()}
    d = {key: value.double().requires_grad_() for key, value in w.items()}
    h = torch.tanh(functional.linear(x.double(), d["hidden.weight"], d["hidden.bias"]))
    value = loss(functional.linear(h, d["head.weight"], d["head.bias"]))
    value.backward()
    out = {"x": x, "loss": value.detach()} | inputs | w | {f"d_{key}": value.grad for key, value in d.items()}
    return {f"{name}/{key}": value for key, value in out.items()}


def main():
    torch.manual_seed(28)
    x = torch.randn(T, N, F)
    weights = torch.tensor(WEIGHTS)

    target = labels(T, N)
    target[:, 0] = -100
    arrays = run("ignore", x, lambda y: functional.cross_entropy(y.flatten(0, 1), target.flatten()),
                 targets=target.int())
    arrays |= run("weights", x, lambda y: functional.cross_entropy(y.flatten(0, 1), target.flatten(), weights.double()),
                  targets=target.int(), class_weights=weights)
    arrays |= run("smoothed", x, lambda y: functional.cross_entropy(y.flatten(0, 1), target.flatten(), weights.double(),
                                                                    label_smoothing=0.2),
                  targets=target.int(), class_weights=weights)

    one = torch.tensor([-100, 2, 0, -100])
    arrays |= run("last", x, lambda y: functional.cross_entropy(y[-1], one), targets=one.int())

    pixels, pixel_labels = torch.randn(N, 6, F), labels(N, 6)
    pixel_labels[0] = -100
    arrays |= run("pixels", pixels, lambda y: functional.cross_entropy(y.flatten(0, 1), pixel_labels.flatten()),
                  targets=pixel_labels.int())

    lengths = torch.tensor([0, 5, 2, 1])
    there = torch.arange(T)[:, None] < lengths
    values = torch.randn(T, N, K)
    shares = torch.rand(T, N, K)
    for name, of, value in (("mse", functional.mse_loss, values), ("mae", functional.l1_loss, values),
                            ("huber", functional.huber_loss, values),
                            ("bce", functional.binary_cross_entropy_with_logits, shares)):
        arrays |= run(name, x, lambda y: of(y[there], value.double()[there]), targets=value, padding=(~there).int())

    rows = torch.tensor([[1, 2, -1], [3, 3, -1], [-1, -1, -1], [2, -1, -1]])
    long, steps = torch.tensor([2, 2, 0, 1]), torch.tensor([5, 5, 3, 1])
    arrays |= run("ctc", x, lambda y: functional.ctc_loss(y.log_softmax(2), rows.clamp(min=0), steps, long, 0, "mean"),
                  targets=rows.int(), input_lengths=steps.int())
    write(os.path.join(os.path.dirname(os.path.abspath(__file__)), "loss_mean.golden"), arrays)


if __name__ == "__main__":
    main()
