"""remat.nn: layers against torch.nn's, and what PyTorch does around them. Needs torch."""

import copy
import gc
import pathlib
import pickle
import re
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch", reason="needs torch; name a Python that has it in REMAT_TORCH_PYTHON")

import remat  # noqa: E402
import remat.nn  # noqa: E402
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence  # noqa: E402

C, H = 5, 8
KINDS = [
    ("LSTM", {}), ("GRU", {}), ("RNN", {}),
    ("LSTM", {"num_layers": 2, "bidirectional": True}),
    ("GRU", {"num_layers": 2, "bidirectional": True, "bias": False, "batch_first": True}),
    ("RNN", {"num_layers": 3, "batch_first": True}),
    ("RNN", {"num_layers": 2, "bidirectional": True, "nonlinearity": "relu"}),
]  # fmt: skip


def pair(mode, width=C, **arguments):
    """torch's layer and Remat's: the same seed draws the same weights."""
    layers = []
    for module in (torch.nn, remat.nn):
        torch.manual_seed(1)
        layers.append(getattr(module, mode)(width, H, **arguments))
    return layers


def states_of(layer, batch, seed=3):
    torch.manual_seed(seed)
    shape = (layer.num_layers * (1 + layer.bidirectional), batch, H)
    given = tuple(torch.randn(shape) for _ in range(1 + (layer.mode == "LSTM")))
    return given


def results(layer, x, states=None, dtype=torch.float32):
    """Outputs, final states, and the gradients of everything for a loss of all of these."""
    layer = copy.deepcopy(layer).to(dtype) if dtype != torch.float32 else layer
    x = x.detach().clone().to(dtype).requires_grad_()
    states = [s.detach().clone().to(dtype).requires_grad_() for s in states or ()]
    y, final = layer(x, (tuple(states) if len(states) > 1 else states[0]) if states else None)
    final = final if isinstance(final, tuple) else (final,)
    weight = torch.linspace(-1, 1, y.numel(), dtype=dtype).view(y.shape)
    loss = (weight * y).sum() + sum((f * f).sum() for f in final)
    gradients = torch.autograd.grad(loss, [x, *states, *layer.parameters()])
    return [y.detach(), *(f.detach() for f in final), *gradients]


def expect_near(exact, theirs, ours, rounding=5e-7):
    """A float's rounding is 6e-8. Sums of a few hundred terms in another order differ by some of these."""
    for a, b, c in zip(exact, theirs, ours, strict=True):
        assert a.shape == c.shape
        a, b, c = a.detach(), b.detach(), c.detach()
        assert float((c - a).norm()) <= max(2 * float((b - a).norm()), rounding * float(a.norm()))


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("mode, arguments", KINDS)
def test_layers_match_torch(mode, arguments):
    theirs, ours = pair(mode, **arguments)
    assert list(theirs.state_dict()) == list(ours.state_dict())
    assert equal(theirs.state_dict().values(), ours.state_dict().values())
    x = torch.randn(11, 11, C)
    for states in (states_of(theirs, 11), None):
        exact = results(theirs, x, states, torch.float64)
        expect_near(exact, results(theirs, x, states), results(ours, x, states))
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())


@pytest.mark.parametrize("mode", ["LSTM", "GRU", "RNN"])
def test_sums_over_many_rows_are_as_exact_as_torchs(mode):
    """If every row were added to the whole sum, the gradients of weights would be 4 times as far from double."""
    layers = []
    for module in (torch.nn, remat.nn):
        torch.manual_seed(1)
        layers.append(getattr(module, mode)(32, 32))
    x, dy = torch.randn(2, 1000, 8, 32)
    found = []
    for layer in (copy.deepcopy(layers[0]).double(), *layers):
        y, _ = layer(x.to(layer.weight_ih_l0.dtype))
        y.backward(dy.to(y.dtype))
        found.append([layer.weight_ih_l0.grad, layer.weight_hh_l0.grad])
    for exact, theirs, ours in zip(*found, strict=True):
        assert float((ours - exact).norm()) <= 2 * float((theirs - exact).norm())


