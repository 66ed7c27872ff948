"""remat.compile: models of PyTorch, with PyTorch's gradients."""

from __future__ import annotations

import copy
import pathlib
import random
import re
import subprocess
import sys
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="torch cannot be imported; name a Python that has it in REMAT_TORCH_PYTHON")

import remat._compile.runtime  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from compile_models import (  # noqa: E402
    GPT, Classifier, Encoder, Frames, LanguageModel, Llama, Masked, MultiheadTranslator, Patches, Speech, Tagger, TiedTagger,
    Translator, UNet, V, per_token,
)  # fmt: skip

T, B = 12, 4


def error(gradients, exact):
    """The distance of all gradients from the exact ones, relative."""
    square = sum(float(((g.double() - e) ** 2).sum()) for g, e in zip(gradients, exact, strict=True))
    return (square / sum(float((e**2).sum()) for e in exact)) ** 0.5


def check(model, loss_fn, *batch, slack=2.0, **config):
    """One step of the model gives PyTorch's loss and gradients, as exactly as PyTorch does in float32."""

    def torch_gradients(dtype):
        m = copy.deepcopy(model).to(dtype)
        given = [x.to(dtype) if torch.is_floating_point(x) else x for x in batch]
        loss = loss_fn(m(*given[:-1]), given[-1]) if loss_fn else m(*given)
        loss.backward()
        return float(loss.detach()), [p.grad for p in m.parameters() if p.requires_grad]

    loss, exact = torch_gradients(torch.float64)
    _, own = torch_gradients(torch.float32)
    step = remat.compile(model, loss_fn, batch, **config)
    assert float(step(*batch)) == pytest.approx(loss, rel=2e-6)
    ours = [p.grad for p in model.parameters() if p.requires_grad]
    assert error(ours, exact) <= slack * error(own, exact) + 1e-8
    return step


def tokens(*shape):
    return torch.randint(1, V, shape)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN, partial(nn.RNN, nonlinearity="relu")])
def test_language_models_have_pytorchs_gradients(layer, batch_first):
    shape = (B, T) if batch_first else (T, B)
    step = check(LanguageModel(layer, batch_first), per_token, tokens(*shape), tokens(*shape), memory_budget="1MiB")
    assert (step.plan.timesteps, step.plan.batch) == (T, B)


def same_bits_in_segments(model, loss):
    """Of a model of tokens and targets."""
    x, y = tokens(1, 1000), tokens(1, 1000)
    step = remat.compile(model, loss, (x, y))
    step(x, y)
    whole = [p.grad.clone() for p in model.parameters()]
    small = remat.compile(model, loss, (x, y), strategy="segments", segments=4)
    small(x, y)
    assert small.plan.activations_peak_bytes < step.plan.activations_peak_bytes / 2
    assert all(torch.equal(a, p.grad) for a, p in zip(whole, model.parameters(), strict=True))


def test_bits_are_independent_of_the_budget():
    same_bits_in_segments(LanguageModel(), per_token)


def test_any_optimizer_of_torch_trains_the_model():
    """Fused optimizers and .data do not count versions; zero_grad drops .grad. The next pass sees all of it."""
    model = LanguageModel()
    peer, x, y = copy.deepcopy(model), tokens(B, T), tokens(B, T)
    step = remat.compile(model, per_token, (x, y))
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2, fused=True) for m in (model, peer)]
    for i in range(6):
        step(x, y)
        optimizers[0].step(), optimizers[0].zero_grad()
        per_token(peer(x), y).backward()
        optimizers[1].step(), optimizers[1].zero_grad()
        if i == 2:
            for m in (model, peer):
                m.head.weight.data = m.head.weight.data * 0.5
    assert float(step.evaluate(x, y)) == pytest.approx(per_token(peer(x), y).item(), rel=1e-4)
    assert step.state_dict()["head.weight"].data_ptr() == model.head.weight.data_ptr()


def test_update_inside_the_step():
    model = LanguageModel()
    peer, x, y = copy.deepcopy(model), tokens(B, T), tokens(B, T)
    step = remat.compile(model, per_token, (x, y), optimizer="adamw", lr=1e-2, weight_decay=0.01)
    optimizer = torch.optim.AdamW(peer.parameters(), lr=1e-2, weight_decay=0.01)
    for _ in range(4):
        step(x, y)
        per_token(peer(x), y).backward()
        optimizer.step(), optimizer.zero_grad()
    for p, q in zip(model.parameters(), peer.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-5)
    assert model.head.weight.grad is None


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop", "Adagrad", "Adadelta"])
def test_defaults_of_optimizers_are_pytorchs(name):
    """Gradients are so small that epsilon counts; Adadelta's has a share in any step. AdamW's decay has no default here."""
    scale = 1 if name == "Adadelta" else 1e-7
    model, x, y = nn.Linear(4, 3), torch.randn(5, 4), torch.randn(5, 3)
    other = copy.deepcopy(model)
    optimizer = getattr(torch.optim, name)(other.parameters(), lr=0.5)
    step = remat.compile(model, lambda out, t: scale * F.mse_loss(out, t), (x, y), optimizer=name.lower(), lr=0.5)
    for _ in range(3):
        step(x, y)
        optimizer.zero_grad()
        (scale * F.mse_loss(other(x), y)).backward()
        optimizer.step()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_other_shapes_share_memory():
    model, x, y = LanguageModel(), tokens(B, T), tokens(B, T)
    step = remat.compile(model, per_token, (x, y), memory_budget="1MiB")
    for rows, length in ((B, 7), (2, T), (B, 7), (B, 1), (B, 2 * T)):
        peer = copy.deepcopy(model)
        step(x.repeat(1, 2)[:rows, :length], y.repeat(1, 2)[:rows, :length])
        per_token(peer(x.repeat(1, 2)[:rows, :length]), y.repeat(1, 2)[:rows, :length]).backward()
        for p, q in zip(model.parameters(), peer.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-7)


SHARED = ["LSTM", "padded tagger", "GPT, attention written out", "encoder and decoder, masked", "masked causal transformer", "Llama"]


@pytest.mark.parametrize("name", SHARED)
def test_third_shape_and_later_ones_need_no_export(name, monkeypatch):
    model, loss_fn, *batch = (LanguageModel(), per_token, tokens(4, 9), tokens(4, 9)) if name == "LSTM" else MODELS[name]()
    exports, export = [], remat._compile.runtime.export
    monkeypatch.setattr(remat._compile.runtime, "export", lambda *arguments: exports.append(1) or export(*arguments))
    step = remat.compile(model, loss_fn, tuple(batch))
    longest = next(x.shape[1] for x in batch if x.dim() > 1)
    for rows, length in ((3, longest - 2), (2, longest - 3), (4, longest - 4), (3, longest)):
        given = [x[:rows, :length].contiguous() if x.dim() > 1 and x.shape[1] == longest else x[:rows] for x in batch]
        given = [x.clamp(max=length) if name.startswith("padded") and x.dim() == 1 else x for x in given]
        peer = copy.deepcopy(model)
        loss = loss_fn(peer(*given[:-1]), given[-1]) if loss_fn else peer(*given)
        loss.backward()
        assert float(step(*given)) == pytest.approx(loss.item(), rel=1e-5)
        for p, q in zip(model.parameters(), peer.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-6)
    assert len(exports) == 2


def test_lengths_that_the_model_asks_for_are_exported_anew():
    class Model(LanguageModel):
        def forward(self, x):
            return super().forward(x) * (2 if x.shape[1] > 8 else 1)

    model, x, y = Model(), tokens(4, 12), tokens(4, 12)
    step = remat.compile(model, per_token, (x, y))
    for n in (11, 5, 10, 6):
        assert float(step(x[:, :n], y[:, :n])) == pytest.approx(per_token(model(x[:, :n]), y[:, :n]).item(), rel=1e-5)


