"""Networks that the tests train."""

import numpy as np

import remat

T, B, C, H, V = 12, 3, 4, 5, 7


def lstm_inputs(timesteps=T, loss=True):
    """An LSTM over (T,B,C) and a head: graph, x, and the loss, or the logits."""
    g = remat.Graph()
    x = g.input("x", "f32", "sequence", (timesteps, B, C))
    w_ih, w_hh = (g.param(n, d, remat.uniform(0.4)) for n, d in (("w_ih", (4 * H, C)), ("w_hh", (4 * H, H))))
    logits = g.linear(g.lstm(x, w_ih, w_hh), g.param("w", (V, H), remat.uniform(0.4)))
    if not loss:
        return g, g.requires_grad(x), logits
    return g, x, g.softmax_cross_entropy(logits, g.input("y", "i32", "sequence", (timesteps, B)))


def batch(seed=0, timesteps=T):
    draw = np.random.default_rng(seed)
    return {"x": draw.standard_normal((timesteps, B, C)), "y": draw.integers(0, V, (timesteps, B))}


def language_model(timesteps, rows, vocabulary=256, embed=6, hidden=8, layers=2):
    """The network of `remat train --model=lstm --task=lm`."""
    g = remat.Graph()
    tokens, targets = (g.input(n, "i32", "sequence", (timesteps, rows)) for n in ("tokens", "targets"))
    x = g.embedding(tokens, g.param("embedding.weight", (vocabulary, embed), remat.normal(1.0)))
    init = remat.uniform(hidden**-0.5)
    for i in range(layers):
        shapes = {"weight_ih": (4 * hidden, embed if i == 0 else hidden), "weight_hh": (4 * hidden, hidden)}
        shapes |= {"bias_ih": (4 * hidden,), "bias_hh": (4 * hidden,)}
        x = g.lstm(x, *(g.param(f"rnn.{name}_l{i}", shape, init) for name, shape in shapes.items()))
    head = (g.param("head.weight", (vocabulary, hidden), init), g.param("head.bias", (vocabulary,), init))
    return g, g.softmax_cross_entropy(g.linear(x, *head), targets)
