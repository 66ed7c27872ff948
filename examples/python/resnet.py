#!/usr/bin/env python3
"""torchvision's ResNet through remat.compile, within a byte budget. The update happens inside the step.

    python examples/python/resnet.py --size=128 --batch-size=16 --memory-budget=400MiB

The images are generated: noise with one bright square, and the class is the quarter that it lies in.
"""

import argparse
import time

import torch
import torchvision
from torch import Tensor, nn

import remat


def batch(rows: int, size: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    images = torch.randn(rows, 3, size, size, generator=draw)
    labels = torch.randint(0, 4, (rows,), generator=draw)
    half, side = size // 2, size // 4
    for image, label in zip(images, labels.tolist(), strict=True):
        top, left = (int(torch.randint(0, half - side + 1, (1,), generator=draw)) for _ in range(2))
        top, left = top + half * (label // 2), left + half * (label % 2)
        image[:, top : top + side, left : left + side] += 2
    return images, labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18", help="of torchvision.models")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--memory-budget", default="160MiB")
    options = parser.parse_args()

    torch.manual_seed(1)
    draw = torch.Generator().manual_seed(2)
    model = getattr(torchvision.models, options.model)(num_classes=4)
    step = remat.compile(
        model, nn.CrossEntropyLoss(), batch(options.batch_size, options.size, draw),
        memory_budget=options.memory_budget, optimizer="sgd", momentum=0.9, weight_decay=1e-4, lr=options.lr,
    )  # fmt: skip
    print(step.plan)
    start = time.perf_counter()
    for i in range(1, options.steps + 1):
        loss = step(*batch(options.batch_size, options.size, draw))
        if i % 5 == 0:
            print(f"step {i}: loss {loss.item():.3f}, {(time.perf_counter() - start) / i:.2f} s a step")
    images, labels = batch(options.batch_size, options.size, draw)
    print(f"loss of images that it has not seen: {step.evaluate(images, labels).item():.3f}")


if __name__ == "__main__":
    main()
