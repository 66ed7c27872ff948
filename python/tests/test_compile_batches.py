"""remat.compile: what batches may be, and how one call follows another."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch cannot be imported; name a Python that has it in REMAT_TORCH_PYTHON")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import remat  # noqa: E402
from test_compile import check  # noqa: E402

B, C = 3, 4


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


class Net(nn.Module):
    """A linear layer, and a buffer, an attribute and a frozen parameter beside it."""

    def __init__(self):
        super().__init__()
        self.linear, self.frozen = nn.Linear(C, C), nn.Parameter(torch.randn(B, C), requires_grad=False)
        self.register_buffer("buffer", torch.randn(B, C))
        self.attribute = torch.randn(B, C)

    def forward(self, *x):
        y = self.linear(x[0]) * (self.buffer + self.attribute + self.frozen)[: len(x[0])]
        return y if len(x) == 1 else F.mse_loss(y * x[1], x[2])


def new(rows=B):
    return torch.randn(rows, C)


def agrees(step, model, loss_fn, *batch):
    """A call has PyTorch's loss and gradients."""
    peer = copy.deepcopy(model)
    peer.zero_grad()
    loss = loss_fn(peer(*batch[:-1]), batch[-1]) if loss_fn else peer(*batch)
    loss.backward()
    assert float(step(*batch)) == pytest.approx(loss.item(), rel=1e-5)
    for p, q in zip(model.parameters(), peer.parameters(), strict=True):
        if p.requires_grad:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("which", ["twice", "view", "buffer", "attribute", "frozen", "weight"])
def test_arguments_of_one_memory_stay_apart(which):
    """The example of an autoencoder is (x, x), or the batch is a tensor of the model."""
    model, x, y = Net(), new(), new()
    held = model.linear.weight.data[:B] if which == "weight" else getattr(model, which, None)
    example = {"twice": (x, x), "view": (x, x[:])}.get(which, (held, y))
    step = remat.compile(model, nn.MSELoss(), example)
    for batch in ((x, y), (y, x), example):
        agrees(step, model, nn.MSELoss(), *batch)


def test_three_arguments_of_one_memory_stay_apart():
    model, x = Net(), new()
    step = remat.compile(model, None, (x, x, x))
    agrees(step, model, None, new(), new(), new())


def test_arguments_of_one_memory_stay_apart_in_later_captures():
    """Of other sizes, with open axes, and of evaluation mode."""
    model, loss = Net(), nn.MSELoss()
    step = remat.compile(model, loss, (new(), new()))
    for rows in (2, 1):
        x = new(rows)
        for batch in ((x, x), (x, new(rows)), (new(rows), x)):
            agrees(step, model, loss, *batch)
    model.eval()
    x = new()
    for batch in ((x, x), (x, new())):
        agrees(step, model, loss, *batch)


def test_named_arguments_of_one_memory_stay_apart():
    """As `input_ids=ids, labels=ids`."""

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(5, C), nn.Linear(C, 5)

        def forward(self, input_ids, labels):
            return F.cross_entropy(self.head(self.embedding(input_ids)), labels)

    model, ids = Tokens(), torch.randint(0, 5, (6,))
    labels = ids.flip(0).index_fill(0, torch.tensor(2), -100)
    step = remat.compile(model, None, {"input_ids": ids, "labels": ids})
    assert step(input_ids=ids, labels=labels).item() == pytest.approx(model(ids, labels).item(), rel=1e-5)


@pytest.mark.parametrize("nested", [lambda x: (x, x), lambda x: [x], lambda x: {"x": x}, lambda x: ()], ids=["tuple", "list", "dict", "empty"])
def test_tensors_in_containers_are_refused(nested):
    x = new()
    with pytest.raises(remat.Error, match=r"argument 1 .*give its tensors as arguments"):
        remat.compile(Net(), nn.MSELoss(), (nested(x), x))


# ---- Calls of one update --------------------------------------------------------------------------------------------


