"""remat.compile: models that resemble supported ones, and would have other gradients if they were taken for them."""

from __future__ import annotations

import logging
import math

import pytest

torch = pytest.importorskip("torch", reason="torch cannot be imported; name a Python that has it in REMAT_TORCH_PYTHON")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence  # noqa: E402

import remat  # noqa: E402
from test_compile import check  # noqa: E402

B, T, C, V = 3, 7, 4, 5


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


class Attention(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(C, C) for _ in range(3))
        self.weights = weights

    def forward(self, x, *masks):
        return self.weights(self.q(x) @ self.k(x).mT, *masks) @ self.v(x)


CAUSAL = torch.ones(T, T).tril().bool()


def test_another_mask_than_of_attention_is_finite():
    def weights(s):
        return (s.softmax(-1).masked_fill(~CAUSAL, -math.inf)).exp()

    with pytest.raises(remat.Error, match="write a finite number"):
        remat.compile(Attention(weights), nn.MSELoss(), (torch.randn(B, T, C), torch.randn(B, T, C)))


@pytest.mark.parametrize(
    "weights",
    [
        lambda s: (s.masked_fill(~CAUSAL, -math.inf) * 0.25).softmax(-1) * 1,
        lambda s: (s.masked_fill(~CAUSAL, -1e9) / 8).softmax(-1),
        lambda s: (s * 0.5 + torch.zeros(T, T).masked_fill(~CAUSAL, -1e9)).softmax(-1),
    ],
)
def test_masks_before_the_scale_are_translated(weights):
    check(Attention(weights), nn.MSELoss(), torch.randn(B, T, C), torch.randn(B, T, C))


def test_a_scale_of_zero_is_no_default():
    class Model(Attention):
        def forward(self, x):
            return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), scale=0.0)

    check(Model(None), nn.MSELoss(), torch.randn(B, T, C), torch.randn(B, T, C))


def test_two_embeddings_of_the_same_tokens_have_their_own_padding():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Embedding(V, C, padding_idx=0), nn.Embedding(V, C, padding_idx=1)

        def forward(self, tokens):
            h = self.one(tokens) + self.other(tokens)
            return h @ self.one.weight.T + h @ self.other.weight.T

    check(Model(), lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()), torch.arange(B * T).reshape(B, T) % V, torch.zeros(B, T).long())


def test_two_masks_of_the_batch_and_their_union():
    def both(s, one, other):
        return s.masked_fill(one[:, None], -1e9).masked_fill(other[:, None], -1e9).softmax(-1)

    def union(s, one, other):
        return s.masked_fill((one | other)[:, None], -1e9).softmax(-1)

    masks = [torch.arange(T)[None] == torch.tensor(at)[:, None] for at in ((1, 2, 6), (0, 4, 5))]
    x, y = torch.randn(B, T, C), torch.randn(B, T, C)
    check(Attention(both), nn.MSELoss(), x, *masks, y)
    check(Attention(union), nn.MSELoss(), x, *masks, y)


