"""remat.compile: losses of single rows or elements, and what users make of them; roots, logarithms, quotients and norms."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch cannot be imported; name a Python that has it in REMAT_TORCH_PYTHON")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import remat  # noqa: E402
from compile_models import LanguageModel, V  # noqa: E402
from test_compile import check, same_bits_in_segments, tokens  # noqa: E402

B, T = 4, 12
LENGTHS = torch.tensor([12, 5, 9, 1])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


def kept():
    return torch.arange(T) < LENGTHS[:, None]


class WithLoss(nn.Module):
    def __init__(self, inner, loss):
        super().__init__()
        self.inner, self.loss = inner, loss

    def forward(self, x, y, *rest):
        return self.loss(self.inner(x), y, *rest)


def rows(o, y, **settings):
    return F.cross_entropy(o.flatten(0, 1), y.flatten(), reduction="none", **settings).view(y.shape)


def class_weights(o):
    return torch.linspace(0.5, 2, V, dtype=o.dtype)


OF_ROWS = {
    "mean": lambda o, y, m: rows(o, y).mean(),
    "sum": lambda o, y, m: rows(o, y).sum() / 40,
    "masked mean": lambda o, y, m: (rows(o, y) * m).sum() / m.sum(),
    "mask of numbers": lambda o, y, m: (rows(o, y) * m.float()).sum() / m.float().sum().clamp(min=1),
    "classes second": lambda o, y, m: (F.cross_entropy(o.transpose(1, 2), y, reduction="none") * m).sum() / m.sum(),
    "mean of each row": lambda o, y, m: ((rows(o, y) * m).sum(1) / m.sum(1)).mean(),
    "flat": lambda o, y, m: (F.cross_entropy(o.flatten(0, 1), y.flatten(), reduction="none") * m.flatten()).sum() / m.sum(),
    "ignored": lambda o, y, m: rows(o, y.masked_fill(~m, -100)).sum() / m.sum(),
    "a class ignored, weights, smoothing": lambda o, y, m: rows(
        o, y.masked_fill(~m, 0), ignore_index=0, weight=class_weights(o), label_smoothing=0.1
    ).mean(),
    "two class weights": lambda o, y, m: (rows(o, y, weight=class_weights(o)) + rows(o, y, weight=class_weights(o).flip(0))).mean(),
    "two ignored classes": lambda o, y, m: (rows(o, y, ignore_index=1) + rows(o, y, ignore_index=2)).mean(),
    "margins": lambda o, y, m: F.multi_margin_loss(o.flatten(0, 1), y.flatten()),
    "margins, squared": lambda o, y, m: F.multi_margin_loss(o.flatten(0, 1), y.flatten(), p=2, margin=0.3, reduction="sum") / 40,
    "reduction=sum": lambda o, y, m: F.cross_entropy(o.flatten(0, 1), y.flatten(), reduction="sum") / m.sum(),
    "focal": lambda o, y, m: ((1 - torch.exp(-rows(o, y))) ** 2 * rows(o, y) * m).sum() / m.sum(),
    "gathered": lambda o, y, m: -(o.log_softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1) * m).sum() / m.sum(),
    "nll": lambda o, y, m: (F.nll_loss(o.log_softmax(-1).transpose(1, 2), y, reduction="none") * m).sum() / m.sum(),
    "soft targets": lambda o, y, m: F.cross_entropy(
        o.flatten(0, 1), F.one_hot(y, V).to(o.dtype).flatten(0, 1) * 0.75 + 0.25 / V, label_smoothing=0.1, weight=class_weights(o)
    ),
    "weights of rows": lambda o, y, m: (rows(o, y) * m.float().mean(1, keepdim=True)).mean(),
}


@pytest.mark.parametrize("name", OF_ROWS)
def test_cross_entropy_of_rows(name):
    step = check(WithLoss(LanguageModel(), OF_ROWS[name]), None, tokens(B, T), tokens(B, T), kept())
    assert step.plan.timesteps == T


def test_weights_of_timesteps_in_the_batch():
    def loss(o, y, w):
        return (rows(o, y) * w).sum() / w.sum()

    check(WithLoss(LanguageModel(), loss), None, tokens(B, T), tokens(B, T), torch.rand(B, T))


def test_rows_of_a_classifier():
    def loss(o, y, w):
        return (F.cross_entropy(o, y, reduction="none") * w).mean()

    check(WithLoss(nn.Linear(5, 3), loss), None, torch.randn(8, 5), torch.arange(8) % 3, torch.rand(8))


def test_single_losses_have_the_bits_of_any_plan():
    same_bits_in_segments(WithLoss(LanguageModel(), lambda o, y: (rows(o, y) * (y != 3)).sum() / (y != 3).sum()), None)


def test_ignored_rows_have_no_gradient_whatever_their_scores_are():
    """A class that the model never gives has the score -inf, and an ignored row's loss is 0."""
    out = torch.tensor([0.0, -torch.inf, 0.0])
    model, x, y = nn.Linear(2, 3), torch.randn(4, 2), torch.tensor([0, -100, 2, -100])

    def loss(o, y):
        return F.cross_entropy(o + out.to(o.dtype), y, reduction="none").sum()

    check(WithLoss(model, loss), None, x, y)


