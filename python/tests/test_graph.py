"""Graphs: every builder of the library, shapes, mistakes, cells."""

import inspect

import numpy as np
import pytest

import remat
from remat.graph import _BUILDERS


def test_every_builder_is_a_method_with_its_arguments():
    for name, arguments in _BUILDERS.items():
        method = getattr(remat.Graph, name)
        shown = list(inspect.signature(method).parameters.values())[1:]
        lengths = {a.length_is for a in arguments}
        wanted = [a for a in arguments if a.name not in lengths]
        assert [p.name for p in shown] == [a.name for a in wanted]
        assert method.__doc__
        for parameter, argument in zip(shown, wanted):
            assert parameter.default is not None or argument.optional, f"{name}({argument.name})"


def test_values_know_name_shape_and_dtype():
    g = remat.Graph()
    x = g.input("x", "f32", "sequence", (5, 2, 3))
    w = g.param("w", (4, 3), remat.zeros())
    y = g.linear(x, w)
    assert (x.name, x.shape, x.dtype, x.is_sequence) == ("x", (5, 2, 3), "float32", True)
    assert (w.name, w.shape, w.is_sequence) == ("w", (4, 3), False)
    assert (y.name, y.shape) == (None, (5, 2, 4))
    assert (y + y).shape == (2 * y).shape == (y * y - y).shape == y.shape
    assert g.mse(y, y).shape == ()
    assert "x" in repr(x) and "5, 2, 3" in repr(x)


def test_lists_pairs_and_names_are_converted():
    g = remat.Graph()
    x = g.input("x", "f32", "static", (2, 3, 8, 8))
    w = g.param("w", (4, 3, 3, 3), remat.zeros())
    assert g.conv2d(x, w, padding=1).shape == (2, 4, 8, 8)
    assert g.conv2d(x, w, None, (2, 1), (1, 1)).shape == (2, 4, 4, 8)
    assert g.upsample2d(x, 2, "bilinear").shape == (2, 3, 16, 16)
    assert g.reshape(x, (2, -1)).shape == (2, 192)
    assert g.concat([g.reshape(x, (2, -1)), g.reshape(x, (2, -1))]).shape == (2, 384)
    assert repr(remat.Init("time_step", 0.1)) == "Init('time_step', 0.1)"
    with pytest.raises(remat.Error, match="log_count"):
        remat.Init("xavier")
    with pytest.raises(remat.Error, match="bilinear"):
        g.upsample2d(x, 2, "cubic")
    with pytest.raises(remat.Error, match="stride"):
        g.conv2d(x, w, stride=(1, 1, 1))
    with pytest.raises(TypeError, match="x cannot be 3"):
        g.tanh(3)


def test_mistake_is_raised_where_it_is_made_and_the_graph_goes_on():
    g = remat.Graph()
    x = g.input("x", "f32", "sequence", (5, 2, 3))
    w = g.param("w", (4, 9), remat.zeros())
    with pytest.raises(remat.Error) as caught:
        g.linear(x, w)
    assert caught.value.status == remat.Status.INVALID and "linear" in caught.value.sentence
    loss = g.mse(g.linear(x, g.param("w2", (4, 3), remat.zeros())), g.input("y", "f32", "sequence", (5, 2, 4)))
    remat.Session(g, loss)


def test_values_of_another_graph_are_refused():
    one, other = remat.Graph(), remat.Graph()
    x = one.input("x", "f32", "sequence", (5, 2, 3))
    with pytest.raises(remat.Error, match="another graph"):
        other.tanh(x)
    assert one.resized(timesteps=(5, 7)).tanh(x).shape == (7, 2, 3)


def test_a_cell_of_ones_own():
    T, B, C = 6, 2, 3
    body = remat.Graph()
    x, h, w = (body.input(n, "f32", "static", d) for n, d in (("x", (B, C)), ("h", (B, C)), ("w", (C, C))))
    y = body.tanh(body.add(x, body.linear(h, w)))
    cell = remat.Cell("plain", body, inputs=[x], states=[h], next_states=[y], output=y, weights=[w])
    g = remat.Graph()
    values = g.input("x", "f32", "sequence", (T, B, C))
    out = g.scan(cell, [values], [g.param("w", (C, C), remat.uniform(0.5))])
    s = remat.Session(g, outputs={"y": out}, inference=True)
    data = np.random.default_rng(0).standard_normal((T, B, C)).astype("f")
    s.evaluate(x=data)
    state = np.zeros((B, C), "f")
    for t in range(T):
        state = np.tanh(data[t] + state @ s.parameters["w"].T)
        np.testing.assert_allclose(s.outputs["y"][t], state, rtol=1e-4, atol=1e-6)
    with pytest.raises(remat.Error, match="1 inputs, but 2"):
        g.scan(cell, [values, values], [w])


def test_million_timesteps_are_planned():
    g = remat.Graph()
    x = g.input("x", "f32", "sequence", (1_000_000, 4, 8))
    w = [g.param(n, d, remat.uniform(0.1)) for n, d in (("ih", (256, 8)), ("hh", (256, 64)))]
    s = remat.Session(g, g.mse(g.lstm(x, *w), g.input("y", "f32", "sequence", (1_000_000, 4, 64))), device="null")
    assert s.plan.timesteps == 1_000_000 and s.plan.budgeted_bytes > 1 << 30