def test_unbatched_input_matches_torch():
    theirs, ours = pair("LSTM", num_layers=2)
    x, states = torch.randn(9, C), [s.squeeze(1) for s in states_of(theirs, 1)]
    exact = results(theirs, x, states, torch.float64)
    expect_near(exact, results(theirs, x, states), results(ours, x, states))


def min_gru(x, weight, h):
    hidden, gate = (x @ weight.T).chunk(2, -1)
    z, g = torch.sigmoid(gate), torch.where(hidden >= 0, hidden + 0.5, torch.sigmoid(hidden))
    y = []
    for t in range(len(x)):
        h = (1 - z[t]) * h + z[t] * g[t]
        y.append(h)
    return torch.stack(y)


def test_min_gru_matches_its_definition():
    layer = remat.nn.MinGRU(C, H)
    x, h = torch.randn(9, 3, C, requires_grad=True), torch.rand(1, 3, H, requires_grad=True)
    y, final = layer(x, h)
    weight = layer.weight_ih_l0
    ours = torch.autograd.grad(y.square().sum() + final.sum(), [x, h, weight])
    exact = [t.detach().double().requires_grad_() for t in (x, h, weight)]
    right = min_gru(exact[0], exact[2], exact[1][0])
    right_gradients = torch.autograd.grad(right.square().sum() + right[-1].sum(), exact)
    right = [t.detach() for t in (right, *right_gradients)]
    expect_near(right, right, [y.detach(), *ours])


@pytest.mark.parametrize("mode, arguments", [*KINDS, ("GRU", {"num_layers": 2}), ("LSTM", {"num_layers": 2})])
@pytest.mark.parametrize("sort", [True, False])
def test_packed_sequences_match_torch(mode, arguments, sort):
    theirs, ours = pair(mode, **arguments)
    lengths = torch.tensor([7, 5, 5, 1] if sort else [5, 1, 7, 5])
    torch.manual_seed(2)
    data, states = torch.randn(4, 7, C), states_of(theirs, 4)

    def run(layer, dtype):
        layer = copy.deepcopy(layer).to(dtype) if dtype == torch.float64 else layer
        x = data.to(dtype, copy=True).requires_grad_()
        given = [s.to(dtype, copy=True).requires_grad_() for s in states]
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=sort)
        y, final = layer(packed, tuple(given) if len(given) > 1 else given[0])
        y, seen = pad_packed_sequence(y, batch_first=True)
        assert torch.equal(seen, lengths)
        final = final if isinstance(final, tuple) else (final,)
        loss = y.square().sum() + sum((i + 1) * f.sum() for i, f in enumerate(final))
        return [y, *final, *torch.autograd.grad(loss, [x, *given, *layer.parameters()])]

    expect_near(run(theirs, torch.float64), run(theirs, torch.float32), run(ours, torch.float32))


# ---- Plans ----------------------------------------------------------------------------------------------------------


def smallest_budget(make, T, B, **arguments):
    with pytest.raises(remat.Error, match="budget") as caught:
        make(C, H, memory_budget=1000, **arguments).plan(T, B)
    return caught.value.smallest_budget


@pytest.mark.parametrize("mode", ["LSTM", "GRU", "RNN", "MinGRU"])
def test_every_plan_has_the_same_bits(mode):
    arguments = {"num_layers": 2, "bidirectional": mode != "RNN"}
    x = torch.randn(300, 3, C)
    kept = getattr(remat.nn, mode)(C, H, **arguments)
    whole = kept.plan(300, 3)
    right = results(kept, x)
    for budget in ({"segments": 5}, {"memory_budget": smallest_budget(getattr(remat.nn, mode), 300, 3, **arguments)}):
        layer = getattr(remat.nn, mode)(C, H, **arguments, **budget)
        layer.load_state_dict(kept.state_dict())
        plan = layer.plan(300, 3)
        assert plan.budgeted_bytes < whole.budgeted_bytes
        assert plan.recompute_factor > 1
        assert equal(right, results(layer, x))
        assert sum(p.bytes for p in layer._pool.prepared) <= plan.budgeted_bytes


def test_budget_that_is_too_small_names_the_smallest():
    layer = remat.nn.LSTM(C, H, memory_budget=1000)
    with pytest.raises(remat.Error, match="budget") as caught:
        layer(torch.randn(100, 2, C))
    assert caught.value.smallest_budget > 1000


