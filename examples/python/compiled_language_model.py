#!/usr/bin/env python3
"""PyTorch's word language model (pytorch/examples) through remat.compile: the whole training step within a byte budget.

    python examples/python/compiled_language_model.py --bptt=2000 --memory-budget=64MiB

Embedding, LSTMs, decoder and loss run in Remat, so neither the logits nor the activations of a window exist as a whole.
The parameters, their gradients, clipping and the update stay PyTorch's. The states carry on from window to window.
"""

import argparse
import math
import pathlib
import time

import torch
from torch import Tensor, nn

import remat

HERE = pathlib.Path(__file__).resolve().parent


class Model(nn.Module):
    def __init__(self, words: int, options: argparse.Namespace) -> None:
        super().__init__()
        self.drop = nn.Dropout(options.dropout)
        self.encoder = nn.Embedding(words, options.emsize)
        self.rnn = nn.LSTM(options.emsize, options.nhid, options.nlayers, dropout=options.dropout)
        self.decoder = nn.Linear(options.nhid, words)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.decoder(self.drop(self.rnn(self.drop(self.encoder(tokens)))[0])).flatten(0, 1)


def read(path: pathlib.Path, batch: int) -> tuple[Tensor, int]:
    """The text as columns of word numbers, (words / batch, batch)."""
    words = path.read_text(encoding="utf-8").split()
    number = {word: i for i, word in enumerate(dict.fromkeys(words))}
    tokens = torch.tensor([number[word] for word in words])
    rows = len(tokens) // batch
    return tokens[: rows * batch].view(batch, rows).t().contiguous(), len(number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default=HERE.parent / "data" / "shakespeare.txt")
    parser.add_argument("--emsize", type=int, default=64)
    parser.add_argument("--nhid", type=int, default=64)
    parser.add_argument("--nlayers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=20)
    parser.add_argument("--clip", type=float, default=0.25)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--bptt", type=int, default=200)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--memory-budget", default="64MiB")
    parser.add_argument("--seed", type=int, default=1111)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    data, words = read(options.data, options.batch_size)
    model = Model(words, options)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    window = min(options.bptt, len(data) - 1)
    step = remat.compile(
        model,
        lambda output, targets: nn.functional.cross_entropy(output, targets.flatten()),
        (data[:window], data[1 : window + 1]),
        memory_budget=options.memory_budget,
        stateful=True,
    )
    print(step.plan)
    for epoch in range(1, options.epochs + 1):
        losses, start = [], time.perf_counter()
        for first in range(0, len(data) - window, window):
            loss = step(data[first : first + window], data[first + 1 : first + window + 1])
            torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
            optimizer.step()
            losses.append(loss.item())
        mean = sum(losses) / len(losses)
        print(f"epoch {epoch}: loss {mean:.3f}, perplexity {math.exp(mean):.1f}, {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
