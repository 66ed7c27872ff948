"""word_language_model.py: PyTorch's word language model (pytorch/examples) with one import line changed: LSTM comes from remat.nn.

    python examples/python/word_language_model.py --data=TEXT --bptt=2000 --segments=16

The model is theirs: an embedding, dropout, LSTMs, dropout, and a decoder that may share the embedding's weight. Windows of --bptt words
follow each other and carry the states on. nn.LSTM keeps all activations of a window; here --segments or --memory-budget
bounds them, and the losses are the same to the last bit for any value.
"""

import argparse
import math
import pathlib
import time

import torch
from torch import Tensor, nn

from remat.nn import LSTM  # before: from torch.nn import LSTM

HERE = pathlib.Path(__file__).resolve().parent


class Model(nn.Module):
    def __init__(self, words: int, options: argparse.Namespace) -> None:
        super().__init__()
        self.drop = nn.Dropout(options.dropout)
        self.encoder = nn.Embedding(words, options.emsize)
        self.rnn = LSTM(
            options.emsize, options.nhid, options.nlayers, dropout=options.dropout,
            segments=options.segments, memory_budget=options.memory_budget,
        )  # fmt: skip
        self.decoder = nn.Linear(options.nhid, words)
        if options.tied:
            self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, tokens: Tensor, states: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        output, states = self.rnn(self.drop(self.encoder(tokens)), states)
        return self.decoder(self.drop(output)).flatten(0, 1), states


def read(path: pathlib.Path, batch: int) -> tuple[Tensor, int]:
    """The text as columns of word numbers, (words / batch, batch)."""
    words = path.read_text(encoding="utf-8").split()
    number = {word: i for i, word in enumerate(dict.fromkeys(words))}
    tokens = torch.tensor([number[word] for word in words])
    rows = len(tokens) // batch
    return tokens[: rows * batch].view(batch, rows).t().contiguous(), len(number)


def main() -> None:
    parser = argparse.ArgumentParser()
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
    parser.add_argument("--tied", action="store_true")
    parser.add_argument("--segments", type=int)
    parser.add_argument("--memory-budget")
    parser.add_argument("--seed", type=int, default=1111)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    data, words = read(options.data, options.batch_size)
    model, criterion = Model(words, options), nn.CrossEntropyLoss()
    for epoch in range(1, options.epochs + 1):
        states, losses, start = None, [], time.perf_counter()
        for first in range(0, len(data) - 1, options.bptt):
            last = min(first + options.bptt, len(data) - 1)
            if states is not None:
                states = tuple(state.detach() for state in states)
            output, states = model(data[first:last], states)
            loss = criterion(output, data[first + 1 : last + 1].flatten())
            model.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(parameter.grad, alpha=-options.lr)
            losses.append(loss.item())
        mean = sum(losses) / len(losses)
        print(f"epoch {epoch}: loss {mean:.3f}, perplexity {math.exp(mean):.1f}, {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