def test_another_shape_takes_no_second_packed_weights():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(8, 64, 2, batch_first=True), nn.Linear(64, 3)

        def forward(self, x):
            return self.head(self.rnn(x)[0])

    model, x, y = Model(), torch.randn(B, T, 8), torch.randint(1, 3, (B, T))
    step = remat.compile(model, per_token, (x, y))
    step(x, y), step(x[:, :5], y[:, :5])
    first, second = (shape.session.plan for shape in step._shapes.values())
    assert first.packed_bytes > 4 * sum(p.numel() for p in model.rnn.parameters()) and second.packed_bytes == 0


@pytest.mark.parametrize("name", ["log softmax and nll", "GPT", "padded tagger", "encoder and decoder", "last step", "transformer"])
def test_one_timestep(name):
    model, loss_fn, *batch = MODELS[name]()
    check(model, loss_fn, *(x[:, :1] if x.dim() > 1 else x.clamp(max=1) if "padded" in name else x for x in batch), slack=4)


@pytest.mark.parametrize(("rows", "sources", "steps"), [(1, 1, 1), (4, 1, 1), (4, 1, 3), (1, 1, 3), (4, 3, 1)])
def test_attention_over_one_key_or_query(rows, sources, steps):
    target = torch.randint(1, V, (rows, steps))
    source = torch.randint(0, V - 1, (rows, sources))  # V - 1 is padding
    check(MultiheadTranslator(), per_token, source, target, target, slack=4)


def test_wrong_lengths_of_a_batch_are_named():
    step = remat.compile(LanguageModel(), per_token, (tokens(4, 9), tokens(4, 9)))
    for make in (lambda *batch: remat.compile(LanguageModel(), per_token, batch), step):
        with pytest.raises(remat.Error, match=r"\(4, 9\).*\(4, 8\).*36.*32"):
            make(tokens(4, 9), tokens(4, 8))
    with pytest.raises(remat.Error, match="position 69 .* 64 positions"):
        remat.compile(GPT(), None, (tokens(2, 70), tokens(2, 70)))


@pytest.mark.parametrize("length", [0, 11])
def test_lengths_outside_the_batch_are_refused(length):
    model, (x, lengths, y) = Tagger(), padded()
    step = remat.compile(model, per_token, (x, lengths, y))
    lengths[1] = length
    with pytest.raises(remat.Error, match="pack_padded_sequence"):
        step(x, lengths, y)


@pytest.mark.parametrize("optimizer", [None, "sgd"])
def test_row_of_padding_idx_stays(optimizer):
    """Of an untied and of a tied embedding, whose row the head trains, and after the weight moved."""
    for tied in (False, True):
        model, (x, lengths, y) = TiedTagger(tied), padded()
        with torch.no_grad():
            model.embedding.weight[0] = 3.0
        peer = copy.deepcopy(model)
        torch_optimizer = torch.optim.SGD(peer.parameters(), lr=0.1)
        step = remat.compile(model, per_token, (x, lengths, y), optimizer=optimizer, lr=0.1 if optimizer else None)
        own = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            step(x, lengths, y)
            if not optimizer:
                own.step()
            torch_optimizer.zero_grad()
            per_token(peer(x, lengths), y).backward()
            torch_optimizer.step()
            model.embedding.weight.data = model.embedding.weight.data.clone()
        for p, q in zip(model.parameters(), peer.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_integers_of_other_widths_are_converted():
    model, x, y = LanguageModel(), tokens(B, T), tokens(B, T)
    step = remat.compile(model, per_token, (x, y))
    assert float(step(x.int(), y.short())) == float(step(x, y))
    assert len(step._shapes) == 1


# ---- Models ---------------------------------------------------------------------------------------------------------


def padded():
    lengths = torch.tensor([10, 7, 3, 10])
    x, y = tokens(4, 10), torch.randint(1, 9, (4, 10))
    for row, n in enumerate(lengths):
        x[row, n:], y[row, n:] = 0, 0
    return x, lengths, y


def sentences():
    source = tokens(4, 7)
    source[1, 5:] = V - 1
    return source, tokens(4, 9), tokens(4, 9)


def ctc(out, labels):
    lengths = (torch.full((out.shape[0],), out.shape[1]), torch.full((out.shape[0],), labels.shape[1]))
    return F.ctc_loss(F.log_softmax(out, -1).transpose(0, 1), labels, *lengths)


def nll(out, target):
    return F.nll_loss(F.log_softmax(out.view(-1, V), dim=1), target.view(-1))


def kept_tokens():
    return torch.arange(9) < torch.tensor([9, 4, 7, 2])[:, None]


cross_entropy = nn.CrossEntropyLoss()
MODELS = {
    "padded tagger": lambda: (Tagger(), per_token, *padded()),
    "padded tagger of GRUs": lambda: (Tagger(nn.GRU), per_token, *padded()),
    "padded classifier": lambda: (Tagger(nn.GRU, True), cross_entropy, *padded()[:2], torch.arange(4)),
    "log softmax and nll": lambda: (LanguageModel(), nll, tokens(4, 9), tokens(4, 9)),
    "last step": lambda: (Classifier("last"), cross_entropy, torch.randn(4, 9, 5), torch.arange(4)),
    "mean over time": lambda: (Classifier("mean"), cross_entropy, torch.randn(4, 9, 5), torch.arange(4)),
    "max over time": lambda: (Classifier("max"), cross_entropy, torch.randn(4, 9, 5), torch.arange(4)),
    "adaptive max pool over time": lambda: (Classifier("pool"), cross_entropy, torch.randn(4, 9, 5), torch.arange(4)),
    "running maximum": lambda: (Classifier("cummax"), cross_entropy, torch.randn(4, 9, 5), torch.arange(4)),
    "last state": lambda: (Classifier("state"), cross_entropy, torch.randn(4, 9, 5), torch.arange(4)),
    "states of all layers": lambda: (Classifier("states"), cross_entropy, torch.randn(4, 9, 5), torch.arange(4)),
    "step of each row": lambda: (
        Classifier("index"), cross_entropy, torch.randn(4, 9, 5), torch.tensor([9, 3, 4, 1]), torch.arange(4),
    ),
    "encoder and decoder": lambda: (Translator(False), per_token, *sentences()),
    "encoder and decoder, masked": lambda: (Translator(True), per_token, *sentences()),
    "multi-head attention": lambda: (MultiheadTranslator(), per_token, *sentences()),
    "transformer": lambda: (Encoder(False), per_token, tokens(4, 9), tokens(4, 9)),
    "causal transformer": lambda: (Encoder(True), per_token, tokens(4, 9), tokens(4, 9)),
    "GPT": lambda: (GPT(), None, tokens(4, 9), tokens(4, 9)),
    "GPT, attention written out": lambda: (GPT(True), None, tokens(4, 9), tokens(4, 9)),
    "frames": lambda: (Frames(), cross_entropy, torch.randn(3, 6, 3, 8, 8), torch.arange(3)),
    "speech": lambda: (Speech(), per_token, torch.randn(3, 4, 20), torch.randint(1, 5, (3, 10))),
    "CTC": lambda: (Speech(), ctc, torch.randn(3, 4, 40), torch.randint(1, 5, (3, 3))),
    "U-Net": lambda: (UNet(False), cross_entropy, torch.randn(2, 3, 16, 16), torch.randint(0, 2, (2, 16, 16))),
    "bilinear U-Net": lambda: (UNet(True), cross_entropy, torch.randn(2, 3, 16, 16), torch.randint(0, 2, (2, 16, 16))),
    "Llama": lambda: (Llama(), per_token, tokens(4, 9), tokens(4, 9)),
    "image patches": lambda: (Patches(), cross_entropy, torch.randn(3, 6, 5), torch.arange(3)),
    "masked transformer": lambda: (Masked(False), per_token, tokens(4, 9), kept_tokens(), tokens(4, 9)),
    "masked causal transformer": lambda: (Masked(True), per_token, tokens(4, 9), kept_tokens(), tokens(4, 9)),
    "one row": lambda: (LanguageModel(), per_token, tokens(1, 9), tokens(1, 9)),
    "regression": lambda: (
        nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)), nn.MSELoss(), torch.randn(6, 5), torch.randn(6, 2),
    ),
}  # fmt: skip