@pytest.mark.parametrize("target", [-1, V])
def test_targets_that_are_no_classes_are_refused(target):
    x, y = tokens(B, T), tokens(B, T)
    step = remat.compile(WithLoss(LanguageModel(), lambda o, y: rows(o, y).mean()), None, (x, y))
    with pytest.raises(remat.Error, match=str(V)):
        step(x, y.index_fill(1, torch.tensor([3]), target))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


OF_ELEMENTS = {
    "mse": lambda o, y, m: (F.mse_loss(o, y, reduction="none") * m[..., None]).sum() / (m.sum() * 2),
    "mse, sum": lambda o, y, m: F.mse_loss(o, y, reduction="sum") / 64,
    "l1": lambda o, y, m: (F.l1_loss(o, y, reduction="none").mean(-1) * m).sum() / m.sum(),
    "smooth l1": lambda o, y, m: (F.smooth_l1_loss(o, y, reduction="none", beta=0.5).sum(-1) * m).sum() / m.sum(),
    "huber": lambda o, y, m: (F.huber_loss(o, y, reduction="none", delta=0.5).mean(-1) * m).sum() / m.sum(),
    "bce": lambda o, y, m: (F.binary_cross_entropy_with_logits(o, y.sigmoid(), reduction="none").sum(-1) * m).sum() / m.sum(),
    "bce, pos_weight": lambda o, y, m: F.binary_cross_entropy_with_logits(
        o, y.sigmoid(), pos_weight=torch.tensor([0.5, 3], dtype=o.dtype), weight=m[..., None].to(o.dtype)
    ),
    "BCELoss": lambda o, y, m: nn.BCELoss()(torch.sigmoid(o), y.sigmoid()),
    "BCELoss of the last steps": lambda o, y, m: F.binary_cross_entropy(o.sigmoid().transpose(0, 1)[-1].squeeze(-1)[:, 0], y[:, -1, 0].sigmoid()),
    "BCELoss, none": lambda o, y, m: (F.binary_cross_entropy(o.sigmoid(), y.sigmoid(), weight=y.exp(), reduction="none").sum(-1) * m).sum(),
    "KL": lambda o, y, m: F.kl_div(o.log_softmax(-1), torch.where(y > 0, y, 0.0), reduction="batchmean"),
    "KL of logarithms": lambda o, y, m: (F.kl_div(o.log_softmax(-1), y.log_softmax(-1), reduction="none", log_target=True).sum(-1) * m).mean(),
    "KL of what is computed": lambda o, y, m: F.kl_div(o.log_softmax(-1), (o * y).log_softmax(-1), log_target=True, reduction="sum"),
    "Poisson": lambda o, y, m: F.poisson_nll_loss(o, (y * 3).abs()),
    "Poisson, rates": lambda o, y, m: (F.poisson_nll_loss(o.exp(), y.abs(), log_input=False, reduction="none").sum(-1) * m).mean(),
    "soft margin": lambda o, y, m: F.soft_margin_loss(o, (y > 0) * 2.0 - 1),
    "hinge embedding": lambda o, y, m: F.hinge_embedding_loss(o, (y > 0) * 2.0 - 1, margin=0.2, reduction="sum"),
    "margin ranking": lambda o, y, m: F.margin_ranking_loss(o[..., 0], o[..., 1], (y[..., 0] > 0) * 2.0 - 1, margin=0.1),
    "triplets": lambda o, y, m: F.triplet_margin_loss(o, y, o * y, margin=0.5, swap=True),
    "cosine embedding": lambda o, y, m: F.cosine_embedding_loss(o.flatten(0, 1), (o * y).flatten(0, 1), m.flatten() * 2 - 1, margin=0.2),
    "by hand": lambda o, y, m: ((o - y) ** 2).mean() + (o - y).abs().sum((1, 2)).mean(),
    "means of rows": lambda o, y, m: (((o - y) ** 2).mean(2) * m).sum(1).div(m.sum(1)).mean(),
    "root of the mean": lambda o, y, m: ((o - y) ** 2).mean().sqrt(),
    "mean of roots": lambda o, y, m: ((o - y) ** 2).mean((1, 2)).sqrt().mean(),
    "targets above 0": lambda o, y, m: (((o - y) ** 2) * (y > 0)).sum() / (y > 0).sum(),
    "over the batch": lambda o, y, m: ((o - y) ** 2).mean((0, 1)).log().sum(),
}


