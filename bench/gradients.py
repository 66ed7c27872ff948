#!/usr/bin/env python3
"""Compares gradients of the linear recurrence h = a h + b in PyTorch with those of a loop in double, by version.

    bench/gradients.py [--timesteps=256]      # any PyTorch; mambapy and transformers if they are installed

Prints a table: for each implementation the largest error of the gradients of a and b, relative to the largest element of the
exact gradient, in fp32 and in fp64. The loss is the sum of h times random weights. An error of 1 means that the gradient is
zero or unrelated; fp32 rounds to 6e-8. Implementations that raise are listed with the error's type.
"""
import argparse
import importlib.metadata
import os


def loop(a, b):
    import torch

    h, out = torch.zeros_like(b[0]), []
    for t in range(len(a)):
        h = a[t] * h + b[t]
        out.append(h)
    return torch.stack(out)


def joined(left, right):
    return left[0] * right[0], right[0] * left[1] + right[1]


def associative(mode):
    def way(a, b):
        from torch._higher_order_ops.associative_scan import associative_scan

        return associative_scan(joined, (a, b), 0, combine_mode=mode)[1]

    return way


def scanned(a, b):
    import torch
    from torch._higher_order_ops.scan import scan

    def step(h, x):
        h = x[0] * h + x[1]
        return h, h.clone()

    return scan(step, torch.zeros_like(b[0]), (a, b))[1]


def mambapy(a, b):
    from mambapy.pscan import pscan

    return pscan(a.t()[None, :, :, None].transpose(1, 2), b.t()[None, :, :, None].transpose(1, 2))[0, :, :, 0]


def logarithms(a, b):
    """The parallel form of minGRU-pytorch, for positive numbers: h = exp(s + logcumsumexp(log b - s)), s = cumsum(log a)."""
    total = a.log().cumsum(0)
    return (total + (b.log() - total).logcumsumexp(0)).exp()


WAYS = {"loop": loop, "torch.scan": scanned, "associative_scan, generic": associative("generic"),
        "associative_scan, pointwise": associative("pointwise"), "mambapy's pscan": mambapy,
        "logcumsumexp (minGRU-pytorch)": logarithms}


def gradients(way, numbers, dtype):
    a, b, weights = (x.to(dtype) for x in numbers)
    a.requires_grad_(), b.requires_grad_()
    (way(a, b) * weights).sum().backward()
    return [0 * x.detach().double() if x.grad is None else x.grad.double() for x in (a, b)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timesteps", type=int, default=256)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.manual_seed(1)
    shape = options.timesteps, 32
    numbers = [0.5 + 0.49 * torch.rand(shape).double(), torch.rand(shape).double() + 0.01, torch.randn(shape).double()]
    numbers = [x.float().double() for x in numbers]  # the same numbers in both precisions
    exact = gradients(loop, [x.clone() for x in numbers], torch.float64)
    versions = [f"torch {torch.__version__}"]
    for package in ("mambapy", "transformers"):
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    print(f"{', '.join(versions)}; T {options.timesteps}\n\n| implementation | da, fp32 | db, fp32 | da, fp64 | db, fp64 |")
    print("|---|--:|--:|--:|--:|")
    for name, way in WAYS.items():
        cells = []
        for dtype in (torch.float32, torch.float64):
            try:
                got = gradients(way, [x.clone() for x in numbers], dtype)
                cells += [f"{(g - e).abs().max() / e.abs().max():.1e}" for g, e in zip(got, exact)]
            except Exception as error:  # what an implementation cannot do is a result
                cells += [type(error).__name__] * 2
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