def held(layer):
    return sum(p.bytes for p in layer._pool.prepared)


def test_budget_holds_for_all_calls_and_lengths():
    torch.manual_seed(0)
    free = remat.nn.LSTM(C, H)
    layer = remat.nn.LSTM(C, H, memory_budget=free.plan(200, 2).budgeted_bytes)
    layer.load_state_dict(free.state_dict())
    xs = [torch.randn(T, 2, C) for T in (200, 150, 190, 200)]

    def run(layer):
        ys = [layer(x)[0].square().sum() for x in xs]
        return torch.autograd.grad(sum(ys), list(layer.parameters()))

    right = run(free)
    for _ in range(2):
        assert equal(right, run(layer))
        assert held(layer) <= layer._pool.budget
    assert layer._pool.repeated > 0


def test_idle_sessions_are_bounded():
    layer = remat.nn.LSTM(C, H)
    for T in range(100, 110):
        layer(torch.randn(T, 2, C))[0].sum().backward()
    assert held(layer) <= 2 * max(p.bytes for p in layer._pool.prepared)


# ---- Calls ----------------------------------------------------------------------------------------------------------


def test_several_calls_before_backward():
    theirs, ours = pair("GRU")
    xs = [torch.randn(6, 2, C) for _ in range(3)]

    def run(layer, dtype=torch.float32):
        layer = copy.deepcopy(layer).to(dtype)
        y = torch.cat([layer(x.to(dtype))[0] for x in xs])
        return torch.autograd.grad((y * y).sum(), list(layer.parameters()))

    expect_near(run(theirs, torch.float64), run(theirs), run(ours))
    for _ in range(3):
        losses = [ours(x)[0].square().sum() for x in xs]
        for loss in reversed(losses):
            loss.backward()
    assert len(ours._pool.prepared) == 3
    assert ours._pool.repeated == 0


def test_layer_used_twice_in_one_model():
    theirs, ours = pair("LSTM", width=H)

    def run(layer, dtype=torch.float32):
        layer = copy.deepcopy(layer).to(dtype)
        x = torch.linspace(-1, 1, 6 * 2 * H, dtype=dtype).view(6, 2, H).requires_grad_()
        y, states = layer(x)
        y, _ = layer(y, states)
        return torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])

    expect_near(run(theirs, torch.float64), run(theirs), run(ours))


def test_graphs_dropped_without_backward_keep_no_session():
    layer = remat.nn.LSTM(C, H)
    for _ in range(10):
        layer(torch.randn(6, 2, C))
    gc.collect()
    assert len(layer._pool.prepared) == 1


def test_retained_graph_repeats_the_forward_pass():
    layer = remat.nn.LSTM(C, H)
    loss = layer(torch.randn(6, 2, C))[0].square().sum()
    first = torch.autograd.grad(loss, list(layer.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(layer.parameters()))
    assert equal(first, second) and layer._pool.repeated == 1


def test_moved_tensors_repeat_the_forward_pass():
    layer = remat.nn.LSTM(C, H)
    x = torch.randn(6, 2, C)
    right = torch.autograd.grad(layer(x)[0].square().sum(), list(layer.parameters()))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(force=True).copy(), torch.from_numpy):
        losses = [layer(x)[0].square().sum() for _ in range(2)]
    x = None
    for loss in losses:
        assert equal(right, torch.autograd.grad(loss, list(layer.parameters())))
    assert layer._pool.repeated == 2


def test_backward_after_the_layer_is_deleted():
    layer = remat.nn.LSTM(C, H)
    parameters = list(layer.parameters())
    x = torch.randn(6, 2, C)
    right = torch.autograd.grad(layer(x)[0].square().sum(), parameters)
    loss = layer(x)[0].square().sum()
    pool = layer._pool
    del layer
    gc.collect()
    assert equal(right, torch.autograd.grad(loss, parameters))
    assert not pool.prepared