@pytest.mark.parametrize("name", OF_ELEMENTS)
def test_losses_of_elements(name):
    check(WithLoss(Recurrent(), OF_ELEMENTS[name]), None, torch.randn(B, T, 4), torch.randn(B, T, 2), kept())


def test_poisson_loss_with_stirlings_formula():
    counts = torch.tensor([[0.0, 1, 2], [3, 9, 100]])
    check(nn.Linear(2, 3), lambda o, y: F.poisson_nll_loss(o, y, full=True), torch.randn(2, 2), counts)


def test_probabilities_that_round_to_0_and_1_have_their_logits_loss():
    """log(1 - sigmoid(30)) is -30; of the probability, which rounds to 1, PyTorch makes -100."""
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(30)
    step = remat.compile(WithLoss(model, lambda o, y: nn.BCELoss()(o.sigmoid(), y)), None, (torch.ones(1, 1), torch.zeros(1, 1)))
    assert float(step(torch.ones(1, 1), torch.zeros(1, 1))) == pytest.approx(30)
    assert float(model.weight.grad) == pytest.approx(1)


def test_targets_that_are_missing_may_be_NaN():
    def loss(o, y):
        known = ~y.isnan()
        return ((o - y.nan_to_num()) ** 2 * known).sum() / known.sum()

    y = torch.randn(B, T, 2)
    check(WithLoss(Recurrent(), loss), None, torch.randn(B, T, 4), y.masked_fill(y > 1, torch.nan))


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, y: F.l1_loss(o, y, reduction="none").sum(),
        lambda o, y: F.huber_loss(o, y, reduction="none", delta=2).sum(),
        lambda o, y: F.binary_cross_entropy_with_logits(o * 60, y.clamp(0, 1), reduction="none").sum(),
    ],
)
def test_single_losses_at_corners(loss):
    """No difference, one of delta, and logits far from 0."""
    model = nn.Linear(1, 4)
    with torch.no_grad():
        model.weight.zero_()
        model.bias[:] = torch.tensor([0.0, 2, -2, 1])
    check(WithLoss(model, loss), None, torch.ones(2, 1), torch.tensor([0.0, 0, 0, 1]).repeat(2, 1))


ELEMENTWISE = {
    "F.normalize": lambda x: F.normalize(x, dim=-1),
    "divided by the norm": lambda x: x / x.norm(dim=-1, keepdim=True),
    "divided by the sum of absolute values": lambda x: x / x.norm(p=1, dim=-1, keepdim=True),
    "RMS norm by hand": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "RMS norm by a root": lambda x: x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "layer norm by hand": lambda x: (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5),
    "standardised": lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5),
    "softmax by hand": lambda x: torch.exp(x) / torch.exp(x).sum(-1, keepdim=True),
    "log-softmax by hand": lambda x: x - x.logsumexp(-1, keepdim=True),
    "logsumexp": lambda x: x * torch.logsumexp(x * 3, dim=(-1,)).unsqueeze(-1),
    "stable softmax by hand": lambda x: (e := torch.exp(x - x.max(-1, keepdim=True).values)) / e.sum(-1, keepdim=True),
    "logarithms": lambda x: torch.log(x.abs() + 1) + torch.log2(x * x + 1) + torch.log10(x * x + 2),
    "powers": lambda x: (x * x + 1) ** 0.5 + (x * x + 1) ** -0.5 + (x * x + 1) ** -1,
    "reciprocals": lambda x: 2 / (1 + x * x) + torch.reciprocal(2 + x * x) + torch.arange(1.0, 7, dtype=x.dtype) / (1 + x * x),
    "softsign": lambda x: x / (1 + x.abs()),
    "larger and smaller": lambda x: torch.maximum(x, x * x) + torch.minimum(x * 2, x * x - 1) + x.amin(-1, keepdim=True),
    "minimum": lambda x: x + x.min(-1, keepdim=True).values + torch.min(x, x * x),
    "between": lambda x: torch.lerp(x, x * x, 0.3) + torch.addcmul(x, x, x, value=0.5) + torch.addcdiv(x, x, x * x + 1),
    "powers of 2": lambda x: torch.exp2(x) + torch.logaddexp(x, x * x),
    "differences": lambda x: torch.cat([x.diff(dim=-1), x.diff(2, dim=-1)[..., :2]], -1)[..., :6],
    "running sums": lambda x: x.cumsum(-1) * 0.5 + x.cumsum(1) * 0.1,
    "repeated": lambda x: x[..., :3].repeat_interleave(2, -1) + torch.tile(x[..., 2:4], (3,)) + x[..., 4:].repeat(*[1] * (x.dim() - 1), 3),
    "cosine similarity": lambda x: x * F.cosine_similarity(x, x * x - 0.3, dim=-1).unsqueeze(-1),
    "distance": lambda x: x * F.pairwise_distance(x, x * x, keepdim=True),
    "comparisons": lambda x: torch.where(x > 0.1, x, 2 * x) + torch.where(x * x >= x, x * x, 1.0) + (x < 0).to(x.dtype) * x * 3,
    "masks": lambda x: x.masked_fill(~((x > 0.2) & (x * 2 < 1.5)) | (x == 0), 0.7) + x * (x != x * x) + x * (x.abs() <= 0.3).sum(-1, keepdim=True),
    "masks of the batch": lambda x: x * ((x > 0) & torch.tensor([True, False, True, True, False, True])) + torch.sign(x) * x * x,
    "hard shrinking, thresholds": lambda x: F.hardshrink(x, 0.3) + F.threshold(x, 0.1, 2.0),
    "triangles": lambda x: torch.cat([half(x[..., :3, None] * x[..., None, 2:]).sum(-1) for half in (torch.tril, torch.triu)], -1),
}


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_functions(name, timed):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.GRU(4, 6, batch_first=True) if timed else nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x):
            h = self.first(x)
            return self.last(ELEMENTWISE[name](h[0] if timed else h))

    lead = (3, 9) if timed else (7,)
    check(Model(), nn.MSELoss(), torch.randn(*lead, 4), torch.randn(*lead, 3))


