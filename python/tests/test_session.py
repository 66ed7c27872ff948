"""Sessions: passes, arrays as views, errors."""

import numpy as np
import pytest

from nets import B, C, H, T, V, batch, lstm_inputs

import remat

def test_loss_falls_and_budget_holds():
    g, _, loss = lstm_inputs()
    smallest = remat.Session(g, loss, optimizer="adamw", plan_only=True)
    s = remat.Session(g, loss, memory_budget=smallest.plan.budgeted_bytes, optimizer="adamw")
    first = s.step(lr=1e-2, **batch())
    for _ in range(20):
        last = s.step(lr=1e-2)
    assert float(last) < first.loss and last.grad_norm > 0
    assert last.arena_peak_bytes <= s.plan.planned_peak_bytes <= s.plan.memory_budget


def test_budget_that_is_too_small_names_the_smallest():
    g, _, loss = lstm_inputs()
    with pytest.raises(remat.Error) as caught:
        remat.Session(g, loss, memory_budget="1KiB")
    assert caught.value.status == remat.Status.INFEASIBLE
    remat.Session(g, loss, memory_budget=caught.value.smallest_budget, plan_only=True)


def test_parameters_written_through_a_view_count_in_the_next_pass():
    g, _, loss = lstm_inputs()
    a, b = (remat.Session(g, loss, seed=seed) for seed in (1, 2))
    b.evaluate(**batch())
    views = dict(b.parameters)
    for name, view in views.items():
        view[...] = a.parameters[name]
    assert a.evaluate(**batch()).loss == b.evaluate().loss
    b.parameters["w"] = np.zeros((V, H))
    assert b.evaluate().loss == pytest.approx(np.log(V))
    assert (views["w"] == 0).all()