def test_any_update_of_weights_is_seen():
    layer, like = remat.nn.LSTM(C, H), remat.nn.LSTM(C, H)
    x = torch.randn(6, 2, C)
    before = results(layer, x)
    layer.weight_hh_l0.data.mul_(0.5)  # PyTorch does not count this as a version
    layer.weight_ih_l0.detach().numpy()[0, 0] += 1
    assert not torch.equal(before[0], layer(x)[0])
    like.load_state_dict(layer.state_dict())
    assert equal(results(like, x), results(layer, x))


def test_optimizer_between_forward_and_backward_is_refused():
    layer = remat.nn.LSTM(C, H)
    loss = layer(torch.randn(6, 2, C))[0].sum()
    with torch.no_grad():
        layer.weight_hh_l0 += 1
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


def test_gradient_of_the_output_is_not_changed():
    layer = remat.nn.LSTM(C, H, num_layers=2, bidirectional=True)
    y, _ = layer(torch.randn(6, 2, C))
    given = torch.randn_like(y)
    before = given.clone()
    y.backward(given)
    assert torch.equal(before, given)


def test_threads_share_a_layer():
    layer = remat.nn.GRU(C, H)
    xs = [torch.randn(40, 2, C) for _ in range(4)]
    right = [results(layer, x) for x in xs]
    same = []

    def work(i):
        same.extend(equal(right[i], results(layer, xs[i])) for _ in range(20))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(same) == 80 and all(same)


def test_frozen_weights_and_inputs():
    theirs, ours = pair("LSTM")
    for layer in (theirs, ours):
        layer.weight_hh_l0.requires_grad_(False)
    x = torch.randn(6, 2, C)
    for layer in (theirs, ours):
        layer(x)[0].square().sum().backward()
    assert ours.weight_hh_l0.grad is None
    assert torch.allclose(ours.weight_ih_l0.grad, theirs.weight_ih_l0.grad, atol=1e-6)


# ---- Dropout --------------------------------------------------------------------------------------------------------


def test_dropout_follows_torch_manual_seed_and_eval():
    layer = remat.nn.LSTM(C, H, num_layers=2, dropout=0.5)
    x = torch.randn(6, 2, C)
    torch.manual_seed(5)
    first = results(layer, x)
    other = results(layer, x)
    torch.manual_seed(5)
    assert equal(first, results(layer, x)) and not torch.equal(first[0], other[0])
    torch.manual_seed(5)
    with torch.no_grad():
        assert torch.equal(first[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])
    assert not torch.equal(first[0], layer(x)[0])


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_repeats_the_dropout(reentrant):
    layer = remat.nn.LSTM(C, H, num_layers=2, dropout=0.5)
    x = torch.randn(6, 2, C, requires_grad=True)

    def run(function):
        torch.manual_seed(5)
        return torch.autograd.grad(function(x)[0].square().sum(), [x, *list(layer.parameters())][:1])

    def checkpointed(x):
        return torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=reentrant)

    if reentrant:
        torch.manual_seed(5)
        checkpointed(x)[0].square().sum().backward()
        assert equal(run(layer), [x.grad])
    else:
        assert equal(run(layer), run(checkpointed))


def test_everything_dropped_is_finite():
    layer = remat.nn.LSTM(C, H, num_layers=2, dropout=1.0)
    assert all(torch.isfinite(t).all() for t in results(layer, torch.randn(6, 2, C)))


# ---- What PyTorch does with a module --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
@pytest.mark.parametrize("mode", ["LSTM", "LSTMCrossEntropy"])
def test_copies_have_sessions_of_their_own(how, mode):
    layer = remat.nn.LSTM(C, H) if mode == "LSTM" else remat.nn.LSTMCrossEntropy(C, H, 7)
    given = [torch.randn(6, 2, C)] + [torch.randint(7, (6, 2))] * (mode != "LSTM")
    y = layer(*given)[0]
    other = how(layer)
    assert other._pool is not layer._pool
    assert torch.equal(y, other(*given)[0])
    other.weight_hh_l0.data.zero_()
    assert torch.equal(y, layer(*given)[0]) and not torch.equal(y, other(*given)[0])


def test_no_grad_and_inference_mode_keep_nothing():
    layer = remat.nn.LSTM(C, H)
    x = torch.randn(500, 2, C)
    y = layer(x)[0]
    kept = held(layer)
    small = remat.nn.LSTM(C, H)
    small.load_state_dict(layer.state_dict())
    with torch.no_grad():
        assert torch.equal(y, small(x)[0])
    with torch.inference_mode():
        assert torch.equal(y, small(x)[0])
    assert held(small) < kept / 2