LAYERS = {
    "leaky ReLU, ELU, absolute value": lambda x: F.leaky_relu(x, 0.2) + F.elu(x, 0.7) + x.abs() + 0.5,
    "even kernel, same padding": nn.Conv2d(2, 3, (4, 3), padding="same", dilation=(1, 2)),
    "instance norm": nn.InstanceNorm2d(2),
    "sum": lambda x: x.sum((2, 3), keepdim=True) + x.sum(-1, keepdim=True),
    "layer norm without weights": nn.LayerNorm(7, elementwise_affine=False),
    "hard, SELU, Mish, GLU, log sigmoid": lambda x: (
        F.hardswish(x) + F.hardsigmoid(x) + F.selu(x) + F.mish(x) + F.glu(torch.cat([x, x], 1), 1) + F.logsigmoid(x)
    ),
    "PReLU": nn.PReLU(2),
    "maximum": lambda x: x.amax((2, 3), keepdim=True) + x.max(-1, keepdim=True)[0] + F.adaptive_max_pool2d(x, 1),
    "maximum over the last axis but one": lambda x: x.amax(2) + x.max(-2, keepdim=True).values.squeeze(2),
    "roll": lambda x: F.relu(x.roll((2, -1), (2, 3)) * 2 + x.roll(1, 1)) + x.roll(-9, 3),
    "every second": lambda x: torch.cat([x[:, :, ::2, 1::2].flatten(1), x[:, 1::2, 4::3].flatten(1), x[..., 5::4].flatten(1), x[..., ::7].flatten(1)], 1),
    "max pool, ceil_mode": lambda x: F.max_pool2d(F.relu(x), 3, 2, ceil_mode=True),
    "max pool of a row": lambda x: F.max_pool1d(x.flatten(2), 4, 3),
    "pool to more": nn.AdaptiveAvgPool2d((12, 7)),
    "padded by other elements": lambda x: F.relu(
        F.pad(x, (2, 3, 1, 2), "reflect") + F.pad(x, (2, 3, 1, 2), "replicate") + F.pad(x, (2, 3, 1, 2), "circular") * 2
        + F.pad(x, (2, 3, 1, 2), value=-1.5) + F.pad(x, (5, 0, 0, 3), "circular")
    ),
    "padded rows": lambda x: F.pad(x.flatten(2), (41, 3), "reflect") + F.pad(x.flatten(2), (41, 3), "replicate") + F.pad(x.flatten(2), (41, 3), value=2.0),
    "rows": lambda x: F.avg_pool1d(x.flatten(2), 4, 3, 1) + F.interpolate(x.flatten(2), scale_factor=3)[..., :14],
    "transposed convolution of rows": nn.Sequential(nn.Flatten(2), nn.ConvTranspose1d(2, 4, 3, 2, 1, 1, groups=2, dilation=2)),
    "unfolded": lambda x: F.unfold(x, (2, 3), (2, 1), (1, 2), (1, 2)),
    "folded": lambda x: F.fold(F.unfold(x, (3, 2), 1, 1, (2, 3)).relu(), (9, 7), (3, 2), (2, 1), (2, 1), (3, 3)),
    "shuffled channels": lambda x: nn.ChannelShuffle(3)(torch.cat([x, x * 2, x.relu()], 1)),
    "where": lambda x: torch.where(torch.arange(7) > 3, x, -2.0) + x.masked_fill(torch.arange(6)[:, None] == 2, 1.5),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_have_pytorchs_gradients(name):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.layer, self.last = nn.Conv2d(2, 2, 1), LAYERS[name], nn.LazyLinear(3)

        def forward(self, x):
            return self.last(self.layer(self.first(x)).flatten(1))

    model, x = Model(), torch.randn(4, 2, 6, 7)
    model(x)
    check(model, cross_entropy, x, torch.tensor([0, 2, 1, 1]), slack=5 if name == "where" else 2)


CORNERS = {
    "relu": F.relu, "relu6": F.relu6, "gelu": F.gelu, "elu": F.elu, "selu": F.selu, "abs": torch.abs, "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish, "hardtanh": lambda x: F.hardtanh(x, -3, 6), "mish": F.mish,
    "celu": lambda x: F.celu(x, 0.7), "leaky_relu": lambda x: F.leaky_relu(x, 0.3), "negative slope": lambda x: F.leaky_relu(x, -0.3),
    "PReLU": nn.PReLU(init=0.3), "PReLUs": nn.PReLU(5), "clamp": lambda x: x.clamp(-3, 6), "clamp_min": lambda x: x.clamp(min=0),
    "clamp_max": lambda x: x.clamp(max=0), "softshrink": lambda x: F.softshrink(x, 3), "hardshrink": lambda x: F.hardshrink(x, 3), "threshold": lambda x: F.threshold(x, 3, 7),
    "where": lambda x: torch.where(x >= 3, x, x * 2) + torch.where(x <= -3, x * 3, 1.0), "sign": lambda x: torch.sign(x) * 2 + x,
}  # fmt: skip


@pytest.mark.parametrize("name", CORNERS)
def test_gradients_at_corners_are_pytorchs(name):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.activation = nn.Linear(2, 5), CORNERS[name]
            with torch.no_grad():
                self.first.weight.zero_()
                self.first.bias[:] = torch.tensor([0.0, -3, 3, 6, -0.0])

        def forward(self, x):
            return self.activation(self.first(x))

    check(Model(), nn.MSELoss(), torch.randn(3, 2), torch.randn(3, 5))


@pytest.mark.parametrize("features", [False, True])
def test_alpha_dropout_keeps_mean_and_variance(features):
    """Dropped elements, or features, become the least value of SELU, here a single one."""
    p, n, least = 0.3, 4000, -1.7580993408473766
    scale = ((1 - p) * (1 + p * least**2)) ** -0.5

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.x, self.dropout = nn.Parameter(torch.randn(2, n, 2)), nn.FeatureAlphaDropout(p) if features else nn.AlphaDropout(p)

        def forward(self, zeros):
            return self.dropout(self.x + zeros)

    model, zeros = Model(), torch.zeros(2, n, 2)
    step = remat.compile(model, lambda out, y: (out * y).sum(), (zeros, torch.ones(2, n, 2)))
    loss = float(step(zeros, torch.ones(2, n, 2)))
    kept = model.x.grad.double() / scale
    assert torch.allclose(kept, kept.round()) and abs(float(kept.mean()) - 1 + p) < 0.02
    assert bool((kept[..., 0] == kept[..., 1]).all()) == features
    out = scale * (torch.where(kept > 0.5, model.x.detach().double(), least) - least * p)
    assert loss == pytest.approx(float(out.sum()), rel=1e-4, abs=0.05)
    assert abs(float(out.mean())) < 0.06 and abs(float(out.var()) - 1) < 0.06
    assert float(step.evaluate(zeros, torch.ones(2, n, 2))) == pytest.approx(float(model.x.detach().sum()), abs=0.05)


def test_infinite_activations_stay_infinite():
    model = nn.Sequential(nn.Linear(1, 1), nn.LeakyReLU())
    step = remat.compile(model, lambda out, y: (out * y).mean(), (torch.ones(1, 1), torch.ones(1, 1)))
    with torch.no_grad():
        model[0].bias.fill_(3e38)
        model[0].weight.fill_(3e38)
    assert float(step.evaluate(torch.ones(1, 1), torch.ones(1, 1))) == float("inf")


@pytest.mark.parametrize("shape", [(4, 4, 4), (2, 3, 4), (3, 4)])
def test_T_reverses_all_axes(shape):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(shape[-1], shape[-1])

        def forward(self, x):
            return self.first(x).T

    check(Model(), nn.MSELoss(), torch.randn(shape), torch.randn(shape[::-1]))


@pytest.mark.parametrize("threshold", [1.0, 16.0])
def test_thresholds_of_softplus_that_matter_are_refused(threshold):
    with pytest.raises(remat.Error, match=rf"threshold={threshold}; only one of at least 17"):
        remat.compile(nn.Sequential(nn.Linear(2, 2), nn.Softplus(3, threshold)), nn.MSELoss(), (torch.randn(3, 2), torch.randn(3, 2)))


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_factors_that_resize_to_whole_multiples_are_refused(mode):
    """3 x 2.3 is rounded down to 6, but PyTorch takes neighbours at steps of 1 / 2.3."""

    def compiled(layer):
        model = nn.Sequential(nn.Conv2d(1, 1, 1), layer)
        return check(model, nn.MSELoss(), torch.randn(2, 1, 3, 3), torch.randn(2, 1, 6, 6), slack=8)

    with pytest.raises(remat.Error, match=r"factor 2\.3; give size"):
        compiled(nn.Upsample(scale_factor=2.3, mode=mode))
    compiled(nn.Upsample(scale_factor=2.3, mode=mode, recompute_scale_factor=True))
    compiled(nn.Upsample(scale_factor=2.0, mode=mode))
    if mode == "nearest":
        rows = nn.Sequential(nn.Conv1d(1, 1, 1), nn.Upsample(scale_factor=2.3)), nn.MSELoss(), (torch.randn(2, 1, 3), torch.randn(2, 1, 6))
        with pytest.raises(remat.Error, match=r"factor 2\.3; give size"):
            remat.compile(*rows)
    if mode == "bilinear":
        compiled(nn.Upsample(scale_factor=2.3, mode=mode, align_corners=True))


def last_column(h):
    h = h * 2
    h[:, -1] = 3.0
    return h.tanh()


def parts(h):
    h = h.clone()
    h[:, 1:2].zero_()
    h[1:3, 0] = -1
    return h


def with_constants(h):
    mask, scale = torch.zeros(5, 3), torch.ones(3)
    mask[1:3, :2] = 2
    mask[4] = -1
    scale[0].add_(1)
    return h * scale.to(h.dtype) + mask.to(h.dtype)


@pytest.mark.parametrize("function", [last_column, parts, with_constants])
def test_parts_are_filled_in_place(function):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            return function(self.linear(x))

    check(Model(), nn.MSELoss(), torch.randn(5, 4), torch.randn(5, 3), slack=4)


def test_constants_of_integers_change_in_place_before_they_meet_the_batch():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(7, 3)

        def forward(self, tokens):
            mask = torch.zeros(5, dtype=torch.long)
            before = tokens * mask
            mask[1:3] = 1
            other = torch.zeros_like(tokens)
            other[:, 2:] += 1
            return self.embedding(before + tokens * mask + other)

    check(Model(), nn.MSELoss(), torch.arange(10).reshape(2, 5) % 6, torch.randn(2, 5, 3))


@pytest.mark.parametrize("factor", [2, 3])
def test_pixels_are_shuffled(factor):
    """As in super-resolution, and back."""
    net = nn.Sequential(nn.Conv2d(1, factor**2 * 2, 3, padding=1), nn.PixelShuffle(factor), nn.Tanh(), nn.PixelUnshuffle(factor))
    check(net, nn.MSELoss(), torch.randn(2, 1, 6, 5), torch.randn(2, factor**2 * 2, 6, 5))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("layer", [nn.Linear(4, 6), nn.Conv1d(4, 6, 3, padding=1), nn.ConvTranspose2d(4, 6, 2)])
def test_weights_with_a_norm_of_their_own(layer, dim):
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(copy.deepcopy(layer), dim=dim), nn.Tanh())
    x = torch.randn(5, 4) if isinstance(layer, nn.Linear) else torch.randn(5, 4, *[7] * (layer.weight.dim() - 2))
    check(net, nn.MSELoss(), x, torch.randn(net(x).shape))


