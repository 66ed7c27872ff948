"""remat.compile over the life of a training script: .grad, frozen parameters, losses with state, hooks, threads, copies."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest

torch = pytest.importorskip("torch", reason="torch cannot be imported; name a Python that has it in REMAT_TORCH_PYTHON")

import remat  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.modules.module import register_module_forward_hook, register_module_full_backward_hook  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


def network():
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(rows=6):
    return torch.randn(rows, 5), torch.randint(3, (rows,))


def check(step, model, x, y, loss_fn=F.cross_entropy):
    """The step has the loss and the gradients of a copy of the model."""
    peer, loss_fn = copy.deepcopy((model, loss_fn))
    modules = [m for m in (peer, loss_fn) if isinstance(m, nn.Module)]
    for module in modules:
        module.zero_grad()
    loss = loss_fn(peer(x), y)
    loss.backward()
    assert float(step(x, y)) == pytest.approx(loss.item(), rel=1e-5)
    return [p.grad for module in modules for p in module.parameters()]


def check_gradients(step, model, loss_fn=F.cross_entropy):
    wanted = check(step, model, *batch(), loss_fn)
    own = [p.grad for module in (model, loss_fn) if isinstance(module, nn.Module) for p in module.parameters()]
    for ours, theirs in zip(own, wanted, strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


# ---- .grad


def test_parameters_that_are_frozen_later_have_no_old_gradient():
    """The loop of the documentation calls no zero_grad(): the optimizer must not go on with the last gradient."""
    model = network()
    step = remat.compile(model, F.cross_entropy, batch())
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    check_gradients(step, model)
    optimizer.step()
    model[0].weight.requires_grad_(False)
    check_gradients(step, model)
    before = model[0].weight.clone()
    optimizer.step()
    assert torch.equal(model[0].weight, before)
    model[0].weight.requires_grad_(True)
    check_gradients(step, model)


def test_parameters_that_a_mode_does_not_use_have_no_old_gradient():
    class Branch(nn.Sequential):
        def forward(self, x):
            return self[2](self[1](self[0](x))) + (self[3](x) if self.training else 0)

    model = Branch(*network(), nn.Linear(5, 3))
    step = remat.compile(model, F.cross_entropy, batch())
    for _ in range(2):
        check_gradients(step, model.train())
        check_gradients(step, model.eval())


def test_a_gradient_of_the_script_stays():
    model = network()
    step = remat.compile(model, F.cross_entropy, batch())
    step(*batch())
    model[0].weight.requires_grad_(False)
    model[0].weight.grad = own = torch.ones(8, 5)
    step(*batch())
    assert model[0].weight.grad is own


def assign_data(model):
    for p in model.parameters():
        p.grad.data = p.grad.data.sign()


def convert(model):
    model.double().float()


@pytest.mark.parametrize("change", [assign_data, convert, nn.Module.half, nn.Module.share_memory])
def test_gradients_may_get_other_memory(change):
    model = network()
    step = remat.compile(model, F.cross_entropy, batch())
    for rows in (6, 4, 6):
        step(*batch(rows))
        change(model)
        model.float()
        check_gradients(step, model)


def test_evaluations_leave_grad_alone():
    model = network()
    step = remat.compile(model, F.cross_entropy, batch())
    step(*batch())
    model.zero_grad()
    step.evaluate(*batch())
    assert all(p.grad is None for p in model.parameters())


def test_gradients_of_a_step_compiled_in_inference_mode_may_be_changed():
    model = network()
    with torch.inference_mode():
        step = remat.compile(model, F.cross_entropy, batch())
        step(*batch())
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    check_gradients(step, model)


# ---- Losses with parameters and buffers


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("shift", torch.rand(3))

    def forward(self, logits, y):
        return F.cross_entropy(logits * self.scale + self.shift, y)


def replace_scale(loss_fn):
    loss_fn.scale = nn.Parameter(torch.tensor(0.3))


def replace_shift(loss_fn):
    loss_fn.shift = torch.rand(3)


def freeze_scale(loss_fn):
    loss_fn.scale.requires_grad_(False)
    loss_fn.scale.grad = None


@pytest.mark.parametrize("change", [replace_scale, replace_shift, freeze_scale])
def test_changed_losses_are_captured_again_or_refused(change):
    model, loss_fn = network(), Scaled()
    step = remat.compile(model, loss_fn, batch())
    check_gradients(step, model, loss_fn)
    change(loss_fn)
    check_gradients(step, model, loss_fn)
    model, loss_fn = network(), Scaled()
    step = remat.compile(model, loss_fn, batch(), optimizer="sgd", lr=0.1)
    change(loss_fn)
    with pytest.raises(remat.Error, match=r"loss_fn\.s.*compile the model again"):
        step(*batch())


def test_class_weights_may_be_replaced():
    model, loss_fn = network(), nn.CrossEntropyLoss(weight=torch.rand(3))
    step = remat.compile(model, loss_fn, batch())
    check_gradients(step, model, loss_fn)
    loss_fn.weight = torch.rand(3)
    check_gradients(step, model, loss_fn)


def test_gradient_hooks_of_the_loss_are_refused():
    loss_fn = Scaled()
    step = remat.compile(network(), loss_fn, batch())
    loss_fn.scale.register_hook(lambda g: g * 0)
    with pytest.raises(remat.Error, match="loss_fn.scale.*hook"):
        step(*batch())


@pytest.mark.parametrize(
    "layer, name, value",
    [(nn.Dropout(0.5), "p", 0.0), (nn.BatchNorm1d(5), "eps", 0.5), (nn.BatchNorm1d(5), "momentum", 0.9), (nn.LeakyReLU(0.1), "negative_slope", 0.7)],
)
def test_settings_of_layers_may_change(layer, name, value):
    model = nn.Sequential(layer, *network())
    step = remat.compile(model, F.cross_entropy, batch())
    step(*batch())
    setattr(model[0], name, value)
    peer, (x, y) = copy.deepcopy(model), batch()
    assert float(step(x, y)) == pytest.approx(F.cross_entropy(peer(x), y).item(), rel=1e-5)
    for own, other in zip(model.buffers(), peer.buffers(), strict=True):
        torch.testing.assert_close(own, other)
    step = remat.compile(model, F.cross_entropy, batch(), optimizer="sgd", lr=0.1)
    setattr(model[0], name, 0.25)
    with pytest.raises(remat.Error, match=rf"0.{name} changed to 0.25 since compile"):
        step(x, y)


def test_settings_of_the_loss_may_change():
    model, loss_fn = network(), nn.CrossEntropyLoss()
    step = remat.compile(model, loss_fn, batch())
    step(*batch())
    loss_fn.label_smoothing, loss_fn.ignore_index = 0.3, 1
    check_gradients(step, model, loss_fn)


# ---- Hooks


def double(module, given, out):
    return out * 2


def test_forward_hooks_that_come_and_go_are_captured():
    model = network()
    step = remat.compile(model, F.cross_entropy, batch())
    hooks = [model[2].register_forward_hook(double), model[2].register_forward_pre_hook(lambda m, given: (given[0] * 3,))]
    check_gradients(step, model)
    for hook in hooks:
        hook.remove()
        check_gradients(step, model)
    step = remat.compile(model, F.cross_entropy, batch(), optimizer="sgd", lr=0.1)
    model[2].register_forward_hook(double)
    with pytest.raises(remat.Error, match="forward hook of module '2'.*compile the model again"):
        step(*batch())


def test_forward_hooks_with_effects_alone_are_refused():
    model, seen = network(), []
    hook = model[0].register_forward_hook(lambda module, given, out: seen.append(out.detach()))
    with pytest.raises(remat.Error, match="forward hook .*lambda.* of module '0' returns None.*remove it"):
        remat.compile(model, F.cross_entropy, batch())
    model(batch()[0])
    assert type(seen[-1]) is torch.Tensor  # the hook is as it was
    hook.remove()
    remat.compile(model, F.cross_entropy, batch())


@pytest.mark.parametrize("register, kind", [(register_module_full_backward_hook, "backward"), (register_module_forward_hook, "forward")])
def test_hooks_of_all_modules_are_refused(register, kind):
    step = remat.compile(network(), F.cross_entropy, batch())
    hook = register(lambda *given: None)
    try:
        with pytest.raises(remat.Error, match=f"{kind} hook of all modules"):
            step(*batch())
    finally:
        hook.remove()


# ---- Threads, copies


def test_each_thread_gets_the_loss_of_its_own_batch():
    batches = [batch() for _ in range(4)]
    step = remat.compile(network(), F.cross_entropy, batches[0], threads=1)
    wanted = [float(step.evaluate(*b)) for b in batches]
    wrong = []

    def work(i):
        for k in range(300):
            loss = float((step.evaluate if k % 2 else step)(*batches[i]))
            if loss != wanted[i]:
                wrong.append((i, loss))

    run_at_once(work)
    assert not wrong


def test_models_may_be_compiled_in_several_threads():
    wrong = []

    def work(i):
        try:
            model = network()
            step = remat.compile(model, F.cross_entropy, batch(), threads=1)
            for rows in (6, 4, 3):
                step(*batch(rows))
        except BaseException as error:
            wrong.append(error)

    run_at_once(work)
    assert not wrong


def run_at_once(work):
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_are_refused(copied):
    step = remat.compile(network(), F.cross_entropy, batch())
    with pytest.raises(remat.Error, match="step cannot be copied.*model"):
        copied(step)
    with pytest.raises(remat.Error, match="session cannot be copied"):
        copied(step.session)


# ---- Refused


@pytest.mark.parametrize("name, value", [("clip_grad_norm", 1.0), ("weight_decay", 0.1), ("momentum", 0.9), ("groups", "bias:lr=0")])
def test_settings_of_updates_without_an_optimizer_are_refused(name, value):
    with pytest.raises(remat.Error, match=f"{name} is given without an optimizer; give optimizer"):
        remat.compile(network(), F.cross_entropy, batch(), **{name: value})


class Returns(nn.Module):
    def __init__(self, made):
        super().__init__()
        self.layer, self.made = nn.Linear(5, 3), made

    def forward(self, x, y):
        return self.made(F.cross_entropy(self.layer(x), y))


@pytest.mark.parametrize(
    "model, words",
    [
        (nn.Sequential(nn.LazyLinear(3)), "0.weight has no shape yet; call the model once"),
        (torch.jit.script(network()), "ScriptModule; give the nn.Module"),
    ],
)
def test_models_that_are_none_are_refused(model, words):
    with pytest.raises(remat.Error, match=words):
        remat.compile(model, F.cross_entropy, batch())


@pytest.mark.parametrize("made", [lambda loss: {"loss": loss}, lambda loss: (loss, None), lambda loss: None])
def test_results_without_a_loss_are_refused(made):
    with pytest.raises(remat.Error, match=r"returns an object of type \w+ without .loss; give loss_fn"):
        remat.compile(Returns(made), None, batch())


def test_dicts_with_a_loss_function_are_refused():
    x, y = batch()
    with pytest.raises(remat.Error, match="example_batch is a dict.*loss_fn None"):
        remat.compile(network(), F.cross_entropy, {"x": x, "y": y})


# ---- Batch norm in both modes


def normed(**settings):
    """Statistics that are not the initial ones."""
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4, **settings), nn.ReLU(), nn.Conv2d(4, 3, 3, bias=False), nn.BatchNorm2d(3, **settings),
        nn.Flatten(), nn.Linear(3 * 4, 5),
    )  # fmt: skip
    for _ in range(3):
        model(1 + torch.randn(6, 2, 6, 6))
    return model


def freeze(model, call):
    """As fine-tuning does: the statistics stay, gains and biases learn."""
    for module in model:
        module.train(not isinstance(module, nn.BatchNorm2d))


def freeze_and_change(model, call):
    freeze(model, call)
    if call == 1 and model[1].running_mean is not None:
        model[1].running_mean.add_(1.0)
        model[4].running_var.mul_(2.0)


MODES = {
    "frozen": freeze,
    "frozen, then other statistics": freeze_and_change,
    "evaluation": lambda model, call: model.eval(),
    "in turn": lambda model, call: model.train(call % 2 == 0),
}


@pytest.mark.parametrize("settings", [{}, {"affine": False}, {"track_running_stats": False}, {"eps": 0.1}], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_batch_norm_follows_its_mode(mode, settings):
    model, x, y = normed(**settings), torch.randn(6, 2, 6, 6), torch.randint(5, (6,))
    peer = copy.deepcopy(model)
    step = remat.compile(model, F.cross_entropy, (x, y))
    for call in range(4):
        for each in (model, peer):
            MODES[mode](each, call)
        peer.zero_grad()
        loss = F.cross_entropy(peer(x), y)
        loss.backward()
        assert float(step(x, y)) == pytest.approx(loss.item(), rel=1e-5)
        for ours, theirs in zip(model.parameters(), peer.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
        for ours, theirs in zip(model.buffers(), peer.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_after_a_recurrent_layer(training):
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.norm, self.head = nn.LSTM(3, 4, batch_first=True), nn.BatchNorm1d(4), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.norm(self.rnn(x)[0].transpose(1, 2)).transpose(1, 2))

    model, x, y = Tagger(), torch.randn(3, 7, 3), torch.randn(3, 7, 2)
    model(x)
    model.norm.train(training)
    wanted = check(remat.compile(model, F.mse_loss, (x, y)), model, x, y, F.mse_loss)
    for ours, theirs in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(ours.grad, theirs, rtol=1e-4, atol=1e-7)