def test_own_loss_equals_built_in_loss():
    g, x, logits = lstm_inputs(loss=False)
    own = remat.Session(g, outputs={"logits": logits}, optimizer="sgd", strategy="segments", segments=3)
    g2, _, loss = lstm_inputs()
    built_in = remat.Session(g2, loss, optimizer="sgd")
    data = batch()
    for _ in range(3):
        z = own.forward(x=data["x"])["logits"]
        p = np.exp(z - z.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        p[np.arange(T)[:, None], np.arange(B), data["y"]] -= 1
        own.backward(p / (T * B))
        assert own.gradients["x"].shape == (T, B, C) and own.gradients["x"].any()
        own.update(0.1)
        built_in.step(lr=0.1, **data)
    for name, value in built_in.parameters.items():
        np.testing.assert_allclose(own.parameters[name], value, rtol=1e-4, atol=1e-6)


def test_external_arrays_are_used_in_place():
    g, _, loss = lstm_inputs()
    inside = remat.Session(g, loss, seed=3)
    mine = {name: np.array(value) for name, value in inside.parameters.items()}
    grads = {name: np.zeros_like(value) for name, value in mine.items()}
    s = remat.Session(g, loss, external={"parameters": mine, "gradients": dict.fromkeys(mine)})
    for name, grad in grads.items():
        s.set_external("gradients", name, grad)
    assert s.forward_backward(**batch()).loss == inside.forward_backward(**batch()).loss
    for name in mine:
        np.testing.assert_array_equal(grads[name], inside.gradients[name])
        assert s.parameters[name].ctypes.data == mine[name].ctypes.data
    for wrong in (np.zeros((V, H)), np.zeros((V, H + 1), "f")):
        with pytest.raises(remat.Error, match="w is float32"):
            remat.Session(g, loss, external={"parameters": {"w": wrong}})
    with pytest.raises(remat.Error, match="contiguous"):
        s.set_external("parameters", "w", np.zeros((H, V), "f").T)


def test_sessions_share_parameters_over_lengths_and_batches():
    g, _, loss = lstm_inputs()
    s = remat.Session(g, loss, optimizer="adam", clip_grad_norm=1.0)
    short, one = s.resized(timesteps=5), s.resized(rows=1, inference=True)
    data = batch()
    short.step(x=data["x"][:5], y=data["y"][:5], lr=0.1)
    assert s.step_count == 1
    assert s.parameters["w"].ctypes.data == short.parameters["w"].ctypes.data
    losses = [one.evaluate(x=data["x"][:, i : i + 1], y=data["y"][:, i : i + 1]).loss for i in range(B)]
    assert s.evaluate(**data).loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert remat.Session(g.resized(timesteps=(T, 4)), loss, share=s, inference=True).inputs["x"].shape == (4, B, C)


def test_correct_counts_the_k_largest():
    logits = np.array([[0.1, 0.5, 0.4], [0.9, 0.0, 0.1]])
    assert remat.correct(logits, [2, 0]) == 1 and remat.correct(logits, [2, 0], k=2) == 2
    with pytest.raises(remat.Error, match=r"\(3\).*\(2\)"):
        remat.correct(logits, [0, 0, 0])


def test_torch_tensors_go_in_and_views_become_tensors():
    torch = pytest.importorskip("torch", reason="no torch here: its tensors are not tested")
    g, _, loss = lstm_inputs()
    s = remat.Session(g, loss)
    data = batch()
    x = torch.tensor(data["x"], requires_grad=True)
    assert s.evaluate(x=x, y=torch.tensor(data["y"])).loss == remat.Session(g, loss).evaluate(**data).loss
    torch.from_numpy(s.parameters["w"]).zero_()
    assert not s.parameters["w"].any()


@pytest.mark.parametrize(
    "given, words",
    [
        ({"x": np.zeros((T, B))}, ["x", f"({T}, {B}, {C})", f"({T}, {B})"]),
        ({"y": np.zeros((T, B))}, ["y", "int32", "float64"]),
        ({"y": np.full((T, B), 1 << 40)}, ["y", "int32", str(1 << 40)]),
        ({"y": np.full((T, B), V)}, ["y", str(V)]),
        ({"x": np.full((T, B, C), -1e300)}, ["x", "float32", "-1e+300"]),
    ],
)
def test_wrong_arrays_are_refused_with_both_sides(given, words):
    g, _, loss = lstm_inputs()
    s = remat.Session(g, loss)
    with pytest.raises(remat.Error) as caught:
        s.evaluate(**given)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("setting", [{"seed": -1}, {"seed": 1 << 64}, {"threads": 1 << 32}])
def test_settings_out_of_range_are_refused(setting):
    g, _, loss = lstm_inputs()
    with pytest.raises(remat.Error, match=f"{next(iter(setting))} is .*out of range"):
        remat.Session(g, loss, **setting)


def test_sizes_of_nothing_are_refused():
    g, _, loss = lstm_inputs()
    s = remat.Session(g, loss)
    with pytest.raises(remat.Error, match=f"{T} timesteps cannot become 0; use"):
        s.resized(timesteps=0)
    with pytest.raises(remat.Error, match=f"{B} rows cannot become -1; use"):
        s.resized(rows=-1)


def test_parameters_stay_where_gradients_are_not_finite():
    """The loss is finite: the LSTM saturates."""
    g, _, loss = lstm_inputs()
    s, data = remat.Session(g, loss, optimizer="adam"), batch()
    s.step(lr=0.1, **data)
    before = {name: np.array(value) for name, value in [*s.parameters.items(), *s.optimizer_state.items()]}
    x = data["x"].copy()
    x[0, 0, 0] = np.inf
    with pytest.raises(remat.Error, match="norm of the gradients is .*no parameter was updated"):
        s.step(lr=0.1, **{**data, "x": x})
    for name, value in [*s.parameters.items(), *s.optimizer_state.items()]:
        np.testing.assert_array_equal(value, before[name])
    assert s.step_count == 1 and s.step(lr=0.1, **data).loss > 0


def test_parameter_that_changes_between_forward_and_backward_is_refused():
    g, _, logits = lstm_inputs(loss=False)
    s = remat.Session(g, outputs=logits, optimizer="sgd")
    y = s.forward(x=batch()["x"])["output.0"]
    s.parameters["w_hh"][0, 0] += 1
    with pytest.raises(remat.Error, match="w_hh"):
        s.backward(np.ones_like(y))
    s.forward()
    s.backward(np.ones_like(y))


def test_states_carry_on_and_can_be_reset():
    g, _, logits = lstm_inputs(loss=False)
    s = remat.Session(g, outputs={"y": logits}, inference=True, stateful=True)
    s.evaluate(x=batch()["x"])
    first = s.outputs["y"].copy()
    assert set(s.states) == {"lstm.0.h", "lstm.0.c"} and s.states["lstm.0.h"].any()
    s.evaluate()
    assert (s.outputs["y"] != first).any()
    for state in s.states.values():
        state[:] = 0
    s.evaluate()
    np.testing.assert_array_equal(s.outputs["y"], first)


def test_micro_steps_make_one_update():
    g, _, loss = lstm_inputs()
    s = remat.Session(g, loss, optimizer="sgd", micro_steps=2)
    before = s.parameters["w"].copy()
    s.forward_backward(**batch(0))
    s.forward_backward(**batch(1))
    result = s.update(lr=0.5)
    assert result.grad_norm > 0 and s.step_count == 1
    np.testing.assert_allclose(s.parameters["w"], before - 0.5 * s.gradients["w"], rtol=1e-5, atol=1e-7)


def test_buffers_dropout_and_frozen_parameters():
    g = remat.Graph()
    x = g.input("x", "f32", "static", (16, 3))
    one, zero = remat.constant(1.0), remat.zeros()
    mean, var = g.buffer("mean", (3,), zero), g.buffer("var", (3,), one)
    n = g.batch_norm(x, g.param("gain", (3,), one), g.param("bias", (3,), zero), mean, var)
    y = g.dropout(g.linear(n, g.param("w", (2, 3), remat.uniform(1.0))), 0.5)
    s = remat.Session(g, g.mse(y, g.input("y", "f32", "static", (16, 2))), outputs={"out": y}, optimizer="sgd")
    draw = np.random.default_rng(0)
    data = {"x": draw.standard_normal((16, 3)) + 5, "y": draw.standard_normal((16, 2))}
    s.step(lr=0.1, **data)
    np.testing.assert_allclose(s.buffers["mean"], 0.1 * data["x"].mean(0), rtol=1e-4)
    s.train_only(["gain", "bias"])
    frozen = s.parameters["w"].copy()
    s.step(lr=0.1)
    np.testing.assert_array_equal(s.parameters["w"], frozen)
    plain = s.evaluate().loss
    s.set_dropout(1)
    dropped = s.evaluate().loss
    assert dropped != plain and s.evaluate().loss == dropped
    s.set_dropout(None)
    assert s.evaluate().loss == plain


def test_evaluation_beside_training_shares_parameters():
    g, _, loss = lstm_inputs()
    s = remat.Session(g, loss, optimizer="adam")
    test = remat.Session(g, loss, share=s, inference=True)
    s.step(lr=0.1, **batch())
    assert test.evaluate(**batch(1)).loss == s.evaluate(**batch(1)).loss
    del s
    assert test.evaluate().loss > 0


def test_names_that_do_not_exist_list_those_that_do():
    g, _, loss = lstm_inputs()
    s = remat.Session(g, loss)
    with pytest.raises(KeyError, match="w_ih"):
        s.parameters["weight"]
    with pytest.raises(remat.Error, match="'z'; it has x, y"):
        s.evaluate(z=np.zeros(3))
    with pytest.raises(TypeError, match="threads"):
        remat.Session(g, loss, threads="two")
    with pytest.raises(TypeError, match="memory_budget"):
        remat.Session(g, loss, budget="1MiB")
    with pytest.raises(remat.Error, match="64KiB"):
        remat.Session(g, loss, memory_budget="64 potatoes")
    with pytest.raises(remat.Error, match="evaluate"):
        remat.Session(g, loss, outputs={"loss": loss}).outputs["loss"]


def test_sizes_may_have_a_space_before_the_unit() -> None:
    g, _, loss = lstm_inputs()
    plans = [remat.Session(g, loss, memory_budget=size, plan_only=True).plan for size in ("1MiB", "1 MiB", 2**20)]
    assert len({plan.memory_budget for plan in plans}) == 1 and plans[0].memory_budget == 2**20


def test_an_input_that_was_given_is_given_each_time() -> None:
    graph = remat.Graph()
    x, y = (graph.input(name, "f32", "sequence", (6, 2, c)) for name, c in (("x", 3), ("y", 1)))
    loss = graph.mse(graph.linear(x, graph.param("w", (1, 3), remat.normal(1))), y)
    session = remat.Session(graph, loss, optimizer="sgd")
    ones = np.ones((6, 2, 3))
    session.step(x=ones, y=ones[..., :1], lr=0.1)
    with pytest.raises(remat.Error, match="given 'y' before"):
        session.step(x=ones, lr=0.1)
    with pytest.raises(remat.Error, match="no input 'z'"):
        session.step(x=ones, y=ones[..., :1], z=ones, lr=0.1)
    session.step(x=ones, y=ones[..., :1], lr=0.1)
    other = remat.Session(graph, loss, optimizer="sgd")
    other.inputs["y"] = ones[..., :1]
    assert other.step(x=ones, lr=0.1).loss != other.step(x=ones, lr=0.1).loss
