#!/usr/bin/env python3
"""Makes seq2seq_lstm.golden and seq2seq_gru_both.golden: loss and gradients of an encoder and a decoder with attention, in double precision.

    python3 tests/golden/make_seq2seq.py      # any PyTorch; run it by hand and commit the result

Two layers; of gru_both the encoder's run in both directions. Sources of different lengths go through pack_padded_sequence, padded
behind; the file has them as Remat's encoder reads them, padded in front. Attention is Luong's, score "general". The format is make.py's,
and report says how far PyTorch's own float run lies from its run in double.
"""
import os

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from make import report, write

CLASSES, H, E, L, S, T = 8, 5, 4, 2, 6, 5
END, BEGIN = CLASSES - 1, CLASSES
SOURCES = [[0, 1, 2, 3, 4], [5], [6, 0, 6]]
TARGETS = [[3, 3], [], [1, 2, 0, 4]]


class Seq2Seq(nn.Module):
    def __init__(self, cell, both):
        super().__init__()
        self.embedding = nn.Embedding(CLASSES + 1, E)
        self.rnn = cell(E, H, num_layers=L, bidirectional=both)
        self.decoder_rnn = cell(E, H, num_layers=L)
        self.attention = nn.Linear(H, (1 + both) * H, bias=False)
        self.combine = nn.Linear((2 + both) * H, H, bias=False)
        self.head = nn.Linear(H, CLASSES)

    def forward(self):
        lengths = torch.tensor([len(s) + 1 for s in SOURCES])
        source = nn.utils.rnn.pad_sequence([torch.tensor(s + [END]) for s in SOURCES])
        packed = pack_padded_sequence(self.embedding(source), lengths, enforce_sorted=False)
        packed, state = self.rnn(packed)
        e, _ = pad_packed_sequence(packed)  # (S,B,E)
        step = 2 if self.rnn.bidirectional else 1
        state = tuple(s[::step] for s in state) if isinstance(state, tuple) else state[::step]
        h, _ = self.decoder_rnn(self.embedding(previous()), state)
        score = torch.einsum("tbe,sbe->tbs", self.attention(h), e)
        absent = torch.arange(e.shape[0])[None] >= lengths[:, None]  # (B,S)
        weight = score.masked_fill(absent[None], -torch.inf).softmax(2)
        context = torch.einsum("tbs,sbe->tbe", weight, e)
        logits = self.head(torch.tanh(self.combine(torch.cat((context, h), 2))))
        return nn.functional.cross_entropy(logits.reshape(-1, CLASSES), targets().reshape(-1), ignore_index=-1)


def targets():
    return torch.tensor([t + [END] + [-1] * (T - 1 - len(t)) for t in TARGETS]).T


def previous():
    return torch.tensor([[BEGIN] + t + [BEGIN] * (T - 1 - len(t)) for t in TARGETS]).T


def inputs():
    return torch.tensor([[BEGIN] * (S - 1 - len(s)) + s + [END] for s in SOURCES]).T


def run(model):
    loss = model()
    loss.backward()
    out = {"loss": loss.detach().reshape(1)}
    return out | {"gradient/" + name: p.grad for name, p in model.named_parameters()}


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    for index, (name, cell, both) in enumerate([("lstm", nn.LSTM, False), ("gru_both", nn.GRU, True)]):
        torch.manual_seed(31 + index)
        single = Seq2Seq(cell, both)
        exact = Seq2Seq(cell, both).double()
        exact.load_state_dict({key: value.double() for key, value in single.state_dict().items()})
        arrays = {"parameter/" + key: value for key, value in single.state_dict().items()}
        arrays |= {"input": inputs().int(), "target": targets().int(), "previous": previous().int()}
        results = run(exact)
        write(os.path.join(here, f"seq2seq_{name}.golden"), arrays | results)
        report(name, results, run(single))


if __name__ == "__main__":
    main()