def test_losses_are_scaled_added_and_shifted():
    model, x, y = nn.Linear(4, 3), torch.randn(5, 4), torch.tensor([0, 2, 1, 1, 0])
    check(model, lambda out, t: 2 * cross_entropy(out, t) / 3 + 0.1 * out.pow(2).sum() + 0.5, x, y, slack=4)


@pytest.mark.parametrize("name", MODELS)
def test_models_have_pytorchs_gradients(name):
    check(*MODELS[name]())


def test_sequences_are_cut_into_tiles():
    """The time axis was found: a plan of segments works on each of these."""
    for name in ("padded tagger", "encoder and decoder", "GPT", "frames", "CTC"):
        model, loss_fn, *batch = MODELS[name]()
        assert remat.compile(model, loss_fn, tuple(batch), plan_only=True).plan.timesteps > 1, name


def test_masks_that_differ_between_queries():
    """Scores under such a mask are computed; a step that was captured with a causal mask refuses another."""

    class Model(Masked):
        def forward(self, tokens, kept):
            return self.attend(tokens, kept[:, None])

    model, loss_fn, x, kept, y = MODELS["masked causal transformer"]()
    band = torch.ones(4, 9, 9, dtype=torch.bool).tril().triu(-2)
    check(Model(True), loss_fn, x, band, y)
    causal = torch.ones(4, 9, 9, dtype=torch.bool).tril()
    step = remat.compile(Model(True), loss_fn, (x, causal, y))
    step(x, causal, y)
    with pytest.raises(remat.Error, match="mask"):
        step(x, band, y)


def test_attention_dropout_is_in_the_step_but_not_in_evaluations():
    batch = tokens(4, 9), tokens(4, 9)
    losses = []
    for dropout in (0.0, 0.9):
        torch.manual_seed(1)
        step = remat.compile(GPT(dropout=dropout), None, batch)
        losses.append((float(step(*batch)), float(step.evaluate(*batch))))
    assert losses[0][0] != losses[1][0] and losses[0][1] == losses[1][1]


def test_batch_norm_has_pytorchs_statistics():
    model, loss_fn, *batch = MODELS["speech"]()
    peer = copy.deepcopy(model)
    step = remat.compile(model, loss_fn, tuple(batch))
    for _ in range(2):
        step(*batch), peer(batch[0])
    for (name, a), b in zip(model.state_dict().items(), peer.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=name)


def test_frozen_parameters_get_no_gradient():
    model, x, y = LanguageModel(), tokens(B, T), tokens(B, T)
    model.embedding.requires_grad_(False)
    check(model, per_token, x, y)
    assert model.embedding.weight.grad is None


def test_frozen_names_may_begin_like_trained_ones():
    model = Tagger()
    for name, parameter in model.rnn.named_parameters():
        parameter.requires_grad_(not name.endswith("_reverse"))
    check(model, per_token, *padded())


