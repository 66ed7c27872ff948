#!/usr/bin/env python3
"""Trains a character language model on whole chapters, within a byte budget, with NumPy alone.

    python3 examples/python/char_language_model.py --timesteps=5000 --memory-budget=32MiB

Back-propagation is exact over all timesteps; nothing is truncated. The script prints the plan, trains, evaluates on a part
of the text that it did not train on, and writes text in the style of what it has read.
"""

import argparse
import pathlib

import numpy as np

import remat

TEXT = pathlib.Path(__file__).parents[1] / "data" / "shakespeare.txt"


def language_model(timesteps: int, rows: int, vocabulary: int, hidden: int, layers: int):
    """PyTorch's nn.Embedding, nn.LSTM and nn.Linear, with its names of parameters."""
    g = remat.Graph()
    tokens = g.input("tokens", "i32", "sequence", (timesteps, rows))
    targets = g.input("targets", "i32", "sequence", (timesteps, rows))
    x = g.embedding(tokens, g.param("embedding.weight", (vocabulary, hidden), remat.normal(1.0)))
    init = remat.uniform(hidden**-0.5)
    for layer in range(layers):
        weights = [g.param(f"rnn.weight_{part}_l{layer}", (4 * hidden, hidden), init) for part in ("ih", "hh")]
        biases = [g.param(f"rnn.bias_{part}_l{layer}", (4 * hidden,), init) for part in ("ih", "hh")]
        x = g.lstm(x, *weights, *biases)
    w, b = g.param("head.weight", (vocabulary, hidden), init), g.param("head.bias", (vocabulary,), init)
    logits = g.linear(x, w, b)
    return g, logits, g.softmax_cross_entropy(logits, targets)


def batch(text: np.ndarray, timesteps: int, rows: int, draw: np.random.Generator) -> dict[str, np.ndarray]:
    """Windows of the text, and the characters that follow: (timesteps, rows) each."""
    first = draw.integers(0, len(text) - timesteps, rows)
    windows = text[first + np.arange(timesteps + 1)[:, None]]
    return {"tokens": windows[:-1], "targets": windows[1:]}


def sample(session: remat.Session, logits: remat.Value, graph: remat.Graph, characters: np.ndarray, count: int) -> str:
    """One character after another: a session of one timestep and one row, whose states carry on."""
    timesteps, rows = session.inputs["tokens"].shape
    small = graph.resized(timesteps=(timesteps, 1), rows=(rows, 1))
    writer = remat.Session(small, outputs={"logits": logits}, share=session, inference=True, stateful=True)
    draw, token, written = np.random.default_rng(0), 0, []
    for _ in range(count):
        writer.evaluate(tokens=[[token]])
        z = writer.outputs["logits"][0, 0].astype(np.float64) / 0.8
        p = np.exp(z - z.max())
        token = int(draw.choice(len(characters), p=p / p.sum()))
        written.append(characters[token])
    return "".join(written)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--timesteps", type=int, default=2000)
    flags.add_argument("--rows", type=int, default=4, help="sequences in a batch")
    flags.add_argument("--hidden", type=int, default=128)
    flags.add_argument("--layers", type=int, default=2)
    flags.add_argument("--steps", type=int, default=100)
    flags.add_argument("--lr", type=float, default=5e-3)
    flags.add_argument("--memory-budget", default="32MiB")
    flags.add_argument("--save", help="write the weights to this safetensors file, which PyTorch reads")
    given = flags.parse_args()

    characters, text = np.unique(list(TEXT.read_text()), return_inverse=True)
    train, test = np.split(text, [len(text) * 9 // 10])
    graph, logits, loss = language_model(given.timesteps, given.rows, len(characters), given.hidden, given.layers)
    session = remat.Session(
        graph, loss, memory_budget=given.memory_budget, optimizer="adamw", weight_decay=0.01, clip_grad_norm=1.0
    )
    print(session.plan)

    draw = np.random.default_rng(0)
    for step in range(1, given.steps + 1):
        result = session.step(**batch(train, given.timesteps, given.rows, draw), lr=given.lr)
        if step in (1, given.steps) or step % 10 == 0:
            print(f"step {step}: {result.loss / np.log(2):.3f} bits a character, gradient norm {result.grad_norm:.3f}")
    print(f"peak of the arena: {result.arena_peak_bytes} bytes, as planned: {session.plan.planned_peak_bytes}")

    result = session.evaluate(**batch(test, given.timesteps, given.rows, draw))
    print(f"test: {result.loss / np.log(2):.3f} bits a character")
    print(sample(session, logits, graph, characters, 300))
    if given.save:
        session.save(given.save)


if __name__ == "__main__":
    main()
