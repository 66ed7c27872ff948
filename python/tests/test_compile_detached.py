"""remat.compile: what back-propagation takes for a constant."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch cannot be imported; name a Python that has it in REMAT_TORCH_PYTHON")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import remat  # noqa: E402
from test_compile import check  # noqa: E402
from test_compile_shapes import B, C, T, Net  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


def straight_through(m, h):
    z = m.inner(h)
    return z + (z.sign() - z).detach()


def teacher(m, h):
    with torch.no_grad():
        target, scale = m.inner(h).softmax(-1), h.square().mean()
    return F.log_softmax(m.inner(h), -1) * target * scale


def own_memory(m, h):
    with torch.no_grad():
        kept = torch.zeros(T, C)
        kept.add_(torch.ones(T, C))
        shifted = h + kept
        shifted.mul_(2)
    return shifted * m.inner(h)


@torch.no_grad()
def decorated(h):
    return h.exp() / h.exp().sum(-1, keepdim=True)


def enabled_inside(m, h):
    with torch.no_grad():
        factor = 2 * h
        with torch.enable_grad():
            inside = m.inner(h).exp()
        factor = factor + inside
    return inside * factor


def nothing_to_do(m, h):
    """These return h itself, which keeps its gradient."""
    z = m.inner(h)
    with torch.no_grad():
        scale = z.to(z.dtype).square().mean() + F.dropout(z, 0.0).mean() + z.flatten(0, 0).mean() + z.type_as(z).sum()
        same, other = z.contiguous(), z.transpose(0, 1).contiguous()
    return z * scale + same + other.transpose(0, 1)


STOPPED = {
    "a value": lambda m, h: h * m.inner(h).detach(),
    "a value that is also used": lambda m, h: m.inner(h).detach() * m.inner(h) + h,
    "all but one path": lambda m, h: m.inner(h.detach()) + 0 * h,
    "a parameter": lambda m, h: m.inner(h) * m.bias.detach() + F.linear(h, m.inner.weight.detach()),
    "twice": lambda m, h: h.detach().exp().detach() * m.inner(h),
    "the divisor of a norm": lambda m, h: m.inner(h) / h.norm(dim=-1, keepdim=True).detach(),
    "straight-through": straight_through,
    "a teacher": teacher,
    "memory of the block": own_memory,
    "all but a block within": enabled_inside,
    "ops that do nothing": nothing_to_do,
    "a function": lambda m, h: m.inner(h) * decorated(h),
}


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("name", STOPPED)
def test_gradients_stop(name, recurrent):
    net = Net(lambda m, h: STOPPED[name](m, h) + m.bias * m.table[0] + m.inner(h).mean(), recurrent)
    batch = torch.randn(B, T, C), torch.randn(B, T, C)
    step = check(net, nn.MSELoss(), *batch)
    if recurrent:
        kept = [p.grad.clone() for p in net.parameters() if p.requires_grad]
        remat.compile(net, nn.MSELoss(), batch, strategy="segments", segments=4)(*batch)
        assert all(torch.equal(p.grad, q) for p, q in zip((p for p in net.parameters() if p.requires_grad), kept, strict=True))
        assert "7 timesteps" in str(step.plan)


def test_dropout_and_batch_norm_under_no_grad():
    class Student(nn.Module):
        def __init__(self):
            super().__init__()
            self.teacher, self.student = nn.Sequential(nn.Linear(C, C), nn.BatchNorm1d(C)), nn.Linear(C, C)

        def forward(self, x):
            with torch.no_grad():
                target = self.teacher(x)
            return F.mse_loss(self.student(x), target) + self.teacher(x).mean() * 0

    with pytest.raises(remat.Error, match="buffer"):  # its running statistics would be updated twice
        remat.compile(Student(), None, (torch.randn(B, C),))


class Changes(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.inner, self.function = nn.Linear(C, C), function

    def forward(self, x):
        h = self.inner(x)
        with torch.no_grad():
            self.function(h)
        return h


@pytest.mark.parametrize("function", [lambda h: h.mul_(2), lambda h: h.view(-1).mul_(2), lambda h: h[0].zero_(), lambda h: torch.exp(h, out=h)])
def test_changes_under_no_grad_are_refused(function):
    with pytest.raises(remat.Error, match="no_grad|in place|out"):
        remat.compile(Changes(function), nn.MSELoss(), (torch.randn(B, C), torch.randn(B, C)))