def sequences(rows=3, steps=6):
    return torch.randn(rows, steps, C), torch.randn(rows, steps, C)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(C, C, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0]


def averaged(model, step, batches):
    """The gradients of K calls are the average of PyTorch's."""
    peer = copy.deepcopy(model)
    peer.zero_grad()
    losses = []
    for i, (x, y) in enumerate(batches, 1):
        loss = F.mse_loss(peer(x), y)
        (loss / len(batches)).backward()
        losses.append(loss.item())
        assert float(step(x, y)) == pytest.approx(sum(losses) / i, rel=1e-5)
    for p, q in zip(model.parameters(), peer.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("rows, steps", [(2, 6), (3, 4), (5, 6), (1, 6)])
def test_calls_of_an_update_have_one_shape(rows, steps):
    """A call of another one changes nothing: the update goes on, and the next may have another shape."""
    model = Recurrent()
    step = remat.compile(model, nn.MSELoss(), sequences(), micro_steps=3)
    batches = [sequences() for _ in range(3)]
    peer = copy.deepcopy(model)
    for i, (x, y) in enumerate(batches):
        F.mse_loss(peer(x), y).div(3).backward()
        for _ in range(2 if i else 0):
            before = [p.grad.clone() for p in model.parameters()]
            with pytest.raises(remat.Error, match=rf"call {i + 1} of micro_steps=3: argument 1 is .*\({rows}, {steps}, {C}\) after .*\(3, 6, {C}\)"):
                step(*sequences(rows, steps))
            assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))
        step(x, y)
    for p, q in zip(model.parameters(), peer.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-7)
    averaged(model, step, [sequences(rows, steps) for _ in range(3)])
    averaged(model, step, [sequences() for _ in range(3)])


def test_evaluations_may_come_amid_an_update():
    model, batches = Recurrent(), [sequences() for _ in range(3)]
    step = remat.compile(model, nn.MSELoss(), sequences(), micro_steps=3)
    peer = copy.deepcopy(model)
    for x, y in batches:
        F.mse_loss(peer(x), y).div(3).backward()
        step(x, y)
        step.evaluate(x, y)
        step.evaluate(*sequences(2, 4))
    for p, q in zip(model.parameters(), peer.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-7)


def larger_evaluation(model, step):
    step.evaluate(*sequences(50, 60))


def evaluation_mode(model, step):
    model.eval()
    step(*sequences())


def replaced(model, step):
    model.layer.weight_hh_l0 = nn.Parameter(torch.randn(3 * C, C))
    step(*sequences())


@pytest.mark.parametrize("change, words", [(larger_evaluation, "evaluate larger"), (evaluation_mode, "eval"), (replaced, "weight_hh_l0 was replaced")])
def test_changes_amid_an_update_are_refused(change, words):
    model = Recurrent()
    step = remat.compile(model, nn.MSELoss(), sequences(), micro_steps=2)
    step(*sequences())
    with pytest.raises(remat.Error, match=f"call 2 of micro_steps=2: .*{words}"):
        change(model, step)


def test_update_begins_anew_after_an_error():
    model = Recurrent()
    step = remat.compile(model, nn.MSELoss(), sequences(), micro_steps=2)
    step(*sequences())
    with pytest.raises(remat.Error, match="nan"):
        step(sequences()[0] * float("nan"), sequences()[1])
    averaged(model, step, [sequences(2, 4) for _ in range(2)])


def out_of_range(step, monkeypatch):
    with pytest.raises(remat.Error, match="allow"):
        step(torch.randn(6, C), torch.full((6,), 9))