def test_resnet18_of_torchvision():
    models = pytest.importorskip("torchvision", reason="torchvision cannot be imported").models
    check(models.resnet18(num_classes=4), cross_entropy, torch.randn(4, 3, 64, 64), torch.arange(4))


def test_gpt2_of_transformers():
    transformers = pytest.importorskip("transformers", reason="transformers cannot be imported")
    config = transformers.GPT2Config(
        vocab_size=V, n_positions=32, n_embd=32, n_layer=2, n_head=4, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    peer, ids = copy.deepcopy(model), tokens(3, 16)
    step = remat.compile(model, None, {"input_ids": ids, "labels": ids})
    assert model.config.use_cache
    loss = peer(input_ids=ids, labels=ids).loss
    loss.backward()
    assert float(step(input_ids=ids, labels=ids)) == pytest.approx(loss.item(), rel=1e-5)
    for p, q in zip(model.parameters(), peer.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-6)


IMAGES = "mobilenet_v3_small efficientnet_b0 densenet121 convnext_tiny squeezenet1_1 regnet_y_400mf googlenet".split()


@pytest.mark.parametrize("name", IMAGES)
def test_networks_of_torchvision_are_translated(name):
    models = pytest.importorskip("torchvision", reason="torchvision cannot be imported").models
    more = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    model = getattr(models, name)(num_classes=4, **more)
    remat.compile(model, cross_entropy, (torch.randn(2, 3, 64, 64), torch.arange(2)), plan_only=True)


TRANSFORMERS = {
    "Llama": ("LlamaForCausalLM", {"num_key_value_heads": 2}),
    "GPTNeoX": ("GPTNeoXForCausalLM", {"hidden_dropout": 0.0}),
    "Bert": ("BertForMaskedLM", {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}),
}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_models_of_transformers(name):
    transformers = pytest.importorskip("transformers", reason="transformers cannot be imported")
    kind, more = TRANSFORMERS[name]
    config = getattr(transformers, f"{name}Config")(
        vocab_size=V, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, **more,
    )  # fmt: skip
    model, ids = getattr(transformers, kind)(config), tokens(3, 12)
    kept = (torch.arange(12) < torch.tensor([12, 5, 9])[:, None]).long()
    batch = {"input_ids": ids, "attention_mask": kept, "labels": ids}
    peer = copy.deepcopy(model)
    loss = peer(**batch).loss
    loss.backward()
    assert float(remat.compile(model, None, batch)(**batch)) == pytest.approx(loss.item(), rel=1e-5)
    for p, q in zip(model.parameters(), peer.parameters(), strict=True):
        torch.testing.assert_close(p.grad, torch.zeros_like(p) if q.grad is None else q.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", ["relu", "gated-gelu"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_t5_of_transformers(implementation, kind):
    transformers = pytest.importorskip("transformers", reason="transformers cannot be imported")
    config = transformers.T5Config(
        vocab_size=V, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0, feed_forward_proj=kind,
        relative_attention_num_buckets=8, relative_attention_max_distance=9, attn_implementation=implementation,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    ids, labels = tokens(3, 12), tokens(3, 9)
    kept = (torch.arange(12) < torch.tensor([12, 5, 9])[:, None]).long()
    batch = {"input_ids": ids, "attention_mask": kept, "labels": labels}
    peer = copy.deepcopy(model)
    loss = peer(**batch).loss
    loss.backward()
    assert float(remat.compile(model, None, batch)(**batch)) == pytest.approx(loss.item(), rel=1e-5)
    assert peer.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.grad.abs().max() > 1e-5
    for p, q in zip(model.parameters(), peer.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-6)


class BiasedAttention(nn.Module):
    """Attention in windows of 3x3 pixels as in Swin, with a learned table of relative positions; or another bias."""

    def __init__(self, bias, learned="whole", written_out=True):
        super().__init__()
        self.qkv, self.head, self.bias, self.written_out = nn.Linear(8, 24), nn.Linear(8, 5), bias, written_out
        self.table = nn.Parameter(torch.randn(25, 2), requires_grad=learned == "table")
        self.whole = nn.Parameter(torch.randn(2, 9, 9), requires_grad=learned == "whole")
        at = torch.stack(torch.meshgrid(torch.arange(3), torch.arange(3), indexing="ij")).flatten(1)
        apart = at[:, :, None] - at[:, None] + 2
        self.register_buffer("index", (apart[0] * 5 + apart[1]).flatten())

    def forward(self, x):
        q, k, v = self.qkv(x).reshape(len(x), 9, 3, 2, 4).permute(2, 0, 3, 1, 4)
        bias = self.bias(self)
        if self.written_out:
            made = (q * 0.5 @ k.mT + bias).softmax(-1) @ v
        else:
            made = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.head(made.transpose(1, 2).flatten(2))


def relative(m):
    return m.table[m.index].view(9, 9, 2).permute(2, 0, 1).contiguous().unsqueeze(0)


def alibi(m):
    return -(torch.arange(9)[:, None] - torch.arange(9)).abs() * torch.tensor([0.5, 0.25])[:, None, None]


@pytest.mark.parametrize("written_out", [True, False])
@pytest.mark.parametrize(
    ("bias", "learned"),
    [
        (relative, "table"),
        (alibi, ""),
        (lambda m: m.whole, "whole"),
        (lambda m: m.whole.tanh() * 2, "whole"),
        (lambda m: torch.cat([m.whole, m.whole], 2)[:, :, :9], "whole"),
        (lambda m: relative(m).expand(3, -1, -1, -1), "table"),
        (lambda m: relative(m) + alibi(m), "table"),
        (lambda m: alibi(m).masked_fill(~torch.ones(9, 9).tril().bool(), -torch.inf), ""),
        (lambda m: relative(m) + torch.full((9, 9), -torch.inf).triu(1), "table"),
        (lambda m: torch.where(torch.ones(9, 9).tril().bool(), m.whole, -1e9), "whole"),
        (lambda m: m.whole[:, :1], "whole"),
        (lambda m: m.whole[:1], "whole"),
        (lambda m: m.whole[0], "whole"),
        (lambda m: m.whole[0, :1].expand(9, 9), "whole"),
        (lambda m: m.whole.sum(2, keepdim=True) + relative(m), "table"),
        (lambda m: m.whole[1, :, :1] + m.whole[:, :1], "whole"),
        (lambda m: torch.arange(3.0)[:, None, None, None].expand(3, 2, 9, 9) + m.whole, "whole"),  # differs between rows
    ],
)
def test_attention_with_a_bias(bias, learned, written_out):
    check(BiasedAttention(bias, learned, written_out), nn.MSELoss(), torch.randn(3, 9, 8), torch.randn(3, 9, 5))


@pytest.mark.parametrize(
    ("bias", "words"),
    [
        (lambda m: m.whole[:, :, :3], "shape"),
    ],
)
def test_other_biases_of_attention_are_refused(bias, words):
    with pytest.raises(remat.Error, match=words):
        remat.compile(BiasedAttention(bias), nn.MSELoss(), (torch.randn(3, 9, 8), torch.randn(3, 9, 5)))


@pytest.mark.parametrize("version", ["", "V2"])
def test_swin_of_torchvision(version):
    """Windows are cut out of images, and shifted ones have a mask each: their scores are computed."""
    swin = pytest.importorskip("torchvision").models.swin_transformer
    kinds = {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2} if version else {}
    model = swin.SwinTransformer([2, 2], 16, [2, 2], [2, 4], [4, 4], stochastic_depth_prob=0.0, num_classes=5, **kinds)
    check(model, cross_entropy, torch.randn(2, 3, 32, 32), torch.tensor([1, 2]), slack=4)


# ---- Refusals -------------------------------------------------------------------------------------------------------


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(5, 8)

    def forward(self, x):
        h = c = torch.zeros(x.shape[0], 8)
        for step in x.unbind(1):
            h, c = self.cell(step, (h, c))
        return h


class Sorted(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(5, 8))

    def forward(self, x):
        return self.inner(x).sort(1).values.mean(1)


class Branching(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


class PackedState(Tagger):
    """Reads the final c of a packed LSTM."""

    def forward(self, tokens, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.embedding(tokens), lengths, True, False)
        return self.head(self.rnn(packed)[1][1][-2:].transpose(0, 1).flatten(1))


def test_final_c_of_a_packed_lstm_is_refused():
    with pytest.raises(remat.Error, match="packed"):
        remat.compile(PackedState(), cross_entropy, (*padded()[:2], torch.arange(4)))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: Cells(), ["cell", "lstm_cell", "nn.LSTM", "test_compile.py", "line"]),
        (lambda: nn.Sequential(Classifier("last"), Branching()), ["module '1'", "values of a tensor", "test_compile.py", "in forward"]),
        (lambda: nn.Sequential(nn.BatchNorm1d(9, momentum=None), Classifier("last")), ["module '0'", "momentum=None"]),
        (lambda: Sorted(), ["aten::sort", "test_compile.py", "line"]),
        (lambda: Classifier("last").double(), ["float64", "float32"]),
        (lambda: Classifier("last").to("meta"), ["meta", "CPU"]),
        (lambda: Classifier("last").requires_grad_(False), ["requires_grad"]),
    ],
)
def test_refusals_name_module_op_and_line(model, words):
    x = torch.randn(4, 9, 5)
    made = model()
    x = x.double() if next(made.parameters()).dtype == torch.float64 else x
    with pytest.raises(remat.Error) as refused:
        remat.compile(made, cross_entropy, (x, torch.arange(4)))
    assert all(word in str(refused.value) for word in words), refused.value


class ShiftedInPlace(LanguageModel):
    """Writes the batch's tokens into parts of a tensor, and reads the whole, and parts, between and after."""

    def forward(self, x):
        shifted = x % 2
        view, before = shifted[:, 1:], shifted + 1
        shifted[:, 1:] = x[:, :-1].clone()
        between = shifted.clone()
        shifted[..., 0] = 3
        shifted[1:, 2:4].add_(1).clamp_(max=V - 1)
        shifted.masked_fill_(shifted == 4, 2)
        through = torch.cat([view, x[:, :1]], 1)
        view[:, :2] = 1
        return sum(super(ShiftedInPlace, self).forward(y) for y in (x, before, between, through, shifted))


def test_tokens_written_in_place():
    check(ShiftedInPlace(), per_token, tokens(B, T), tokens(B, T))


class BatchWrittenInPlace(LanguageModel):
    def forward(self, x):
        x[x == 2] = 1
        return super().forward(x)


class IntegersWrittenOtherwise(LanguageModel):
    """Nothing returns what fill_diagonal_ writes, and PyTorch on the host runs ops in another order."""

    def forward(self, x):
        y = x % 5
        before = y + 1
        y.fill_diagonal_(0)
        return super().forward(y + before)


@pytest.mark.parametrize("model", [BatchWrittenInPlace, IntegersWrittenOtherwise])
def test_integers_written_in_place_otherwise_are_refused(model):
    with pytest.raises(remat.Error, match="in place .* returns a result"):
        remat.compile(model(), per_token, (tokens(B, T), tokens(B, T)))


class WrittenMask(nn.Module):
    def __init__(self, write):
        super().__init__()
        self.first, self.second, self.write = nn.Linear(4, 6), nn.Linear(6, 5), write

    def forward(self, x):
        return self.second(self.write(self.first(x)))


def constant_written_in_parts(h):
    mask = torch.ones(6)
    view = mask[1:]
    mask[:2] = 0.5
    view[3:].mul_(2)
    return h * mask * torch.cat([view, mask[:1]])


def constant_read_through_a_view(h):
    mask = torch.ones(1, 6)
    view = mask.view(6)
    mask[0, 2:] = 0.5
    return h * view


def constant_written_through_a_view(h):
    mask = torch.ones(1, 6)
    mask.view(6)[2:] = 0.5
    return h * mask


def constant_written_through_a_transposed_view(h):
    mask = torch.ones(6, 2)
    mask.T[1:] = 0.5
    return h * mask[:, 1]


def constant_written_in_a_chunk(h):
    mask = torch.ones(6)
    mask.chunk(2)[0][:] = 0.5
    return h * mask


def constant_read_through_chunks(h):
    mask = torch.ones(6)
    chunks = mask.chunk(2)
    mask[:4] = 0.5
    return h * torch.cat(chunks)


def integers_read_through_a_view(h):
    kept = torch.ones(1, 6, dtype=torch.long)
    view = kept.view(6)
    kept[0, 2:] = 3
    return h * view


def values_read_through_a_slice(h):
    y = h * 1
    view = y[:, 1:]
    y[:, 2:].relu_()
    return torch.cat([view, h[:, :1]], 1)


def constant_joined_with_another(h):
    kept = torch.arange(6) > 3
    kept |= torch.arange(6) == 1
    return h * kept


def constant_read_before_it_is_written(h):
    mask = torch.zeros(6)
    y = h + mask
    mask.fill_(1)
    return y * (h + mask)


def constant_written_where_it_is_large(h):
    mask = torch.arange(6.0)
    mask[mask > 3] = 0.25
    return h * mask


@pytest.mark.parametrize("write", [f for name, f in sorted(globals().items()) if name.startswith(("constant_", "integers_read"))])
def test_constants_written_in_place(write):
    check(WrittenMask(write), nn.MSELoss(), torch.randn(3, 4), torch.randn(3, 5))


def values_filled_and_read_through_a_column(h):
    y = h * 1
    column = y[:, 1:2]
    y[:, 1] = 0
    return y + column


def read_before_it_is_written_in_parts(h):
    mask = h.new_zeros(6)
    y = h + mask
    mask[1:3] = 1
    return y * (h + mask)


@pytest.mark.parametrize(
    "write", [values_read_through_a_slice, values_filled_and_read_through_a_column, read_before_it_is_written_in_parts]
)
def test_what_is_written_in_place_and_read_otherwise_is_refused(write):
    with pytest.raises(remat.Error, match="in place"):
        remat.compile(WrittenMask(write), nn.MSELoss(), (torch.randn(3, 4), torch.randn(3, 5)))


def test_learning_rates_without_an_optimizer_are_refused():
    x, y = tokens(B, T), tokens(B, T)
    with pytest.raises(remat.Error, match="optimizer"):
        remat.compile(LanguageModel(), per_token, (x, y), lr=1.0)
    with pytest.raises(remat.Error, match="lr"):
        remat.compile(LanguageModel(), per_token, (x, y), optimizer="sgd")


# ---- Refusals of what a capture cannot repeat -----------------------------------------------------------------------


class Forward(nn.Module):
    """A model whose forward is the given function of itself and its input."""

    def __init__(self, function):
        super().__init__()
        self.inner, self.count, self.plain, self.seen = nn.Linear(5, 5), 300, torch.zeros(5), []
        self.register_buffer("average", torch.zeros(5))
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def regression():
    return torch.randn(4, 5), torch.randn(4, 5)


def in_inference_mode(m, x):
    with torch.inference_mode():
        y = m.inner(x)
    return y + m.inner(x)


def branches(m, x):
    y = m.inner(x)
    return y * 2 if y.sum() > 0 else y


def reads_number(m, x):
    return m.inner(x) * float(m.inner.bias[0])


def reads_item(m, x):
    return m.inner(x) * m.inner.bias[0].item()


def selects_by_mask(m, x):
    y = m.inner(x)
    return (y + y[y > 0].mean()) if len(y[y > 0]) else y


def reads_data(m, x):
    y = m.inner(x)
    return y + y.data


def reads_parameters_data(m, x):
    return m.inner(x) * m.inner.bias.data


def becomes_numpy(m, x):
    return m.inner(x) + torch.from_numpy(x.numpy())


def draws(m, x):
    return m.inner(x) + torch.randn(5)


def draws_in_place(m, x):
    return m.inner(x) + torch.empty(5).normal_()


def draws_in_python(m, x):
    return m.inner(x) * random.random()


def counts(m, x):
    m.count += 1
    return m.inner(x)


def appends(m, x):
    m.seen.append(1)
    return m.inner(x)


def averages(m, x):
    m.average.copy_(x.mean(0))
    return m.inner(x)


def replaces_buffer(m, x):
    m.average = m.average * 0.9
    return m.inner(x)


def counts_in_buffer(m, x):
    m.average.add_(1)
    return m.inner(x)


def counts_in_attribute(m, x):
    m.plain.add_(1)
    return m.inner(x)


def carries_state(m, x):
    m.state = m.inner(x)
    return m.state


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (in_inference_mode, ["inference_mode", "test_compile.py", "line"]),
        (branches, ["values of a tensor", "the model", "test_compile.py", "in branches"]),
        (reads_number, ["values of a tensor", "the model", "test_compile.py", "in reads_number"]),
        (reads_item, ["values of a tensor", "test_compile.py", "line"]),
        (selects_by_mask, ["values of a tensor", "test_compile.py", "in selects_by_mask"]),
        (reads_data, [".data", "the model", "test_compile.py", "in reads_data"]),
        (reads_parameters_data, [".data", "test_compile.py", "line"]),
        (becomes_numpy, [".numpy()", "test_compile.py", "line"]),
        (draws, ["aten::randn", "random", "test_compile.py", "line"]),
        (draws_in_place, ["aten::normal_", "random"]),
        (draws_in_python, ["random"]),
        (counts, ["count"]),
        (appends, ["seen"]),
        (averages, ["average", "aten::copy_"]),
        (replaces_buffer, ["average"]),
        (counts_in_buffer, ["average", "aten::add_"]),
        (counts_in_attribute, ["plain"]),
        (carries_state, ["state"]),
    ],
)
def test_effects_of_forward_are_refused_and_leave_the_model_alone(function, words):
    model = Forward(function)
    before = copy.deepcopy(vars(model))
    with pytest.raises(remat.Error) as refused:
        remat.compile(model, nn.MSELoss(), regression())
    assert all(word in str(refused.value) for word in words), refused.value
    assert before.keys() == vars(model).keys()
    assert (model.count, model.seen) == (300, []) and not model.plain.any() and not model.average.any()
    assert type(model.average) is torch.Tensor


