"""remat.compile: heads of keys and values that several heads of queries share, in every order."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch cannot be imported; name a Python that has it in REMAT_TORCH_PYTHON")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import remat  # noqa: E402
from test_compile import check  # noqa: E402

B, T, D = 3, 5, 2  # D: features of a head


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


def heads(x, n):
    return x.unflatten(-1, (n, D)).transpose(1, 2)


def repeated(*sizes, axes):
    """(B,T,N) -> (B,heads,T,D), where the heads are the product of `sizes`, and repeat along `axes`."""

    def make(x):
        one = [1 if i in axes else n for i, n in enumerate(sizes)]
        return x.view(B, T, *one, D).expand(B, T, *sizes, D).reshape(B, T, -1, D).transpose(1, 2)

    return make


GROUPED, TILED = repeated(2, 2, axes=[1]), repeated(2, 2, axes=[0])  # heads 0 0 1 1, and 0 1 0 1
CASES = {  # heads of queries, of keys and of values that are computed, and what makes four or eight of them
    "grouped": (4, 2, 2, None, GROUPED, GROUPED),
    "tiled": (4, 2, 2, None, TILED, TILED),
    "tiled before the axis of time": (4, 2, 2, None, *[lambda x: heads(x, 2)[:, None].expand(B, 2, 2, T, D).reshape(B, 4, T, D)] * 2),
    "values otherwise than keys": (4, 2, 2, None, TILED, GROUPED),
    "keys alone": (4, 2, 4, None, GROUPED, None),
    "values alone": (4, 4, 1, None, None, repeated(4, axes=[0])),
    "of groups of unequal size": (4, 2, 1, None, GROUPED, repeated(4, axes=[0])),
    "one for all": (4, 1, 1, None, *[lambda x: heads(x, 1)] * 2),
    "outer and inner": (8, 2, 2, None, *[repeated(2, 2, 2, axes=[0, 2])] * 2),
    "in the middle": (8, 4, 4, None, *[repeated(2, 2, 2, axes=[1])] * 2),
    "six of two": (6, 2, 2, None, *[repeated(3, 2, axes=[0])] * 2),
    "queries tiled": (2, 4, 4, TILED, None, None),
    "queries grouped": (2, 4, 4, GROUPED, None, None),
    "queries and keys": (2, 2, 4, TILED, GROUPED, None),
}


class Shared(nn.Module):
    def __init__(self, case, written_out, bias=None):
        super().__init__()
        counts, self.make = case[:3], case[3:]
        self.layers, self.written_out, self.bias = nn.ModuleList(nn.Linear(4, n * D) for n in counts), written_out, bias

    def forward(self, x):
        made = [layer(x) for layer in self.layers]
        q, k, v = (make(y) if make else heads(y, y.shape[-1] // D) for y, make in zip(made, self.make, strict=True))
        y = (q @ k.mT * D**-0.5).softmax(-1) @ v if self.written_out else F.scaled_dot_product_attention(q, k, v, self.bias)
        return y.transpose(1, 2).flatten(2)


def trained(model):
    x = torch.randn(B, T, 4)
    check(model, nn.MSELoss(), x, torch.randn_like(model(x)).detach())


@pytest.mark.parametrize("written_out", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_heads_are_read_in_their_order(name, written_out):
    trained(Shared(CASES[name], written_out))


def test_tiled_heads_meet_their_bias():
    trained(Shared(CASES["tiled"], False, nn.Parameter(torch.randn(4, T, T))))


@pytest.mark.parametrize("order", [(2, 1), (1, 2)])
def test_heads_of_two_axes(order):
    """(B,h,g,T,D) of queries against (B,h,1,T,D) or (B,1,g,T,D)."""

    class Axes(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = nn.Linear(4, 4 * D), nn.Linear(4, 2 * D), nn.Linear(4, 2 * D)

        def forward(self, x):
            q, k, v = (y.view(B, T, *n, D).permute(0, 2, 3, 1, 4) for y, n in ((self.q(x), (2, 2)), (self.k(x), order), (self.v(x), order)))
            return F.scaled_dot_product_attention(q, k.expand_as(q), v).permute(0, 3, 1, 2, 4).flatten(2)

    trained(Axes())


def test_keys_of_one_row_for_all_rows():
    class Memory(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, memory):
            k = heads(self.k(memory), 2).expand(B, 2, T, D)
            return F.scaled_dot_product_attention(heads(self.q(x), 2), k, k).transpose(1, 2).flatten(2)

    check(Memory(), nn.MSELoss(), torch.randn(B, T, 4), torch.randn(1, T, 4), torch.randn(B, T, 4))
