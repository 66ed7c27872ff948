#!/usr/bin/env python3
"""Makes the golden files of the image models: results of PyTorch and torchvision in double precision.

    python3 tests/golden/make_images.py [MODEL ...]   # any PyTorch and torchvision; run it by hand and commit the result

tests/train/test_model_image.c reads them. The networks are too large to store their numbers: parameters and images are a hash
of their names and positions, as in the test, and each array is stored as two numbers: its norm, and its product with such a hash. A
file holds, in the format of make.py:

    loss               of the first and the second of two steps of plain SGD on one batch, and of an evaluation after them
    gradient/NAME      of the first step, for each parameter: norm, product, and then the parameter's shape
    after/NAME         each parameter, and each running statistic, after both steps: norm, product, shape

It also prints how far PyTorch's own float32 run lies from its float64 run, relative to the norm: the basis of the test's tolerance.
"""
import os
import sys
import zlib

import numpy as np
import torch
from torch import nn
from torchvision.models import resnet

from make import write

RATE = 0.01


def noise(name, count):
    """count numbers in [-1,1), the same wherever they are computed."""
    x = np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B1) ^ np.uint32(zlib.crc32(name.encode()))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ x >> np.uint32(shift)) * np.uint32(factor)
    return (x ^ x >> np.uint32(16)).astype(np.float64) / 2.0**31 - 1


class Cnn(nn.Module):
    """PyTorch's MNIST example, without its dropout."""

    def __init__(self, channels, side, classes):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(channels, 32, 3), nn.Conv2d(32, 64, 3)
        self.fc1, self.fc2 = nn.Linear(64 * ((side - 4) // 2)**2, 128), nn.Linear(128, classes)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.conv2(torch.relu(self.conv1(x)))), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def mlp(channels, side, classes):
    return nn.Sequential(nn.Linear(channels * side * side, 9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, classes))


def small(build, classes):
    """For small images: a 3x3 stem with stride 1, without max_pool."""
    model = build(num_classes=classes)
    model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return model


class Twice(nn.Module):
    def __init__(self, width, middle, out):
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(width, middle, 3, padding=1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(),
            nn.Conv2d(middle, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU())

    def forward(self, x):
        return self.double_conv(x)


class Unet(nn.Module):
    """The names and shapes of milesial's Pytorch-UNet, of any depth; a class for each pixel."""

    def __init__(self, channels, classes, levels, width, bilinear):
        super().__init__()
        widths = [width << min(level, levels - bilinear) for level in range(levels + 1)]
        self.levels, self.inc = levels, Twice(channels, width, width)
        for level in range(1, levels + 1):
            down, up = nn.Module(), nn.Module()
            down.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), Twice(widths[level - 1], widths[level], widths[level]))
            meets = widths[levels - level]
            if not bilinear:
                up.up = nn.ConvTranspose2d(2 * meets, meets, 2, stride=2)
            up.conv = Twice(2 * meets, meets, meets // 2 if bilinear and level < levels else meets)
            setattr(self, f"down{level}", down), setattr(self, f"up{level}", up)
        self.outc = nn.Module()
        self.outc.conv = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        made = [self.inc(x)]
        for level in range(1, self.levels + 1):
            made.append(getattr(self, f"down{level}").maxpool_conv(made[-1]))
        x = made.pop()
        for level in range(1, self.levels + 1):
            part = getattr(self, f"up{level}")
            x = (part.up(x) if hasattr(part, "up") else
                 nn.functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True))
            x = part.conv(torch.cat((made.pop(), x), 1))
        return self.outc.conv(x).flatten(2)


CASES = {  # name -> model, batch, channels, side, classes, which images: the test has the same numbers. Images for which no relu or
    # max_pool is decided by the last digits

    "mlp": (lambda: mlp(2, 5, 3), 4, 2, 5, 3, 0),
    "cnn": (lambda: Cnn(1, 14, 5), 4, 1, 14, 5, 0),
    "resnet18": (lambda: resnet.resnet18(num_classes=10), 3, 3, 64, 10, 1),
    "resnet18_small": (lambda: small(resnet.resnet18, 10), 4, 3, 16, 10, 0),
    "resnet34": (lambda: small(resnet.resnet34, 7), 4, 3, 16, 7, 3),
    "unet": (lambda: Unet(3, 3, 2, 6, True), 2, 3, 16, 3, 0),
    "unet_transposed": (lambda: Unet(3, 3, 2, 6, False), 2, 3, 16, 3, 0),
    "resnet50": (lambda: small(resnet.resnet50, 7), 4, 3, 16, 7, 1),
}


def start(model):
    for name, p in model.named_parameters():
        u = noise(name, p.numel())
        if p.dim() == 1:
            gain = 0.2 if name.endswith("bn3.weight") else name.endswith("weight")  # 1 would make resnet50 chaotic
            value = 0.1 * u + gain
        else:
            value = u * np.sqrt(6.0 * p.shape[0] / p.numel())
        with torch.no_grad():
            p.copy_(torch.from_numpy(value.astype(np.float32)).reshape(p.shape))


def digest(name, array):
    flat = array.detach().double().reshape(-1).numpy()
    return torch.tensor([np.sqrt(flat @ flat), flat @ noise("*" + name, flat.size), *array.shape], dtype=torch.float64)


def run(case, dtype):
    build, batch, channels, side, classes, which = case
    model = build()
    start(model)
    model.to(dtype)
    count = batch * channels * side * side
    x = torch.from_numpy((0.5 + 0.5 * noise(f"input{which}", count)).astype(np.float32)).to(dtype)
    x = x.reshape(batch, side * side * channels) if isinstance(model, nn.Sequential) else x.reshape(batch, channels, side, side)
    target = torch.arange(batch) * 3 % classes
    if isinstance(model, Unet):
        target = (torch.arange(batch * side * side) * 7 // 3 % classes).reshape(batch, -1)
    out, losses = {}, []
    for step in range(2):
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x), target)
        loss.backward()
        losses.append(loss.item())
        for name, p in model.named_parameters():
            if not step:
                out["gradient/" + name] = digest(name, p.grad)
            with torch.no_grad():
                p -= RATE * p.grad
    with torch.no_grad():
        losses.append(nn.functional.cross_entropy(model.eval()(x), target).item())
    for name, value in model.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            out["after/" + name] = digest(name, value)
    return {"loss": torch.tensor(losses, dtype=torch.float64)} | out


def main():
    for name, case in CASES.items():
        if sys.argv[1:] and name not in sys.argv:
            continue
        exact, single = run(case, torch.float64), run(case, torch.float32)
        write(os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".golden"), exact)
        worst = {}
        for key, value in exact.items():
            group, scale = key.split("/")[0], value[0].abs().item() if "/" in key else value.abs().max().item()
            count = 2 if "/" in key else 3
            distance = (single[key] - value)[:count].abs().max().item() / max(scale, 1e-30)
            worst[group] = max(worst.get(group, (0, "")), (distance, key))
        print(name, worst)


if __name__ == "__main__":
    main()