def test_autocast_computes_in_float32():
    layer = remat.nn.LSTM(C, H)
    x = torch.randn(6, 2, C)
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = layer(x.bfloat16())
        y.float().sum().backward()
    assert y.dtype == torch.float32 and layer.weight_ih_l0.grad.dtype == torch.float32
    assert torch.equal(y, layer(x.bfloat16().float())[0])


def test_second_derivatives_are_refused():
    layer = remat.nn.LSTM(C, H)
    x = torch.randn(6, 2, C, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        gradient.sum().backward()


def operators():
    layer = remat.nn.LSTM(C, H, num_layers=2, bidirectional=True)
    losses = [remat.nn.LSTMCrossEntropy(C, H, 7, weight=w) for w in (None, torch.rand(7))]
    for grad in (True, False):
        weights = [p.detach().requires_grad_(grad) for p in layer.parameters()]
        x = torch.randn(6, 3, C, requires_grad=grad)
        states = torch.zeros(2, 4, 3, H, requires_grad=grad)
        seed = None if grad else torch.tensor(5)
        yield torch.ops.remat_nn.forward.default, (layer._number, x, states, weights, seed, 2 * H, grad, grad), layer
        loss = losses[grad]
        weights = [p.detach().requires_grad_(grad) for p in loss.parameters()]
        targets, states = torch.randint(7, (6, 3)), torch.zeros(2, 1, 3, H, requires_grad=grad)
        given = (loss._number, x, targets, states, weights, None, grad, grad, loss.weight)
        yield torch.ops.remat_nn.loss.default, given, loss


def test_operators_pass_opcheck():
    for operator, arguments, _ in operators():
        torch.library.opcheck(operator, arguments)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = remat.nn.LSTM(C, H, num_layers=2, dropout=0.3, bidirectional=True)
        self.second = remat.nn.GRU(2 * H, H, batch_first=True)
        self.loss = remat.nn.LSTMCrossEntropy(H, H, 7)

    def forward(self, x, targets):
        y, _ = self.first(x)
        y, h = self.second(y.transpose(0, 1))
        loss, _ = self.loss(y.transpose(0, 1), targets)
        return loss + h.square().sum()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_model_has_the_same_bits(backend):
    torch._dynamo.reset()
    model = Model()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    x, targets = torch.randn(6, 3, C, requires_grad=True), torch.randint(7, (6, 3))
    for T in (6, 4, 6):
        found = []
        for function in (model, compiled):
            torch.manual_seed(4)
            loss = function(x[:T], targets[:T])
            found.append([loss.detach(), *torch.autograd.grad(loss, [x, *model.parameters()])])
        assert equal(*found)
        model.eval()
        with torch.no_grad():
            assert torch.equal(model(x, targets), compiled(x, targets))
        model.train()
    assert model.first._pool.repeated == 0


def test_remat_compile_takes_these_layers():
    theirs, ours = pair("LSTM", num_layers=2)
    x, y = torch.randn(6, 3, C), torch.randn(6, 3, H)
    losses = []
    for layer in (theirs, ours):
        step = remat.compile(layer, lambda out, y: torch.nn.functional.mse_loss(out[0], y), (x, y))
        losses.append(float(step(x, y)))
    assert losses[0] == losses[1]
    assert torch.equal(theirs.weight_hh_l0.grad, ours.weight_hh_l0.grad)


def work(rank, folder):
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = Model()
    model.first.dropout = 0.0
    model.first.__setstate__(model.first.__getstate__())
    alone = copy.deepcopy(model)
    model = torch.nn.parallel.DistributedDataParallel(model)
    torch.manual_seed(1)
    x, targets = torch.randn(2, 6, 3, C), torch.randint(7, (2, 6, 3))
    model(x[rank], targets[rank]).backward()
    for i in range(2):
        (alone(x[i], targets[i]) / 2).backward()
    for a, b in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-6)
    dist.destroy_process_group()