class Scored(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(C, V), function

    def forward(self, x):
        return self.function(self.linear(x))


@pytest.mark.parametrize(
    "scores",
    [
        lambda x: x,
        F.logsigmoid,
        lambda x: x.log_softmax(0),
        lambda x: 2 * x.log_softmax(1),
        lambda x: x.log_softmax(1) + torch.linspace(0, 1, V),
        lambda x: (x.log_softmax(1) + (2 * x).log_softmax(1)) / 2,
        lambda x: torch.cat([x, x], 1).log_softmax(1)[:, :V],
    ],
)
def test_nll_loss_of_something_else_than_log_softmax_is_refused(scores):
    with pytest.raises(remat.Error, match="log_softmax"):
        remat.compile(Scored(scores), nn.NLLLoss(), (torch.randn(6, C), torch.randint(V, (6,))))


def test_nll_loss_follows_views_and_the_last_timestep():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.linear = nn.GRU(C, C), nn.Linear(C, V)

        def forward(self, x):
            return self.linear(self.rnn(x)[0]).log_softmax(-1)[-1]

    check(Last(), nn.NLLLoss(), torch.randn(T, B, C), torch.randint(V, (B,)))
    planes = Scored(lambda x: x.log_softmax(-1).permute(0, 2, 1))
    check(planes, nn.NLLLoss(), torch.randn(B, T, C), torch.randint(V, (B, T)))
    rows = Scored(lambda x: x.log_softmax(-1).flatten(0, 1))
    check(rows, nn.NLLLoss(), torch.randn(B, T, C), torch.randint(V, (B * T,)))


def test_ctc_loss_of_scores_without_log_softmax_is_refused():
    def loss(scores, targets):
        return F.ctc_loss(scores, targets, torch.full((B,), T), torch.full((B,), 2))

    batch = torch.randn(T, B, C), torch.randint(1, V, (B, 2))
    check(Scored(lambda x: x.log_softmax(-1)), loss, *batch)
    with pytest.raises(remat.Error, match="log_softmax"):
        remat.compile(Scored(lambda x: x), loss, batch)


@pytest.mark.parametrize("layer", [nn.GRU, nn.RNN])
def test_initial_states_of_packed_bidirectional_layers_are_refused(layer):
    class Model(nn.Module):
        def __init__(self, bidirectional):
            super().__init__()
            self.rnn, self.linear = layer(C, C, bidirectional=bidirectional), nn.Linear(C * (1 + bidirectional), V)

        def forward(self, x, lengths, h):
            y, _ = self.rnn(pack_padded_sequence(x, lengths, enforce_sorted=False), h)
            return self.linear(pad_packed_sequence(y, total_length=T)[0]).flatten(0, 1)

    x, lengths, y = torch.randn(T, B, C), torch.tensor([7, 1, 4]), torch.randint(V, (T * B,))
    with pytest.raises(remat.Error, match="initial states"):
        remat.compile(Model(True), nn.CrossEntropyLoss(), (x, lengths, torch.randn(2, B, C), y))
    check(Model(False), nn.CrossEntropyLoss(), x, lengths, torch.randn(1, B, C), y)


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clamp(0, 1)

    @staticmethod
    def backward(context, gradient):
        return gradient


def scales_gradient(x):
    x.register_hook(lambda gradient: 5 * gradient)
    return x


@pytest.mark.parametrize(("function", "words"), [(Straight.apply, "Straight"), (scales_gradient, "register_hook")])
def test_backwards_of_ones_own_are_refused(function, words):
    model, x, y = Scored(function), torch.randn(6, C), torch.randint(V, (6,))
    with pytest.raises(remat.Error, match=words):
        remat.compile(model, nn.CrossEntropyLoss(), (x, y))
    F.cross_entropy(model(x), y).backward()  # both still work outside
    assert model.linear.weight.grad.any()


class Unseeing(nn.Module):
    """A padding mask, of which the test pads all keys, or the first ones of causal attention."""

    def __init__(self, fill, causal, written_out):
        super().__init__()
        self.q, self.fill, self.causal, self.written_out = nn.Linear(C, C), fill, causal, written_out

    def forward(self, x, padding):
        q, mask = self.q(x), padding[:, None] | ~CAUSAL if self.causal else padding[:, None]
        if self.written_out:
            return (q @ q.mT).masked_fill(mask, self.fill).softmax(-1) @ q
        if self.fill == -math.inf:
            return F.scaled_dot_product_attention(q, q, q, ~mask)
        return F.scaled_dot_product_attention(q, q, q, torch.zeros(mask.shape, dtype=q.dtype).masked_fill(mask, self.fill))


@pytest.mark.parametrize("written_out", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("fill", [-1e9, -math.inf])
def test_queries_that_see_no_key_are_refused_or_zero_as_in_pytorch(fill, causal, written_out):
    x, y, padding = torch.randn(B, T, C), torch.randn(B, T, C), torch.zeros(B, T, dtype=torch.bool)
    model = Unseeing(fill, causal, written_out)
    step = remat.compile(model, nn.MSELoss(), (x, padding, y))
    padding[1, : 2 if causal else T] = True
    if fill == -math.inf and not written_out:
        check(model, nn.MSELoss(), x, padding, y)
    else:
        with pytest.raises(remat.Error, match="batch row 1 .* (NaN|average)"):
            step(x, padding, y)


class Recurrent(nn.Module):
    """A layer on a recurrent layer's output, all of whose axes have the same size: shapes cannot tell them apart."""

    def __init__(self, function, *layers):
        super().__init__()
        self.rnn, self.linear, self.layer = nn.GRU(C, C, batch_first=True), nn.Linear(C, C), nn.Sequential(*layers)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def over_time(m, x):
    return m.layer(m.rnn(x)[0].transpose(1, 2)).transpose(1, 2)


def over_features(m, x):
    return m.layer(m.rnn(x)[0])


@pytest.mark.parametrize(
    ("function", "layer", "words"),
    [
        (over_time, nn.LayerNorm(C), "layer_norm.* is time"),
        (over_time, nn.RMSNorm(C), "rms_norm.* is time"),
        (over_time, nn.GroupNorm(1, C), "group_norm.* normalizes over time"),
        (over_time, nn.InstanceNorm1d(C), "instance_norm.* normalizes over time"),
        (over_time, nn.Conv1d(C, C, 3, padding=1), "conv1d.* is time"),
        (over_time, nn.MaxPool1d(3, 1, 1), "max_pool1d.* is time"),
        (over_time, nn.ConstantPad1d((2, -2), 0.0), "pad"),
        (over_features, nn.BatchNorm1d(C), "batch_norm.* axis 1 of .* is time"),
        (over_features, nn.GroupNorm(1, C), "group_norm.* axis 1 of .* is time"),
        (over_features, nn.Conv1d(C, C, 3, padding=1), "conv1d.* is time"),
        (lambda m, x: m.linear(x[0]) + m.linear(x[0]).t(), nn.Identity(), "add.*x \\+ x.T"),
        (lambda m, x: m.rnn(x)[0] * m.rnn(x)[0].transpose(1, 2), nn.Identity(), "mul"),
    ],
)
def test_axes_of_equal_size_are_not_taken_for_each_other(function, layer, words):
    x = torch.randn(C, C, C)
    y = torch.randn(C, C) if "x.T" in words else torch.randn(C, C, C)
    with pytest.raises(remat.Error, match=words):
        remat.compile(Recurrent(function, layer), nn.MSELoss(), (x, y))


@pytest.mark.parametrize(
    ("function", "layer"),
    [
        (over_time, nn.BatchNorm1d(C)),
        (over_features, nn.LayerNorm(C)),
        (lambda m, x: m.linear(x).mean(0), nn.Identity()),
        (lambda m, x: m.linear(x).sum((0, 1)), nn.Identity()),
        (lambda m, x: m.linear(x).mean(1, keepdim=True), nn.Identity()),
    ],
)
def test_axes_of_equal_size_have_pytorchs_results(function, layer):
    model, x = Recurrent(function, layer), torch.randn(C, C, C)
    for unused in (model.rnn, model.linear, model.layer):
        unused.requires_grad_(False)
    (model.rnn if function in (over_time, over_features) else model.linear).requires_grad_(True)
    check(model, nn.MSELoss(), x, torch.randn_like(model(x)), slack=20)  # another axis would be wrong by its whole size


def test_means_of_padded_rows_divide_by_the_lengths_of_the_batch():
    class Model(Recurrent):
        def forward(self, x, lengths):
            kept = (torch.arange(T) < lengths[:, None])[..., None]
            return (self.rnn(x)[0] * kept).sum(1) / kept.sum(1) + self.linear(x[:, 0]) / lengths[:, None]

    check(Model(None), nn.MSELoss(), torch.randn(B, T, C), torch.tensor([T, 2, 4]), torch.randn(B, C))


# ---- Refusals say what they are about -----------------------------------------------------------------------------------


class Layer(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(C, C), function

    def forward(self, x):
        return self.function(self.layer(x))


@pytest.mark.parametrize("function", [lambda h: 2**h, lambda h: h**h, lambda h: h ** torch.arange(C)])
def test_exponents_that_are_tensors_are_refused(function):
    with pytest.raises(remat.Error, match=r"in forward: aten::pow .*: a power of a tensor; only 1 to 4"):
        remat.compile(Layer(function), nn.MSELoss(), (torch.randn(B, C), torch.randn(B, C)))


def test_queries_that_see_nothing_are_refused():
    class Queries(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(C, 3 * C)

        def forward(self, x, mask):
            q, k, v = (z.unflatten(-1, (2, 2)).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v, mask[:, None, :, None].expand(B, 1, T, T))
            return y.transpose(1, 2).flatten(2)

    x, y, mask = torch.randn(B, T, C), torch.randn(B, T, C), torch.ones(B, T).bool()
    step = check(Queries(), nn.MSELoss(), x, mask, y)
    mask[1, 2] = False
    with pytest.raises(remat.Error, match="leave each query a key"):
        step(x, mask, y)


def test_errors_in_the_trace_are_not_printed(capfd, caplog):
    """PyTorch logs the stack of an error that it raises."""
    with pytest.raises(remat.Error, match="uint8"):
        remat.compile(nn.Linear(C, V), nn.CrossEntropyLoss(), (torch.randn(B, C), torch.zeros(B, dtype=torch.uint8)))
    assert all(r.levelno < logging.WARNING for r in caplog.records) and not capfd.readouterr().err


def test_settings_of_another_type_are_named_as_they_were_given():
    with pytest.raises(TypeError, match="seed cannot be 'a', of type str"):
        remat.compile(nn.Linear(C, C), nn.MSELoss(), (torch.randn(B, C), torch.randn(B, C)), seed="a")


SHARED = nn.BatchNorm2d(C)


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(C, C, batch_first=True)

    def forward(self, x, lengths):
        packed, _ = self.layer(pack_padded_sequence(x, lengths, batch_first=True))
        return pad_packed_sequence(packed, batch_first=True, padding_value=1.0)[0]


@pytest.mark.parametrize(
    "layer, words",
    [
        (nn.Sequential(SHARED, nn.ReLU(), SHARED), "another layer uses the buffer"),
        (nn.Conv2d(C, C, 3, padding=1).to(memory_format=torch.channels_last), "weight is not contiguous"),
        (nn.RReLU(), "aten::rrelu"),
        (nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), "aten::mv"),
        (nn.utils.weight_norm(nn.Linear(6, 6)), "changes .*weight in forward"),
    ],
)
def test_what_the_page_calls_unsupported_is_refused(layer, words):
    images = torch.randn(2, C, 6, 6)
    with pytest.raises(remat.Error, match=words):
        remat.compile(nn.Sequential(nn.Conv2d(C, C, 1), layer), nn.MSELoss(), (images, images))


def test_padding_with_other_values_is_refused():
    with pytest.raises(remat.Error, match="padding_value=1.0; use 0"):
        remat.compile(Padded(), nn.MSELoss(), (torch.randn(B, T, C), torch.tensor([7, 5, 2]), torch.randn(B, T, C)))