@pytest.mark.parametrize("function", [lambda x: F.normalize(x, dim=-1), lambda x: x.norm(dim=-1), lambda x: x.std(-1)])
def test_norms_of_zeros_have_pytorchs_gradients(function):
    """Rows of zeros, as padding makes them: no gradient through the norm, and one of 1/eps past it."""
    model = nn.Linear(3, 4, bias=False)
    x = torch.tensor([[0.0, 0, 0], [1, 2, 3]])

    def loss(o, y):
        return (function(o * y) * 1e-6).sum()

    check(WithLoss(model, loss), None, x, torch.ones(2, 4))


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda o, y: F.kl_div(o.log_softmax(-1), o.softmax(-1), reduction="sum"), "kl_div.*log_target"),
        (lambda o, y: F.binary_cross_entropy(o.softmax(-1), y.sigmoid()), "binary_cross_entropy.*sigmoid"),
        (lambda o, y: F.binary_cross_entropy(o.sigmoid() * 0.5, y.sigmoid()), "binary_cross_entropy.*sigmoid"),
        (lambda o, y: (o - y).norm(p=3), "order 3"),
        (lambda o, y: ((o - y) ** 1.5).sum(), "power of 1.5"),
        (lambda o, y: (o - y).mean(0).sum(), "the batch is reduced together with time"),
        (lambda o, y: torch.div(o, y, rounding_mode="floor").sum(), "rounds"),
        (lambda o, y: o.clamp(max=y).sum(), "bounds"),
        (lambda o, y: o.gather(-1, (y > 0).long()).sum(), "gather"),
        (lambda o, y: F.mse_loss(o, y, reduction="none"), "scalar"),
        (lambda o, y: (o[:, :, 0] * y.clone().unsqueeze_(1).sum(1).sum(-1)).sum(), "in place"),
        (lambda o, y: (o.sum((1, 2)) * (y.transpose_(1, 2) > 0).sum((1, 2))).sum(), "in place"),
    ],
)
def test_other_losses_are_refused(loss, words):
    with pytest.raises(remat.Error, match=words):
        remat.compile(WithLoss(Recurrent(), loss), None, (torch.randn(B, T, 4), torch.randn(B, T, 2)))


@pytest.mark.parametrize("transposed", [False, True])
def test_ctc_reads_targets_as_their_views_show_them(transposed):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(4, 6)

        def forward(self, x, y, lengths):
            return F.ctc_loss(self.rnn(x)[0].log_softmax(-1), y.T if transposed else y, torch.tensor([9] * 3), lengths)

    check(Model(), None, torch.randn(9, 3, 4), torch.tensor([[1, 2, 3], [4, 5, 1], [2, 4, 3]]), torch.tensor([3, 2, 3]))