def test_two_ranks_of_distributed_data_parallel(tmp_path):
    torch.multiprocessing.spawn(work, (str(tmp_path),), nprocs=2)


# ---- Refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: remat.nn.LSTM(C, H, proj_size=3), "proj_size is 3"),
        (lambda: remat.nn.LSTM(C, H, dtype=torch.float64), "float64"),
        (lambda: remat.nn.RNN(C, H, nonlinearity="gelu"), "'gelu'; it must be 'tanh' or 'relu'"),
        (lambda: remat.nn.RNN(C, H, 1, "gelu"), "'gelu'"),
        (lambda: remat.nn.LSTM(C, H, segments=4, memory_budget="1MiB"), "segments"),
        (lambda: remat.nn.LSTM(C, H)(torch.randn(3, 2, C).double()), "float64"),
        (lambda: remat.nn.LSTM(C, H)(torch.randn(3, 2, C, device="meta")), "meta"),
        (lambda: remat.nn.LSTM(C, H)(torch.randn(3, 2, C + 1)), "Expected 5, got 6"),
        (lambda: remat.nn.LSTM(C, H)(torch.randn(3, 2, C), (torch.zeros(1, 2, H), torch.zeros(1, 3, H))), "c_0"),
        (lambda: remat.nn.LSTMCrossEntropy(C, H, 4)(torch.randn(3, 2, C), torch.full((3, 2), 4)), "targets"),
        (lambda: remat.nn.LSTMCrossEntropy(C, H, 4)(torch.randn(3, 2, C), torch.zeros(3, 2)), "targets is torch.float32"),
        (lambda: remat.nn.LSTMCrossEntropy(C, H, 4)(torch.randn(3, 2, C), torch.full((3, 2), 2**32)), "4294967296"),
        (lambda: remat.nn.LSTMCrossEntropy(C, H, 4, ignore_index=2**32), "ignore_index is 4294967296"),
        (lambda: remat.nn.LSTMCrossEntropy(C, H, 4, weight=torch.ones(3)), "weight"),
    ],
)
def test_mistakes_are_refused_in_words(make, words):
    with pytest.raises((ValueError, RuntimeError, remat.Error), match=words):
        make()


def replaced(layer, name, shape):
    setattr(layer, name, torch.nn.Parameter(torch.zeros(shape)))
    return layer


def packed():
    return pack_padded_sequence(torch.randn(4, 2, C), [4, 2])


