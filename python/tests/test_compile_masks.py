"""remat.compile: where a mask chooses, the other side is neither read nor given a gradient, even if it is infinite or NaN."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch cannot be imported; name a Python that has it in REMAT_TORCH_PYTHON")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import remat  # noqa: E402

B, T, C = 3, 5, 4
CONSTANT = torch.tensor([True, False, False, True])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


class Chosen(nn.Module):
    def __init__(self, choose, layer):
        super().__init__()
        self.layer = nn.GRU(C, C, batch_first=True) if layer is nn.GRU else nn.Linear(C, C)
        self.choose, self.gain, self.vector = choose, nn.Linear(C, C), nn.Parameter(torch.randn(C))

    def forward(self, x, mask):
        y = self.layer(x)
        return self.choose(self, y[0] if isinstance(y, tuple) else y, x, mask[..., None])


CHOICES = {
    "infinite": lambda s, y, x, m: (y + m * 1e30).pow(2).masked_fill(m, 0.5),
    "NaN": lambda s, y, x, m: torch.where(m, y, (y + m * 1e30).pow(2) - (y + m * 1e30).pow(2) + s.gain(x)),
    "infinite slopes": lambda s, y, x, m: (y * y + 1).masked_fill(m, 0).sqrt(),
    "infinite slopes of both": lambda s, y, x, m: torch.where(m, s.vector * s.vector, 0).sqrt() + y,
    "a parameter": lambda s, y, x, m: torch.where(m, s.vector, y),
    "two parameters": lambda s, y, x, m: torch.where(m, s.vector, 2 * s.vector) * y,
    "NaN of the batch": lambda s, y, x, m: y * (x / (1 - m.float())).masked_fill(m, 0),
    "a constant mask": lambda s, y, x, m: (y + CONSTANT * 1e30).pow(2).masked_fill(CONSTANT, 1),
}


@pytest.mark.parametrize("layer", [nn.GRU, nn.Linear])
@pytest.mark.parametrize("name", CHOICES)
def test_masked_places_are_left_alone(name, layer):
    model, x, mask = Chosen(CHOICES[name], layer), torch.randn(B, T, C), torch.rand(B, T) > 0.5
    peer, target = copy.deepcopy(model), torch.randn(B, T, C)
    loss = F.mse_loss(peer(x, mask), target)
    loss.backward()
    step = remat.compile(model, nn.MSELoss(), (x, mask, target))
    assert loss.isfinite() and float(step(x, mask, target)) == pytest.approx(loss.item(), rel=1e-5)
    for p, q in zip(model.parameters(), peer.parameters(), strict=True):
        if q.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6)
