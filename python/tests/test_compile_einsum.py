"""remat.compile: torch.einsum, as products of matrices, products of elements, and attention."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch cannot be imported; name a Python that has it in REMAT_TORCH_PYTHON")

from torch import nn  # noqa: E402

import remat  # noqa: E402
from test_compile import check  # noqa: E402

B, T, H, D = 3, 9, 2, 4


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


class Model(nn.Module):
    """A linear or recurrent layer, an einsum of its result and a parameter, and a mean."""

    def __init__(self, equation, sizes, first, timed):
        super().__init__()
        self.rnn = nn.GRU(5, H * D, batch_first=True) if timed else nn.Linear(5, H * D)
        self.w, self.equation, self.first, self.timed = nn.Parameter(torch.randn(sizes)), equation, first, timed

    def forward(self, x, y):
        h = self.rnn(x)[0] if self.timed else self.rnn(x)
        if "h" in self.equation:
            h = h.unflatten(-1, (H, D))
        pair = (self.w, h) if self.first else (h, self.w)
        return ((torch.einsum(self.equation, *pair) - y) ** 2).mean()


WITH_PARAMETERS = {
    "btd,de->bte": ((H * D, 6), False),
    "btd,ed->bte": ((6, H * D), False),
    "btd, ed -> ebt": ((6, H * D), False),
    "ed,btd->bte": ((6, H * D), True),
    "...d,de": ((H * D, 6), False),
    "bthd,hde->bthe": ((H, D, 6), False),
    "bthd,hde->bte": ((H, D, 6), False),
    "bthd,dhe->bte": ((D, H, 6), False),
    "bthd,edh->bhte": ((6, D, H), False),
    "bthd,de->bthe": ((D, 6), False),
    "bthd,dkh->btk": ((D, 7, H), False),
    "btd,d->bt": ((H * D,), False),
    "btd,d->btd": ((H * D,), False),
    "btd,e->btde": ((6,), False),
    "btd,de->bt": ((H * D, 6), False),
}


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("equation", WITH_PARAMETERS)
def test_products_with_parameters(equation, timed):
    sizes, first = WITH_PARAMETERS[equation]
    model = Model(equation, sizes, first, timed)
    x = torch.randn(B, T, 5)
    h = torch.randn(B, T, H, D) if "h" in equation else torch.randn(B, T, H * D)
    y = torch.randn(torch.einsum(equation, *((model.w, h) if first else (h, model.w))).shape)
    check(model, None, x, y)


ONE = ["btd->btd", "btd->dbt", "btd->bt", "btd->b", "btd->", "...d->...", "btd"]


@pytest.mark.parametrize("equation", ONE)
def test_sums_and_transpositions_of_one_tensor(equation):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(5, 6)

        def forward(self, x, y):
            return (torch.einsum(equation, self.linear(x)) * y).mean()

    check(Layer(), None, torch.randn(B, T, 5), torch.randn(torch.einsum(equation, torch.randn(B, T, 6)).shape))


class Attention(nn.Module):
    """As in Transformers that are written out."""

    def __init__(self, causal):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(H * D, H * D) for _ in range(4))
        self.causal = causal

    def forward(self, x):
        q, k, v = (f(x).reshape(*x.shape[:2], H, D) for f in (self.q, self.k, self.v))
        scores = torch.einsum("nqhd,nkhd->nhqk", q, k)
        if self.causal:
            scores = scores.masked_fill(torch.ones(x.shape[1], x.shape[1]).tril() == 0, float("-1e20"))
        weights = torch.softmax(scores / D**0.5, dim=3)
        return self.out(torch.einsum("nhql,nlhd->nqhd", weights, v).reshape(x.shape))


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    check(Attention(causal), nn.MSELoss(), torch.randn(B, T, H * D), torch.randn(B, T, H * D))


def test_a_matrix_for_each_head():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.w = nn.GRU(5, H * D, batch_first=True), nn.Parameter(torch.randn(H, D, 6))

        def forward(self, x, y):
            h = self.rnn(x)[0].unflatten(-1, (H, D)).transpose(1, 2)
            return ((h @ self.w - y) ** 2).mean()

    check(Heads(), None, torch.randn(B, T, 5), torch.randn(B, H, T, 6))


def test_dot_products_of_two_values():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(5, 6), nn.Linear(5, 6)

        def forward(self, x, y):
            return ((torch.einsum("bd,bd->b", self.one(x), self.other(x)) - y) ** 2).mean()

    check(Pair(), None, torch.randn(7, 5), torch.randn(7))


@pytest.mark.parametrize(
    "function", [lambda h: torch.einsum("bdd->b", h.unflatten(1, (2, 2))), lambda h: torch.einsum("bd,bd,bd->b", h, h, h)]
)
def test_other_equations_are_refused(function):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(5, 4)

        def forward(self, x):
            return function(self.linear(x)).mean()

    with pytest.raises(remat.Error, match="einsum.*one or two tensors"):
        remat.compile(Layer(), None, (torch.randn(7, 5),))