@pytest.mark.parametrize("arguments", [{}, {"num_layers": 2, "bidirectional": True}])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_converted_weights_are_refused(arguments, dtype):
    layer = remat.nn.LSTM(C, H, **arguments).to(dtype)
    for x in (torch.randn(3, 2, C), packed()):
        with pytest.raises(ValueError, match=f"weight_ih_l0 is {dtype}"):
            layer(x)
    loss = remat.nn.LSTMCrossEntropy(C, H, 4)
    loss.head.to(dtype)
    with pytest.raises(ValueError, match=f"head.weight is {dtype}"):
        loss(torch.randn(3, 2, C), torch.zeros(3, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="meta"):
        remat.nn.LSTM(C, H).to("meta")(torch.randn(3, 2, C))


def test_autocast_converts_half_weights_and_refuses_double():
    layer = remat.nn.LSTM(C, H).bfloat16()
    x = torch.randn(3, 2, C)
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = layer(x)
        y.sum().backward()
        assert torch.equal(y, copy.deepcopy(layer).float()(x)[0])
        assert layer.weight_hh_l0.grad.dtype == torch.bfloat16
        with pytest.raises(ValueError, match="float64"):
            layer.double()(x)
        with pytest.raises(ValueError, match="float64"):
            layer.float()(x.double())


def test_weights_of_another_shape_are_refused():
    with pytest.raises(RuntimeError, match=r"weight_hh_l0 has the shape \(32, 3\)"):
        replaced(remat.nn.LSTM(C, H), "weight_hh_l0", (4 * H, 3))(torch.randn(3, 2, C))
    with pytest.raises(RuntimeError, match=r"weight_hh_l1 has the shape \(32, 3\)"):
        replaced(remat.nn.LSTM(C, H, num_layers=2), "weight_hh_l1", (4 * H, 3))(packed())


def test_weights_that_are_not_contiguous_have_the_same_bits():
    layer = remat.nn.LSTM(C, H)
    strided = copy.deepcopy(layer)
    for weight in strided.parameters():
        if weight.dim() == 2:
            weight.data = weight.data.t().contiguous().t()
    x = torch.randn(6, 2, C)
    assert equal(results(layer, x), results(strided, x))


@pytest.mark.parametrize("change", [
    lambda w: w.double(), lambda w: w[:, :3].contiguous(), lambda w: w.t().contiguous().t(), lambda w: w.mul_(0.5),
])  # fmt: skip
def test_weights_changed_before_backward_are_refused(change):
    layer = remat.nn.LSTM(C, H)
    y, _ = layer(torch.randn(6, 2, C))
    layer.weight_hh_l0.data = change(layer.weight_hh_l0.data)
    with pytest.raises((ValueError, RuntimeError), match="weight_hh_l0") as caught:
        y.sum().backward()
    assert "remat_" not in str(caught.value)


@pytest.mark.parametrize("budget", [-5, -0.5, float("nan"), float("inf"), 2**64, "9" * 400])
def test_negative_and_infinite_budgets_are_refused(budget):
    graph = remat.Graph()
    x = graph.input("x", "f32", "static", (2, C))
    y = graph.linear(x, graph.param("w", (H, C), remat.zeros()))
    for make in (lambda: remat.nn.LSTM(C, H, memory_budget=budget),
                 lambda: remat.Session(graph, outputs=y, memory_budget=budget)):  # fmt: skip
        with pytest.raises(remat.Error, match="is not a size"):
            make()


def test_session_names_its_methods_in_errors():
    graph = remat.Graph()
    y = graph.linear(graph.input("x", "f32", "static", (2, C)), graph.param("w", (H, C), remat.zeros()))
    session = remat.Session(graph, outputs=y)
    started = remat.Session(graph, outputs=y)
    started.forward(x=torch.zeros(2, C))
    for call in (session.forward, lambda: session.outputs["output.0"], started.backward):
        with pytest.raises(remat.Error) as caught:
            call()
        assert "remat_" not in str(caught.value)


USES = {
    "layer": "import remat.nn; remat.nn.LSTM(3, 4)(x)[0].sum().backward()",
    "compile": "remat.compile(torch.nn.LSTM(3, 4), lambda out, y: torch.nn.functional.mse_loss(out[0], y), (x, y))(x, y)",
}


@pytest.mark.parametrize("order", [("layer", "compile"), ("compile", "layer")])
def test_layers_and_compile_work_in_one_process(order):
    start = "import remat, torch; x, y = torch.randn(5, 2, 3), torch.randn(5, 2, 4)"
    output("-c", "\n".join([start, *(USES[name] for name in order)]))


# ---- With the loss --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{}, {"num_layers": 2, "bidirectional": True, "batch_first": True}])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"ignore_index": 2, "label_smoothing": 0.1, "head_bias": False},
        {"ignore_index": 3, "label_smoothing": 0.2, "weight": torch.linspace(0.2, 3, 7)},
    ],
)
def test_lstm_cross_entropy_matches_torch(arguments, more):
    V = 7
    torch.manual_seed(1)
    ours = remat.nn.LSTMCrossEntropy(C, H, V, segments=3, **arguments, **more)
    x, targets = torch.randn(40, 40, C), torch.randint(V, (40, 40))
    states = states_of(ours, 40)
    smooth = {k: v for k, v in more.items() if k != "head_bias"}

    def cast(settings, dtype):
        return {k: v.to(dtype) if isinstance(v, torch.Tensor) else v for k, v in settings.items()}

    def reference(dtype):
        theirs = torch.nn.LSTM(C, H, **arguments).to(dtype)
        theirs.load_state_dict({k: v for k, v in ours.state_dict().items() if k in theirs.state_dict()})
        head = copy.deepcopy(ours.head).to(dtype)
        a = x.to(dtype, copy=True).requires_grad_()
        given = [s.to(dtype, copy=True).requires_grad_() for s in states]
        y, final = theirs(a, tuple(given))
        loss = torch.nn.functional.cross_entropy(head(y).flatten(0, 1), targets.flatten(), **cast(smooth, dtype))
        weights = [*theirs.parameters(), *head.parameters()]
        return [loss.detach(), *final, *torch.autograd.grad(3 * loss, [a, *given, *weights])]

    a = x.clone().requires_grad_()
    given = [s.clone().requires_grad_() for s in states]
    loss, final = ours(a, targets, tuple(given))
    assert not final[0].requires_grad
    gradients = torch.autograd.grad(3 * loss, [a, *given, *ours.parameters()])
    found = [loss.detach(), *final, *gradients]
    expect_near(reference(torch.float64), reference(torch.float32), found, 1e-6)  # the head sums 1600 rows one by one
    if "label_smoothing" not in smooth:
        with torch.no_grad():
            assert torch.equal(loss, ours(x, targets, states)[0])
        logits, _ = ours.logits(x, states)
        again = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        assert abs(float(again.detach()) - float(loss.detach())) < 1e-6