def interrupted(step, monkeypatch):
    """Ctrl-C takes effect after the pass."""

    def run(self):
        before(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        before = remat.Session.forward_backward
        patch.setattr(remat.Session, "forward_backward", run)
        step(torch.randn(6, C), torch.randint(3, (6,)))


@pytest.mark.parametrize("fails", [out_of_range, interrupted])
def test_update_begins_anew_after_a_call_that_failed(fails, monkeypatch):
    model = nn.Linear(C, 3)
    batches = [(torch.randn(6, C), torch.randint(3, (6,))) for _ in range(3)]
    step = remat.compile(model, F.cross_entropy, batches[0], micro_steps=3)
    for made in range(3):
        for x, y in batches[:made]:
            step(x, y)
        fails(step, monkeypatch)
        model.zero_grad()
        losses = [F.cross_entropy(model(x), y) for x, y in batches]
        wanted = torch.autograd.grad(sum(losses) / 3, model.weight)[0]
        means = [float(step(x, y)) for x, y in batches]
        assert means == pytest.approx([sum(map(float, losses[: n + 1])) / (n + 1) for n in range(3)], rel=1e-5)
        torch.testing.assert_close(model.weight.grad, wanted, rtol=1e-4, atol=1e-7)


def test_named_arguments_may_come_in_any_order():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(C, C)

        def forward(self, x, y):
            return F.mse_loss(self.layer(x), y)

    model, x, y = Named(), new(), new()
    step = remat.compile(model, None, {"x": x, "y": y}, micro_steps=2)
    assert step(x=x, y=y) == step(y=y, x=x)


class Timed(nn.Module):
    """A layer with the sinusoidal embedding of a diffusion model's time, and features that Remat has no ops for."""

    def __init__(self):
        super().__init__()
        self.embed, self.last = nn.Linear(8, 5), nn.Linear(6, 3)
        self.register_buffer("frequencies", torch.tensor([1.0, 0.3, 0.1, 0.03]))

    def forward(self, x, time):
        angles = (time[:, None] * 2 + 1) * self.frequencies
        h = x.log1p() + self.embed(torch.cat([angles.sin(), angles.cos()], -1)).tanh()
        return self.last(torch.cat([h, torch.sort(x, -1).values.median(-1, keepdim=True).values], -1))


def test_functions_of_the_batch_that_remat_lacks_are_pytorchs():
    model = Timed()
    step = remat.compile(model, nn.MSELoss(), (torch.rand(4, 5), torch.rand(4), torch.randn(4, 3)))
    for rows in (4, 4, 7, 2):
        batch = torch.rand(rows, 5), torch.rand(rows) * 9, torch.randn(rows, 3)
        loss = step(*batch)
        ours = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        own = nn.functional.mse_loss(model(*batch[:2]), batch[2])
        own.backward()
        assert float(loss) == pytest.approx(float(own.detach()), rel=1e-5)
        for p, g in zip(model.parameters(), ours, strict=True):
            assert torch.allclose(p.grad, g, rtol=1e-4, atol=1e-6)


def test_functions_of_a_sequence_that_remat_lacks_are_pytorchs():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 2)

        def forward(self, x):
            return self.head(self.rnn((x + 1).log1p().expm1())[0] + self.rnn(torch.erf(x))[0])

    check(Model(), nn.MSELoss(), torch.rand(3, 9, 4), torch.randn(3, 9, 2))


@pytest.mark.parametrize("function", [lambda h, x: h.tan(), lambda h, x: h + torch.randn_like(x), lambda h, x: torch.sort(h)[0]])
def test_functions_that_remat_lacks_of_what_is_computed_are_refused(function):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3)

        def forward(self, x):
            return function(self.first(x), x)

    with pytest.raises(remat.Error, match="cannot be translated"):
        remat.compile(Model(), nn.MSELoss(), (torch.rand(2, 3), torch.rand(2, 3)))


def test_in_place_ops_leave_the_callers_batch_alone():
    """Also the other argument in the same memory."""

    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(C, C)

        def forward(self, x):
            return self.layer(x.mul_(2))

    model, x = InPlace(), new()
    before, expected = x.clone(), F.mse_loss(model.layer(2 * x), x).item()
    step = remat.compile(model, nn.MSELoss(), (x, x))
    assert float(step(x, x)) == pytest.approx(expected, rel=1e-5) and torch.equal(x, before)
