"""remat.compile: constants that vary along time, expanded tensors, reshapes and indices, and attention beside layers that read
all of its axis."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="torch cannot be imported; name a Python that has it in REMAT_TORCH_PYTHON")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import remat  # noqa: E402
from test_compile import check  # noqa: E402

B, T, C, H = 3, 7, 8, 2


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


class Net(nn.Module):
    """A function of the result of a layer."""

    def __init__(self, function, recurrent=False):
        super().__init__()
        self.first = nn.LSTM(C, C, batch_first=True) if recurrent else nn.Linear(C, C)
        self.inner, self.bias, self.table = nn.Linear(C, C), nn.Parameter(torch.randn(1, C)), nn.Parameter(torch.randn(T, C))
        self.frozen = nn.Parameter(torch.randn(T, 1), requires_grad=False)
        self.register_buffer("angles", torch.randn(T, 1))
        self.function = function

    def forward(self, x, *more):
        y = self.first(x)
        unused = 0 * sum(p.sum() for p in (self.inner.weight, self.inner.bias, self.bias, self.table))
        return self.function(self, y[0] if isinstance(y, tuple) else y, *more) + unused


ALONG_TIME = {
    "of features": lambda m, h: h * torch.linspace(0, 1, T)[:, None] + m.inner(h),
    "of each feature": lambda m, h: h * torch.arange(T * C).reshape(T, C).sin(),
    "that is added": lambda m, h: h + torch.linspace(0, 1, T)[:, None] + m.angles,
    "beside padding of features": lambda m, h: F.pad(h, (2, -2)) * torch.linspace(0, 1, T)[:, None],
    "of single numbers": lambda m, h: m.inner(h).sum(-1) * torch.linspace(0, 1, T),
    "that is subtracted": lambda m, h: torch.linspace(0, 1, T)[None, :, None] - h,
    "a frozen parameter": lambda m, h: m.inner(h) * m.frozen,
    "a trained parameter": lambda m, h: m.inner(h) * m.table,
    "of some parameter": lambda m, h: h / (1 + m.table[:, :1].square()),
    "a buffer, of features and of heads": lambda m, h: (m.inner(h) * m.angles).unflatten(-1, (2, -1)).transpose(1, 2).mul(m.angles).transpose(1, 2).flatten(-2),
    "a mask": lambda m, h: torch.where(torch.arange(T)[:, None] % 2 == 0, h, m.inner(h)),
    "expanded along time": lambda m, h: m.inner(h * m.bias.expand(T, C)),
}


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("name", ALONG_TIME)
def test_a_constant_along_time(name, recurrent):
    net = Net(ALONG_TIME[name], recurrent)
    x = torch.randn(B, T, C)
    step = check(net, lambda y, target: (y * target[..., 0]).square().mean() if y.dim() == 2 else F.mse_loss(y, target), x, torch.randn(B, T, C), slack=4)
    assert ("7 timesteps" in str(step.plan)) == recurrent


def test_positions_of_the_batch_without_rows():
    def turned(m, h, at):
        return F.mse_loss(m.inner(h) * at[:, None].float().cos(), h)

    check(Net(turned, recurrent=True), None, torch.randn(B, T, C), torch.arange(T))


SHAPES = {
    "an expanded tensor in a linear layer": lambda m, h: m.inner(m.bias.expand(B, C)) + h[:, 0],
    "an expanded tensor that is returned": lambda m, h: m.bias.expand(B, C) + 0 * h[:, 0],
    "rows that repeat": lambda m, h: m.inner(h.mean(1, keepdim=True).expand(B, T, C)),
    "heads that repeat": lambda m, h: m.inner(h.reshape(B, T, 4, 2)[:, :, :, None].expand(B, T, 4, 2, 2).reshape(B, T, 16)[..., :C]),
    "products whose first axes repeat": lambda m, h: h @ m.inner(h[:1]).transpose(1, 2),
    "a reshape that mixes axes": lambda m, h: m.inner(F.pad(h, (1, 0)).reshape(B, C + 1, T)[:, 1:].reshape(B, T, C)),
    "relative shift": lambda m, h: F.pad(h @ h.transpose(1, 2), (1, 0)).view(B, T + 1, T)[:, 1:].view(B, T, T) @ h,
    "a constant index": lambda m, h: m.inner(h[:, :, [3, 4, 0, 0, 7, 6, 1, 2]]),
    "an index of one": lambda m, h: torch.cat([h[..., [-2]], h[..., :-1]], -1),
    "elements by a constant": lambda m, h: m.inner(h).gather(-1, torch.tensor([[7, 0], [1, 1], [0, 2], [3, 5], [6, 4], [2, 2], [5, 7]]).expand(B, T, 2)),
    "elements of each, transposed": lambda m, h: (h @ h.mT).gather(-1, torch.arange(T * T).reshape(T, T).fmod(5).expand(B, T, T)).mT + h @ h.mT,
    "index_select": lambda m, h: h.index_select(1, torch.tensor([0, 2, 1])),
    "flipped features": lambda m, h: m.inner(h.flip(-1)) * h.flip(1, 2),
    "an empty slice": lambda m, h: torch.cat([m.inner(h)[..., :C], h[..., C:]], -1),
    "padding of the first axes": lambda m, h: F.pad(h, (0, 0, 1, 0, 0, 2), value=0.5),
    "empty tensors": lambda m, h: torch.cat([h[..., :0], h, torch.zeros(B, T, 0)], -1),
    "negative padding": lambda m, h: F.pad(h, (-1, 1, 1, -1)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    check(Net(lambda m, h: SHAPES[name](m, h)), lambda y, scale: (y.sin() * scale).mean(), torch.randn(B, T, C), torch.randn(1))


MERGED = {  # of h (B,T,C): right, or refused, never taken for the features alone
    "a mean of rows": lambda h: h.flatten(1).mean(1),
    "a mean that is kept": lambda h: h.flatten(1) * h.flatten(1).mean(1, keepdim=True),
    "a sum of heads and time": lambda h: h.reshape(B, T * 2, C // 2).sum(1),
    "rows and heads, averaged": lambda h: h.unflatten(-1, (2, -1)).transpose(1, 2).flatten(0, 1).mean(0),
    "a norm": lambda h: h.flatten(1).norm(dim=1),
    "a standard deviation": lambda h: h.flatten(1).std(1),
    "einsum": lambda h: torch.einsum("bi,bi->b", h.flatten(1), h.flatten(1)),
    "normalize": lambda h: F.normalize(h.flatten(1)),
    "cosine similarity": lambda h: F.cosine_similarity(h.flatten(1), h.flatten(1).cos()),
    "a distance": lambda h: F.pairwise_distance(h.flatten(1), h.flatten(1).cos()),
    "softmax": lambda h: h.flatten(1).softmax(1),
    "log softmax": lambda h: h.flatten(1).log_softmax(1),
    "softmax of all": lambda h: h.reshape(-1).softmax(0),
    "softmax of rows and heads": lambda h: h.unflatten(-1, (2, -1)).transpose(1, 2).flatten(0, 1).softmax(0),
    "a running sum": lambda h: h.flatten(1).cumsum(1),
    "a running maximum": lambda h: h.flatten(1).cummax(1)[0],
    "a maximum": lambda h: h.flatten(1).amax(1),
    "a slice": lambda h: h.flatten(1)[:, :2],
    "an element": lambda h: h.flatten(1)[:, 3],
    "an index": lambda h: h.flatten(1)[:, [0, 2, 3]],
    "a flip": lambda h: h.flatten(1).flip(1),
    "a mean over rows of a stack": lambda h: torch.stack([h, 2 * h], 2).flatten(1, 2).mean(1),
    "a concatenation": lambda h: torch.cat([h.flatten(1), h.flatten(1).cos()], 1),
    "a gathered element": lambda h: h.flatten(1).gather(1, torch.tensor([[3], [1], [20]])),
    "a weight of each element": lambda h: h.flatten(1) * torch.arange(T * C),
    "one row for all": lambda h: h.flatten(0, 1).mean(0),
}


@pytest.mark.parametrize("reads_time", ["lstm", "attention"])
@pytest.mark.parametrize("name", MERGED)
@pytest.mark.filterwarnings("ignore:attention's scores")
def test_axes_of_which_time_is_a_factor(name, reads_time):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.LSTM(C, C, batch_first=True) if reads_time == "lstm" else nn.MultiheadAttention(C, H, batch_first=True)

        def forward(self, x, scale):
            h = self.first(x)[0] if reads_time == "lstm" else self.first(x, x, x, need_weights=False)[0]
            return (MERGED[name](h) * scale).sin().mean()

    try:
        check(Model(), None, torch.randn(B, T, C), torch.randn(1), slack=4)
    except remat.Error as refused:
        assert "cannot be translated" in str(refused)
        assert not any(word in name for word in ("mean", "sum of", "norm", "deviation", "einsum", "similarity", "distance"))


def test_batches_of_one_row():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.scale = nn.MultiheadAttention(C, H, batch_first=True), nn.Parameter(torch.randn(T, C))

        def forward(self, x, mask):
            return x + self.attention(x, x, x, need_weights=False)[0] * self.scale * mask[:, None] * torch.linspace(0, 1, T)[:, None]

    for rows in (1, B):
        step = check(Model(), F.mse_loss, torch.randn(rows, T, C), torch.ones(T), torch.randn(rows, T, C))
    step(torch.randn(1, T, C), torch.ones(T), torch.randn(1, T, C))


def test_one_constant_along_time_and_elsewhere():
    def function(m, h, target):
        c, few = torch.linspace(0, 1, T)[:, None], (torch.arange(T) % 2 == 0)[:, None]
        return F.mse_loss(torch.where(few, h, m.inner(h)).masked_fill(~few, 0.3) * c, target) + (c * m.table).sum()

    check(Net(function, recurrent=True), None, torch.randn(B, T, C), torch.randn(B, T, C))


@pytest.mark.parametrize("again", [lambda h: h.expand(-1, T, -1), lambda h: h.repeat(1, T, 1), lambda h: h.repeat_interleave(T, 1)])
def test_a_decoder_that_reads_the_last_state_again_and_again(again):
    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.LSTM(C, 6, batch_first=True), nn.LSTM(6, C, batch_first=True)

        def forward(self, x):
            last = self.encoder(x)[1][0][-1]
            return self.decoder(again(last.unsqueeze(1)))[0]

    x = torch.randn(B, T, C)
    check(Autoencoder(), F.mse_loss, x, x)


def test_dropout_of_an_expanded_tensor_draws_for_each_copy():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1, 8))

        def forward(self, x):
            return (F.dropout(self.w.expand(64, 8), 0.5) * x).sum()

    model, x = Model(), torch.ones(64, 8)
    remat.compile(model, None, (x,))(x)
    assert ((model.w.grad > 20) & (model.w.grad < 108)).all() and model.w.grad.unique().numel() > 3


def heads(x):
    return x.unflatten(-1, (H, C // H)).transpose(1, 2)


def rotated(x, scale):
    """Rotary positions whose frequencies are scaled, as in Llama 3.1."""
    width = C // H
    speed = 10000 ** (-torch.arange(0, width, 2, dtype=x.dtype) / width) / scale
    angle = (torch.arange(x.shape[-2])[:, None] * speed).repeat(1, 2)
    return x * angle.cos() + torch.cat([-x[..., width // 2 :], x[..., : width // 2]], -1) * angle.sin()


def rotated_in_pairs(x, scale):
    """Of neighbouring features, as complex numbers."""
    width = C // H
    speed = 10000 ** (-torch.arange(0, width, 2) / width) / scale
    angle = torch.outer(torch.arange(x.shape[-2]), speed).to(x.dtype)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(2 * pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


def rotated_by_joined_halves(x, scale):
    width = C // H
    angle = torch.outer(torch.arange(x.shape[-2]), 10000 ** (-torch.arange(0, width, 2) / width)).to(x.dtype)
    cos, sin = torch.cat([angle.cos(), angle.cos()], -1), torch.cat([angle.sin(), angle.sin()], -1)
    return x * cos + torch.cat([-x[..., width // 2 :], x[..., : width // 2]], -1) * sin


@pytest.mark.parametrize("rotate", [rotated, rotated_in_pairs, rotated_by_joined_halves])
def test_rotary_positions_of_any_frequencies(rotate):
    def attention(m, h, target):
        q, k = (rotate(heads(x), scale) for x, scale in ((h, 4.0), (m.inner(h), 4.0)))
        y = F.scaled_dot_product_attention(q, k, heads(h), is_causal=True).transpose(1, 2).flatten(2)
        return F.mse_loss(y, target)

    step = check(Net(attention), None, torch.randn(B, T, C), torch.randn(B, T, C))
    assert "7 timesteps" in str(step.plan)  # cut into tiles
    step(torch.randn(B, 5, C), torch.randn(B, 5, C))  # the angles of another length


@pytest.mark.parametrize("around", [
    lambda m, h: m.conv(h.transpose(1, 2)).transpose(1, 2),
    lambda m, h: h[:, 2:],
    lambda m, h: h.softmax(1),
])  # fmt: skip
def test_attention_beside_a_layer_that_reads_all_of_its_axis(around):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.qkv = nn.Conv1d(C, C, 3, padding=1), nn.Linear(C, 3 * C)

        def forward(self, x):
            q, k, v = (heads(y) for y in self.qkv(x).chunk(3, -1))
            unused = 0 * sum(p.sum() for p in self.conv.parameters())
            return around(self, F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)) + unused

    def loss(y, scale):
        return (y * scale).square().mean()

    with pytest.warns(UserWarning, match="attention's scores are kept as tensors, .*not cut into tiles") as given:
        check(Block(), loss, torch.randn(B, T, C), torch.randn(1))
    assert given[0].filename == check.__code__.co_filename


def test_what_is_refused_with_and_without_tiles_is_refused_for_the_first_reason():
    def function(m, h):
        y = F.scaled_dot_product_attention(h, h, h, is_causal=True)
        return torch.sort(y[:, 1:2], -1)[0]

    with pytest.raises(remat.Error, match="aten::slice"):
        remat.compile(Net(function), nn.MSELoss(), (torch.randn(B, T, C), torch.randn(B, T, C)))


def test_soft_capped_scores_of_grouped_queries():
    """Gemma 2: tanh of scores, two heads of queries for one of keys, rotary positions."""

    def attention(m, h, target):
        q, k = rotated(heads(h), 1.0), rotated(heads(m.inner(h)), 1.0)[:, :1].expand(B, H, T, C // H)
        scores = torch.tanh(q @ k.transpose(2, 3) / 5) * 5
        scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -1e9)
        return F.mse_loss((scores.softmax(-1) @ heads(h)).transpose(1, 2).flatten(2), target)

    with pytest.warns(UserWarning, match="attention's scores"):
        check(Net(attention), None, torch.randn(B, T, C), torch.randn(B, T, C))


@pytest.mark.parametrize("beta", [0, 0.5, 1, 2])
@pytest.mark.parametrize("bias", ["parameter", "mask"])
def test_baddbmm_scales_what_it_adds(beta, bias):
    def attention(m, h, target):
        added = m.table[:, :T].expand(1, T, T) if bias == "parameter" else torch.arange(T * T).reshape(1, T, T).to(h.dtype).cos()
        return F.mse_loss(torch.baddbmm(added, m.inner(h), h.transpose(1, 2), beta=beta, alpha=0.3).softmax(-1) @ h, target)

    check(Net(attention), None, torch.randn(B, T, C), torch.randn(B, T, C))


def test_constants_of_equal_sizes_are_told_apart():
    """A constant that is made for one layer must not be taken for that of another, whose memory it got."""
    layers = [[nn.Conv2d(C, C, 1), nn.GroupNorm(2, C, affine=False), nn.InstanceNorm2d(C)] for _ in range(4)]
    net = nn.Sequential(*(layer for group in layers for layer in group), nn.Flatten(), nn.Linear(C * 9, 2))
    check(net, nn.CrossEntropyLoss(), torch.randn(B, C, 3, 3), torch.tensor([0, 1, 1]))


def test_functions_of_computed_values():
    def function(m, h, target):
        z = m.inner(h)
        y = z.sin() + (3 * z).cos() * torch.erf(h) + torch.log1p(h.square()) - torch.expm1(-z.square()) + torch.maximum(z, torch.tensor(0.1))
        return F.mse_loss(y.minimum(torch.tensor(2.0)) + z.clip(-1, 1).multiply(h).subtract(z).divide(2 + math.pi), target)

    for recurrent in (False, True):
        check(Net(function, recurrent), None, torch.randn(B, T, C), torch.randn(B, T, C))
