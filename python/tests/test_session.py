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


def test_sessions_share_parameters_over_lengths():
    g, _, loss = lstm_inputs()
    s = remat.Session(g, loss, optimizer="adam")
    short = remat.Session(g.resized(timesteps=(T, 5)), loss, share=s, optimizer="adam")
    data = batch()
    short.step(x=data["x"][:5], y=data["y"][:5], lr=0.1)
    assert s.step_count == 1
    assert s.parameters["w"].ctypes.data == short.parameters["w"].ctypes.data


@pytest.mark.parametrize(
    "given, words",
    [
        ({"x": np.zeros((T, B))}, ["x", f"({T}, {B}, {C})", f"({T}, {B})"]),
        ({"y": np.zeros((T, B))}, ["y", "int32", "float64"]),
        ({"y": np.full((T, B), 1 << 40)}, ["y", "int32", str(1 << 40)]),
        ({"y": np.full((T, B), V)}, ["y", str(V)]),
    ],
)
def test_wrong_arrays_are_refused_with_both_sides(given, words):
    g, _, loss = lstm_inputs()
    s = remat.Session(g, loss)
    with pytest.raises(remat.Error) as caught:
        s.evaluate(**given)
    for word in words:
        assert word in str(caught.value)
