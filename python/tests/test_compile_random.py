"""remat.compile: layers with random settings and shapes, beside PyTorch. REMAT_LONG_TESTS=1 tries many more."""

from __future__ import annotations

import os
import random

import pytest

torch = pytest.importorskip("torch", reason="torch cannot be imported; name a Python that has it in REMAT_TORCH_PYTHON")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import remat  # noqa: E402

CASES = 400 if os.environ.get("REMAT_LONG_TESTS") else 6


def pad(r):
    sizes = [r.randint(2, 8) for _ in range(r.choice([1, 2]))]
    mode = r.choice(["reflect", "replicate", "circular", "constant"])
    most = [n - (mode == "reflect") for n in sizes[::-1] for _ in range(2)]
    arguments = [r.randint(0, n) for n in most], mode, r.choice([0.0, 1.5, -2.0]) if mode == "constant" else None
    return (2, 3, *sizes), lambda x: F.pad(x, *arguments)


def windows(r):
    def two(least, most):
        return r.randint(least, most), r.randint(least, most)

    return {"kernel_size": two(1, 3), "dilation": two(1, 2), "padding": two(0, 2), "stride": two(1, 3)}


def unfold(r):
    settings = windows(r)
    return (2, r.randint(1, 3), r.randint(5, 9), r.randint(5, 9)), lambda x: F.unfold(x, **settings)


def fold(r):
    settings, size = windows(r), (r.randint(5, 9), r.randint(5, 9))
    return (2, r.randint(1, 3), *size), lambda x: F.fold(F.unfold(x, **settings).tanh(), size, **settings)


def transposed_convolution(r):
    groups, stride = r.choice([1, 2]), r.randint(1, 3)
    over = r.randint(0, stride - 1)
    layer = nn.ConvTranspose1d(
        4, 2 * groups, r.randint(1, 4), stride, r.randint(0, 1), over, groups, r.random() < 0.5, 1 if over else r.randint(1, 2)
    )
    return (2, 4, r.randint(4, 9)), layer


def average(r):
    size = r.randint(1, 4)
    settings = size, r.randint(1, 4), r.randint(0, size // 2)
    return (2, 3, r.randint(5, 9)), lambda x: F.avg_pool1d(x, *settings)


def repeated(r):
    n, lead = r.randint(1, 4), r.choice([(3,), (2, 4)])
    function = r.choice([
        lambda x: x.repeat(*[1] * len(lead), n), lambda x: torch.tile(x, (n,)), lambda x: x.repeat_interleave(n, -1),
    ])  # fmt: skip
    return (*lead, r.randint(2, 6)), function


def triangle(r):
    function, diagonal = r.choice([torch.tril, torch.triu]), r.randint(-2, 2)
    return (2, r.randint(1, 5), r.randint(2, 5)), lambda x: function(x, diagonal)


def compared(r):
    function, bound = r.choice([torch.gt, torch.lt, torch.ge, torch.le]), r.choice([0, 0.3, -0.5])
    return (*r.choice([(3,), (2, 4)]), 5), lambda x: x * function(x, bound) + function(x * x, x) * 2 * x


def shuffled(r):
    groups, factor = r.choice([2, 3]), r.randint(1, 4)
    return (2, 6, r.randint(1, 5)), lambda x: F.interpolate(nn.ChannelShuffle(groups)(x.unsqueeze(-1)).squeeze(-1), scale_factor=factor)


MAKERS = [pad, unfold, fold, transposed_convolution, average, repeated, triangle, compared, shuffled]


class Scaled(nn.Module):
    def __init__(self, shape, layer):
        super().__init__()
        self.weight, self.layer = nn.Parameter(torch.randn(shape[1:])), layer

    def forward(self, x):
        return self.layer(x * self.weight)


@pytest.mark.parametrize("maker", MAKERS)
def test_random_settings_have_pytorchs_gradients(maker):
    for case in range(CASES):
        r = random.Random(case)
        torch.manual_seed(case)
        shape, layer = maker(r)
        model, x = Scaled(shape, layer), torch.randn(shape)
        y = torch.randn_like(model(x))
        loss = float(remat.compile(model, nn.MSELoss(), (x, y))(x, y))
        ours = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        own = F.mse_loss(model(x), y)
        own.backward()
        assert loss == pytest.approx(float(own.detach()), rel=1e-5), f"case {case}"
        for p, g in zip(model.parameters(), ours, strict=True):
            assert torch.allclose(p.grad, g, rtol=1e-4, atol=1e-5), f"case {case}"
