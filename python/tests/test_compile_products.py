"""remat.compile: products of computed matrices that are no fused attention, and torch.einsum."""

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


class Layers(nn.Module):
    """A function of linear layers of x, and of other tensors of the batch."""

    def __init__(self, function, count=None):
        super().__init__()
        count = count or function.__code__.co_argcount
        self.layers, self.function = nn.ModuleList(nn.Linear(5, D) for _ in range(count)), function

    def forward(self, x, *rest):
        return self.function(*(layer(x) for layer in self.layers), *rest)


def heads(x):
    return x.unflatten(-1, (2, D // 2)).transpose(1, 2)


MASK = torch.rand(T, T, generator=torch.Generator().manual_seed(1)) > 0.5
KEPT = {  # functions of (B,T,D) three times, whose scores no fused attention makes
    "no softmax": lambda q, k, v: q @ k.mT @ v,
    "keys first": lambda q, k, v: q @ (k.mT @ v) / T,
    "bmm": lambda q, k, v: torch.bmm(torch.bmm(q, k.transpose(1, 2)).relu(), v),
    "sigmoid": lambda q, k, v: (q @ k.mT).sigmoid() @ v,
    "over queries": lambda q, k, v: (q @ k.mT).softmax(1) @ v,
    "scaled after the softmax": lambda q, k, v: (q @ k.mT).softmax(-1) * 0.5 @ v,
    "two softmaxes": lambda q, k, v: (q @ k.mT).softmax(-1).softmax(-1) @ v,
    "a mask after the softmax": lambda q, k, v: (q @ k.mT).softmax(-1).masked_fill(~MASK, 0) @ v,
    "any constant mask": lambda q, k, v: (q @ k.mT + torch.where(MASK | torch.eye(T).bool(), 0.0, -1e9)).softmax(-1) @ v,
    "the same, fused": lambda q, k, v: nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=MASK | torch.eye(T).bool()),
    "a mask that is soon small": lambda q, k, v: (q @ k.mT).masked_fill(~MASK, -1e4).mul(1e-4).softmax(-1) @ v,
    "another mask, filled in": lambda q, k, v: (q @ k.mT).masked_fill(~(MASK | torch.eye(T).bool()), -torch.inf).softmax(-1) @ v,
    "the same, after a tanh": lambda q, k, v: (q @ k.mT).tanh().masked_fill(~(MASK | torch.eye(T).bool()), -torch.inf).softmax(-1) @ v,
    "with heads": lambda q, k, v: (heads(q) @ heads(k).mT).tanh() @ heads(v),
    "probabilities and result": lambda q, k, v: torch.cat([p := (q @ k.mT).softmax(-1), p @ v], -1),
    "talking heads": lambda q, k, v: ((heads(q) @ heads(k).mT).sum(1, keepdim=True) + heads(q) @ heads(k).mT).softmax(-1) @ heads(v),
    "cosines": lambda q, k: nn.functional.normalize(q, dim=-1) @ nn.functional.normalize(k, dim=-1).mT,
    "gram": lambda q: q.mT @ q,
    "with itself": lambda q: q @ q.mT,
    "einsum": lambda q, k: torch.einsum("bqd,bkd->bkq", q, k),
    "outer products": lambda q, k: torch.einsum("btd,bte->bde", q, k),
}


@pytest.mark.parametrize("name", KEPT)
def test_scores_that_no_attention_takes(name):
    x = torch.randn(B, T, 5)
    model = Layers(KEPT[name])
    y = torch.randn(model(x).shape)

    def loss(o, y):
        return (o * y).mean() + 5

    check(model, loss, x, y, slack=4)


@pytest.mark.parametrize("window", [1, 3, T])
def test_sliding_windows_over_time(window):
    """They are fused, so a recurrent layer may read time."""
    seen = torch.ones(T, T).tril().triu(1 - window).bool()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(5, 4, batch_first=True)

        def forward(self, x):
            h = heads(self.rnn(x)[0])
            made = nn.functional.scaled_dot_product_attention(h, h, h, attn_mask=seen)
            return (made + (h @ h.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ h).transpose(1, 2).flatten(2)

    check(Model(), nn.MSELoss(), torch.randn(B, T, 5), torch.randn(B, T, 4))


def test_products_of_timesteps():
    """Each timestep of a recurrent layer has a matrix."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(5, 12, batch_first=True)

        def forward(self, x):
            a, b = self.rnn(x)[0].split(6, -1)
            return a.unflatten(-1, (3, 2)) @ b.unflatten(-1, (2, 3))

    step = check(Model(), nn.MSELoss(), torch.randn(B, T, 5), torch.randn(B, T, 3, 3))
    assert step.plan.timesteps == T


def test_scores_over_time_are_refused():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(5, 4, batch_first=True)

        def forward(self, x):
            h = self.rnn(x)[0]
            return (h @ h.mT).relu() @ h

    with pytest.raises(remat.Error, match="along time can only be attention"):
        remat.compile(Model(), nn.MSELoss(), (torch.randn(B, T, 5), torch.randn(B, T, 4)))


def test_a_layer_of_a_graph():
    """Whose nodes are the rows: the mean of neighbours."""
    adjacency = (torch.rand(7, 7) > 0.5).float()

    def neighbours(q, v, a):
        return a @ q.relu() / (a.sum(1, keepdim=True) + 1) + v

    check(Layers(neighbours, 2), nn.MSELoss(), torch.randn(7, 5), adjacency, torch.randn(7, D))


def test_rows_compared_with_rows():
    def contrast(q, k):
        return nn.functional.cross_entropy(q @ k.T * 2, torch.arange(7))

    check(Layers(contrast), lambda o, y: o * y.mean(), torch.randn(7, 5), torch.ones(7))


MASKS = [torch.tensor([[i >> j & 1 for j in range(k * 3, k * 3 + 3)] for k in range(3)]).bool() for i in range(512)]


@pytest.mark.parametrize("mask", MASKS[::7])
def test_constant_masks(mask):
    """Each is taken for what it is, also one that leaves a query no key."""

    def function(q, k, v):
        return (q @ k.mT).masked_fill(~mask, -1e9).softmax(-1) @ v

    check(Layers(function), nn.MSELoss(), torch.randn(2, 3, 5), torch.randn(2, 3, D), slack=4)


def test_constant_masks_that_leave_a_query_nothing():
    keep = torch.ones(T, T).triu(1).bool()

    def fused(q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)

    with pytest.raises(remat.Error, match="leave each query a key"):
        remat.compile(Layers(fused), nn.MSELoss(), (torch.randn(B, T, 5), torch.randn(B, T, D)))


TWICE = {
    "two masks of queries": lambda f, x, m: f(f(x, m), m),
    "and an ordinary attention": lambda f, x, m: f(nn.functional.scaled_dot_product_attention(x, x, x), m),
    "before an ordinary attention": lambda f, x, m: (x @ f(x, m).mT).softmax(-1) @ x,
    "beside a causal one": lambda f, x, m: f(x, m) + nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True),
}


@pytest.mark.parametrize("name", TWICE)
def test_computed_scores_in_several_layers(name):
    """Where one attention reads time and another cannot, all are computed."""
    mask = torch.rand(B, T, T) > 0.5
    mask |= torch.eye(T).bool()

    def one(x, mask):
        return (x @ x.mT).masked_fill(~mask, -1e9).softmax(-1) @ x

    check(Layers(lambda x, m: TWICE[name](one, x, m), 1), nn.MSELoss(), torch.randn(B, T, 5), mask, torch.randn(B, T, D), slack=4)


@pytest.mark.parametrize("shape", [(B, 1, T), (B, T, T), (B, T, 1), (T, T), (1, T)])
@pytest.mark.parametrize("batch", [B, 1])
def test_a_bias_of_the_batch(shape, batch):
    bias = torch.randn(batch if shape[0] == B else shape[0], *shape[1:])
    check(
        Layers(lambda q, k, v, b: (q @ k.mT + b).softmax(-1) @ v, 3), nn.MSELoss(),
        torch.randn(batch, T, 5), bias, torch.randn(batch, T, D), slack=4,
    )  # fmt: skip


class Weighted(nn.Module):
    """A function of a linear layer and of a parameter, whose axes are all alike."""

    def __init__(self, function, *sizes):
        super().__init__()
        self.linear, self.w, self.function = nn.Linear(4, 4), nn.Parameter(torch.randn(sizes)), function

    def forward(self, x):
        return self.function(self.linear(x), self.w)


WEIGHTS = {  # through views, and of other ranks than the value's
    "conv2d": (lambda h, w: nn.functional.conv2d(h, w.transpose(0, 1), padding=1), (4, 4, 3, 3), (2, 4, 4, 4)),
    "conv2d, planes": (lambda h, w: nn.functional.conv2d(h, w.mT, padding=1), (4, 4, 3, 3), (2, 4, 4, 4)),
    "conv2d, scaled": (lambda h, w: nn.functional.conv2d(h, w.transpose(0, 1) * 2, padding=1), (4, 4, 3, 3), (2, 4, 4, 4)),
    "conv2d, reshaped": (lambda h, w: nn.functional.conv2d(h, w.view(4, 4, 3, 1), padding="same"), (4, 4, 1, 3), (2, 4, 4, 4)),
    "conv2d, a part": (lambda h, w: nn.functional.conv2d(h, w[:2], padding=1), (4, 4, 3, 3), (2, 4, 4, 4)),
    "conv2d, new axes": (lambda h, w: nn.functional.conv2d(h, w[:, :, None, None]), (4, 4), (2, 4, 4, 4)),
    "conv1d": (lambda h, w: nn.functional.conv1d(h, w.transpose(0, 1)), (4, 4, 3), (2, 4, 4)),
    "conv1d, a new axis": (lambda h, w: nn.functional.conv1d(h, w[:, :, None]), (4, 4), (2, 4, 4)),
    "conv_transpose2d": (lambda h, w: nn.functional.conv_transpose2d(h, w.transpose(0, 1)), (4, 4, 3, 3), (2, 4, 4, 4)),
    "layer norm": (lambda h, w: nn.functional.layer_norm(h, (4,), w.view(2, 2).T.reshape(4)), (4,), (2, 4)),
    "shift": (lambda h, w: nn.functional.layer_norm(h, (4,), None, w.view(2, 2).T.reshape(4)), (4,), (2, 4)),
    "group norm": (lambda h, w: nn.functional.group_norm(h, 2, w.view(2, 2).T.reshape(4)), (4,), (2, 4, 4, 4)),
    "bias": (lambda h, w: nn.functional.linear(h, torch.eye(4, dtype=w.dtype), w.view(2, 2).T.reshape(4)), (4,), (2, 4)),
    "a vector": (lambda h, w: (h @ w)[..., None] * h, (4,), (2, 4, 4)),
    "a vector from the left": (lambda h, w: (w @ h)[:, None] * h, (4,), (2, 4, 4)),
    "a row": (lambda h, w: (h @ w[1])[..., None] * h, (4, 4), (2, 4, 4)),
    "from the left": (lambda h, w: w @ h, (4, 4), (2, 4, 4)),
    "learned queries": (lambda h, w: (w @ h.mT).softmax(-1) @ h, (4, 4), (2, 4, 4)),
    "a product": (lambda h, w: h @ (w @ w), (4, 4), (2, 4, 4)),
    "a part": (lambda h, w: h @ w.chunk(2, 0)[1].T, (4, 4), (2, 4, 4)),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_what_their_views_show(name):
    function, sizes, rows = WEIGHTS[name]
    x, model = torch.randn(rows), Weighted(function, *sizes)
    check(model, nn.MSELoss(), x, torch.randn(model(x).shape), slack=4)


def test_masks_of_the_batch_that_are_the_same_for_all_keys():
    def attention(q, k, v, mask):
        return nn.functional.scaled_dot_product_attention(heads(q), heads(k), heads(v), attn_mask=mask).transpose(1, 2).flatten(2)

    check(Layers(attention, 3), nn.MSELoss(), torch.randn(B, T, 5), torch.ones(2, 1, 1).bool(), torch.randn(B, T, D))


def test_masks_of_the_batch_for_each_query():
    mask = torch.rand(B, T, T) > 0.5
    mask |= torch.eye(T).bool()
    x, y = torch.randn(B, T, 5), torch.randn(B, T, D)

    def product(q, k, v, mask):
        return ((q @ k.mT).relu() * mask).softmax(-1) @ v

    def filled(q, k, v, mask):
        return (q @ k.mT).tanh().masked_fill(~mask, -torch.inf).softmax(-1) @ v

    check(Layers(product, 3), nn.MSELoss(), x, mask, y)
    step = check(Layers(filled, 3), nn.MSELoss(), x, mask, y)
    mask[1, 2] = False
    with pytest.raises(remat.Error, match="leave each query a key"):
        step(x, mask, y)


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