def test_loss_of_ignored_targets_alone_is_zero():
    layer = remat.nn.LSTMCrossEntropy(C, H, 4)
    loss, _ = layer(torch.randn(3, 2, C), torch.full((3, 2), -100))
    loss.backward()
    assert float(loss.detach()) == 0 and all(not p.grad.any() for p in layer.parameters())


def test_logits_are_never_whole():
    V, T = 500, 8000
    layer = remat.nn.LSTMCrossEntropy(C, H, V)
    loss, _ = layer(torch.randn(T, 2, C, requires_grad=True), torch.randint(V, (T, 2)))
    loss.backward()
    assert held(layer) == layer.plan(T, 2).budgeted_bytes < T * 2 * V * 4 / 3


def test_dropout_may_change_between_calls():
    _, layer = pair("LSTM", num_layers=2)
    torch.manual_seed(2)
    x = torch.randn(6, 3, C)
    plain = layer(x)[0]
    plain.sum().backward()
    wanted = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    waiting = layer(x)[0]
    layer.dropout = 0.5
    dropped = layer(x)[0]
    assert not torch.equal(dropped, plain)
    assert (layer(x)[0] - dropped).abs().max() > 1e-3
    waiting.sum().backward()
    assert all(torch.equal(p.grad, w) for p, w in zip(layer.parameters(), wanted, strict=True))
    layer.dropout = 0.0
    assert torch.equal(layer(x)[0], plain)


def test_settings_of_memory_may_change_between_calls():
    _, layer = pair("LSTM")
    whole = layer.plan(1000, 4).budgeted_bytes
    layer.segments = 20
    assert layer.plan(1000, 4).budgeted_bytes < whole / 2
    layer.segments, layer.memory_budget = None, whole // 2
    layer(torch.randn(1000, 4, C))[0].sum().backward()
    assert 0 < held(layer) <= whole // 2


def test_settings_of_the_loss_may_change_between_calls():
    layer = remat.nn.LSTMCrossEntropy(C, H, 4)
    x, targets = torch.randn(6, 3, C), torch.randint(4, (6, 3))
    layer(x, targets)
    layer.ignore_index, layer.label_smoothing = 1, 0.1
    wanted = torch.nn.functional.cross_entropy(layer.logits(x)[0].flatten(0, 1), targets.flatten(), ignore_index=1, label_smoothing=0.1)
    torch.testing.assert_close(layer(x, targets)[0], wanted)


# ---- Examples -------------------------------------------------------------------------------------------------------

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "python"


def output(*command):
    ran = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_word_language_model_has_the_same_losses_for_any_segments():
    small = [EXAMPLES / "word_language_model.py", "--epochs=1", "--emsize=16", "--nhid=16", "--bptt=2000", "--tied"]
    losses = [re.findall(r"loss [\d.]+", output(*small, *more)) for more in ([], ["--segments=8"])]
    assert losses[0] == losses[1] and len(losses[0]) == 1


def test_distributed_data_parallel_trains_under_torchrun():
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", EXAMPLES / "distributed_data_parallel.py"]
    shown = output(*launch, "--timesteps=100", "--hidden=8", "--steps=3", "--segments=4")
    assert len(re.findall(r"step \d: loss", shown)) == 3
