"""remat.compile: rows of tables, and the one that padding_idx names, which has no gradient."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch cannot be imported; name a Python that has it in REMAT_TORCH_PYTHON")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import remat  # noqa: E402
from test_compile import check  # noqa: E402

B, T, C = 3, 6, 4


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


class Rows(nn.Module):
    """A function of a table is added to a layer's output."""

    def __init__(self, function, padding_idx=None, layer=nn.GRU):
        super().__init__()
        self.table, self.function = nn.Embedding(9, C, padding_idx=padding_idx), function
        nn.init.normal_(self.table.weight)
        self.layer = layer(C, C, batch_first=True) if layer is nn.GRU else layer(C, C)

    def forward(self, x):
        y = self.layer(x)
        return (y[0] if isinstance(y, tuple) else y) + self.function(self.table, x)


def order(*numbers):
    return torch.tensor(numbers)


ALONG_TIME = {
    "arange": lambda e, x: e(torch.arange(x.shape[1])),
    "arange from 2": lambda e, x: e(torch.arange(2, 2 + x.shape[1])),
    "arange for each row": lambda e, x: e(torch.arange(x.shape[1])[None].expand(len(x), -1)),
    "tied": lambda e, x: e(torch.arange(x.shape[1])) + F.linear(x, e.weight[:4]),
    "one for all": lambda e, x: e(torch.full(x.shape[:2], 3)),
}
OF_ROWS = {
    "any order": lambda e, x: e(order(5, 0, 3, 3, 8)).mean(0),
    "any order, tied": lambda e, x: e(order(5, 0, 3, 3, 8)).mean(0) + e.weight[order(3, 3)].mean(0),
    "a single one": lambda e, x: e(torch.tensor(3)),
    "the first one": lambda e, x: e(torch.tensor(0)),
    "by the batch's integers, too": lambda e, x: e(order(5, 0, 3)).mean(0) + e((x > 0).long()).mean(1),
}
CASES = [(f, nn.GRU) for f in ALONG_TIME.values()] + [(f, nn.Linear) for f in OF_ROWS.values()]
NAMES = [*ALONG_TIME, *OF_ROWS]


@pytest.mark.parametrize("padding_idx", [0, 3, 8])
@pytest.mark.parametrize("function, layer", CASES, ids=NAMES)
def test_constant_indices_leave_the_row_of_padding_idx_alone(function, layer, padding_idx):
    model = Rows(function, padding_idx, layer)
    shape = (B, T, C) if layer is nn.GRU else (B, C)
    check(model, nn.MSELoss(), torch.randn(shape), torch.randn(shape))


@pytest.mark.parametrize("name", ["arange", "one for all"])
def test_updates_of_the_step_leave_the_row_alone(name):
    model, x, y = Rows(ALONG_TIME[name], 3), torch.randn(B, T, C), torch.randn(B, T, C)
    peer, row = copy.deepcopy(model), model.table.weight[3].tolist()
    step = remat.compile(model, nn.MSELoss(), (x, y), optimizer="sgd", lr=0.5)
    optimizer = torch.optim.SGD(peer.parameters(), lr=0.5)
    for _ in range(3):
        step(x, y)
        optimizer.zero_grad()
        F.mse_loss(peer(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(model.table.weight, peer.table.weight, rtol=1e-4, atol=1e-6)
    assert model.table.weight[3].tolist() == row


def test_frozen_tables_may_have_padding():
    model = Rows(lambda e, x: e((x > 0).long()).mean(1), 0, nn.Linear)
    model.table.weight.requires_grad_(False)
    check(model, nn.MSELoss(), torch.randn(B, C), torch.randn(B, C))


@pytest.mark.parametrize("constant", [False, True])
def test_rows_of_computed_tables(constant):
    def rows(e, x, **padding):
        return F.embedding(order(1, 0, 3) if constant else (x > 0).long()[0], e.weight * 2, **padding).mean(0)

    x, y = torch.randn(B, C), torch.randn(B, C)
    check(Rows(rows, layer=nn.Linear), nn.MSELoss(), x, y)
    with pytest.raises(remat.Error, match=r"in forward: aten::embedding .*padding_idx with a weight that is computed"):
        remat.compile(Rows(lambda e, x: rows(e, x, padding_idx=1), layer=nn.Linear), nn.MSELoss(), (x, y))