def test_detached_inputs_are_no_stopped_gradient():
    check(Forward(lambda m, x: m.inner(x.detach())), nn.MSELoss(), *regression())


def test_each_training_call_draws_new_dropout_masks_and_torchs_seed_repeats_them():
    runs = []
    for number in (1, 1, 2):
        torch.manual_seed(1)
        model, (x, y) = nn.Sequential(nn.Linear(5, 64), nn.Dropout(0.5), nn.Linear(64, 5)), regression()
        torch.manual_seed(number)
        step = remat.compile(model, nn.MSELoss(), (x, y))
        runs.append([float(step(x, y)) for _ in range(3)])
    assert len(set(runs[0])) == 3 and runs[0] == runs[1] and runs[0][0] != runs[2][0]


class StochasticDepth(nn.Module):
    """As torchvision writes it."""

    def forward(self, x):
        return x * x.new_empty([x.shape[0]] + [1] * (x.dim() - 1)).bernoulli_(0.75).div_(0.75)


@pytest.mark.parametrize(("layer", "factors"), [(StochasticDepth(), [0, 4 / 3]), (nn.Dropout2d(0.5), [0, 2])])
def test_whole_samples_and_channels_are_dropped(layer, factors):
    """Of a mean over planes of ones, whose target is 0, the gradient of the gain of a sample or channel tells its mask."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain, self.layer = nn.Parameter(torch.ones(64, 32, 1, 1)), layer

        def forward(self, x):
            return self.layer(x * self.gain)

    model, x = Model(), torch.ones(64, 32, 3, 5)
    step = remat.compile(model, lambda out, y: (out - y).mean(), (x, torch.zeros(64, 32, 3, 5)))
    masks = []
    for _ in range(2):
        step(x, torch.zeros(64, 32, 3, 5))
        masks.append(model.gain.grad * 64 * 32)
        assert {round(float(f), 4) for f in masks[-1].unique()} == {round(f, 4) for f in factors}
        dropped = (masks[-1] == 0).float()
        assert abs(float(dropped.mean()) - 1 + 1 / factors[1]) < 0.2
        assert isinstance(layer, nn.Dropout2d) or bool((dropped == dropped[:, :1]).all())
    assert not torch.equal(*masks)
    assert float(step.evaluate(x, torch.zeros(64, 32, 3, 5))) == pytest.approx(1)


def test_gradient_is_of_the_masks_of_its_own_call():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 1, bias=False))
    x, y = torch.ones(4, 64), torch.zeros(4, 1)
    step = remat.compile(model, lambda out, y: (out - y).mean(), (x, y))
    for _ in range(3):
        loss = step(x, y)
        assert float(loss) == pytest.approx(float((model[1].weight * model[1].weight.grad).sum()), rel=1e-4, abs=1e-6)


def linear_step(**config):
    model, batch = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5)), regression()
    return model, batch, remat.compile(model, nn.MSELoss(), batch, **config)


def replace_weight(model):
    model[0].weight = nn.Parameter(torch.ones(5, 5))


def replace_module(model):
    model[0] = nn.Linear(5, 5)


def freeze(model):
    model[0].requires_grad_(False)


@pytest.mark.parametrize("change", [replace_weight, replace_module, freeze])
def test_changed_parameters_are_captured_again_or_refused(change):
    model, (x, y), step = linear_step()
    step(x, y)
    change(model)
    model.zero_grad()
    peer = copy.deepcopy(model)
    F.mse_loss(peer(x), y).backward()
    step(x, y)
    for p, q in zip(model.parameters(), peer.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        if q.grad is not None:
            torch.testing.assert_close(p.grad, q.grad)
    model, (x, y), step = linear_step(optimizer="sgd", lr=0.1)
    change(model)
    with pytest.raises(remat.Error, match="0.weight.*compile"):
        step(x, y)


def test_gradient_hooks_are_refused():
    model, (x, y), step = linear_step()
    model[0].weight.register_hook(lambda g: g * 0)
    with pytest.raises(remat.Error, match="0.weight.*hook"):
        step(x, y)


def test_training_follows_the_models_mode():
    model, (x, y) = nn.Sequential(nn.Linear(5, 64), nn.Dropout(0.9), nn.Linear(64, 5)), regression()
    step = remat.compile(model, nn.MSELoss(), (x, y))
    model.eval()
    assert float(step(x, y)) == pytest.approx(F.mse_loss(model(x), y).item(), rel=1e-5)
    model.train()
    assert float(step(x, y)) != pytest.approx(F.mse_loss(model.eval()(x), y).item(), rel=1e-5)


def test_single_rows_and_single_timesteps_work():
    model, loss_fn, *batch = MODELS["encoder and decoder, masked"]()
    step = remat.compile(model, loss_fn, tuple(batch))
    for part in ([x[:1] for x in batch], [x[:, :1] for x in batch]):
        assert float(step(*part)) == pytest.approx(loss_fn(model(*part[:-1]), part[-1]).item(), rel=1e-5)


def test_captured_shapes_are_bounded(monkeypatch):
    monkeypatch.setattr(remat._compile.runtime, "_SHAPES", 16)
    model, (x, y) = nn.Linear(5, 5), (torch.randn(40, 5), torch.randn(40, 5))
    step = remat.compile(model, nn.MSELoss(), (x, y))
    for n in range(2, 30):
        assert float(step(x[:n], y[:n])) == pytest.approx(F.mse_loss(model(x[:n]), y[:n]).item(), rel=1e-5)
    assert len(step._shapes) == 16


@pytest.mark.parametrize("lr", [None, float("nan"), float("inf"), -1.0])
def test_learning_rates_that_are_no_rates_are_refused(lr):
    _, (x, y), step = linear_step(optimizer="sgd", lr=0.1)
    step.lr = lr
    with pytest.raises(remat.Error, match="lr"):
        step(x, y)


def test_no_micro_steps_are_refused():
    with pytest.raises(remat.Error, match="micro_steps is 0"):
        linear_step(micro_steps=0)


def test_micro_steps_with_an_optimizer_are_refused():
    with pytest.raises(remat.Error, match="micro_steps"):
        linear_step(optimizer="sgd", lr=0.1, micro_steps=2)


def test_arguments_are_like_the_examples():
    _, (x, y), step = linear_step()
    for batch in ((x,), (x, y, y), (x[0], y), (x.long(), y), (1, y)):
        with pytest.raises(remat.Error, match="example_batch"):
            step(*batch)


# ---- Examples -------------------------------------------------------------------------------------------------------

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "python"


def run_example(name, *flags):
    ran = subprocess.run([sys.executable, EXAMPLES / name, *flags], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_compiled_language_model_runs(tmp_path):
    (tmp_path / "text").write_text("the cat sat on the mat and the dog sat on the cat . " * 40)
    flags = "--nhid=16 --emsize=16 --bptt=40 --epochs=2 --lr=5 --dropout=0 --memory-budget=1MiB".split()
    losses = re.findall(r"epoch \d: loss ([\d.]+)", run_example("compiled_language_model.py", f"--data={tmp_path}/text", *flags))
    assert float(losses[1]) < float(losses[0])


def test_resnet_runs():
    pytest.importorskip("torchvision", reason="torchvision cannot be imported")
    assert "has not seen" in run_example("resnet.py", "--size=32", "--batch-size=4", "--steps=5")


class Learned(nn.Module):
    """Initial states that are parameters, the same for all rows."""

    def __init__(self, layer, spread):
        super().__init__()
        self.rnn, self.spread = layer(5, 16, 2, batch_first=True), spread
        self.states = nn.ParameterList([torch.randn(2, 1, 16) for _ in range(1 + (layer is nn.LSTM))])

    def forward(self, x):
        states = tuple(self.spread(s, x.shape[0]) for s in self.states)
        return self.rnn(x, states if len(states) > 1 else states[0])[0]


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize(
    "spread",
    [
        lambda s, n: s.expand(-1, n, -1),
        lambda s, n: s.repeat(1, n, 1),
        lambda s, n: s.tanh().expand(-1, n, -1).contiguous(),
        lambda s, n: s[0, 0].expand(2, n, 16),
    ],
)
def test_initial_states_are_learned(layer, spread):
    step = check(Learned(layer, spread), nn.MSELoss(), torch.randn(B, T, 5), torch.randn(B, T, 16))
    assert float(step(torch.randn(B - 1, T, 5), torch.randn(B - 1, T, 16))) > 0


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_sequences_without_a_batch_axis_work(layer):
    class Last(LanguageModel):
        def forward(self, tokens):
            return super().forward(tokens)[-1]

    check(LanguageModel(layer), nn.CrossEntropyLoss(), tokens(T), tokens(T))
    check(Last(layer), nn.CrossEntropyLoss(), tokens(T), tokens())


CAUSAL = torch.ones(T, T).triu(1).bool()


@pytest.mark.parametrize("mask", [CAUSAL, torch.zeros(T, T).masked_fill(CAUSAL, -torch.inf)], ids=["Boolean", "-inf"])
@pytest.mark.parametrize("is_causal", [None, True])
def test_transformer_encoder_takes_a_causal_mask_and_padding(mask, is_causal):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2)

        def forward(self, x, lengths):
            padding = torch.arange(x.shape[1]) >= lengths[:, None]
            y = self.encoder(x, mask=mask.to(x.dtype) if mask.is_floating_point() else mask, src_key_padding_mask=padding, is_causal=is_causal)
            return y * ~padding[..., None]

    check(Model(), nn.MSELoss(), torch.randn(B, T, 8), torch.tensor([T, 3, 7, 1]), torch.randn(B, T, 8))


@pytest.mark.parametrize("whole", [True, False], ids=["with weights", "without"])
def test_masks_of_the_batch_may_repeat_for_heads_and_rows(whole):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x, mask):
            return self.attention(x, x, x, attn_mask=mask, need_weights=whole)[0]

    masks, x, y = CAUSAL.repeat(2 * B, 1, 1), torch.randn(B, T, 8), torch.randn(B, T, 8)
    masks[2:4, :, 5:] = True
    check(Model(), nn.MSELoss(), x, masks, y)
    if not whole:
        check(Model(), nn.MSELoss(), x, CAUSAL, y)
    masks[2, :, 3:] = True
    check(Model(), nn.MSELoss(), x, masks, y)  # differs between heads


class Buffers(nn.Module):
    """Buffers that become constants of the captured step: an index, a mask, a folded product and a number."""

    def __init__(self):
        super().__init__()
        self.table, self.linear, self.norm = nn.Embedding(6, 5), nn.Linear(5, 5), nn.BatchNorm1d(5)
        self.register_buffer("index", torch.tensor([0, 1, 2, 3]))
        self.register_buffer("mask", torch.tensor([True, False, True, True, False]))
        self.register_buffer("factors", torch.arange(5.0))
        self.register_buffer("number", torch.tensor(2.0))
        self.register_buffer("live", torch.ones(5))

    def forward(self, x):
        y = self.norm(self.linear(x)) + self.table(self.index) * self.live
        return y.masked_fill(self.mask, 0.5) * (self.factors + 1) * self.number


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("index", torch.tensor([2, 3, 4, 5])),
        ("mask", torch.tensor([False, True, True, False, False])),
        ("factors", torch.ones(5)),
        ("number", torch.tensor(3.0)),
        ("live", torch.zeros(5)),
    ],
)
def test_changes_of_buffers_are_seen(name, value, monkeypatch):
    captures = []
    export = remat._compile.runtime.export
    monkeypatch.setattr(remat._compile.runtime, "export", lambda *given: captures.append(1) or export(*given))
    model, (x, y) = Buffers(), regression()
    step = remat.compile(model, nn.MSELoss(), (x, y))
    for _ in range(2):
        step(x, y)
    assert len(captures) == 1
    getattr(model, name).copy_(value)
    peer = copy.deepcopy(model)
    assert float(step(x, y)) == pytest.approx(float(F.mse_loss(peer(x), y)), rel=1e-5)
    assert len(captures) == (1 if name == "live" else 2)


def test_changed_constants_are_refused_where_the_step_updates():
    model, (x, y) = Buffers(), regression()
    step = remat.compile(model, nn.MSELoss(), (x, y), optimizer="sgd", lr=0.1)
    model.mask.logical_not_()
    with pytest.raises(remat.Error, match="mask changed since compile; compile the model again"):
        step(x, y)
