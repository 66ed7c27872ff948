#!/usr/bin/env python3
"""Makes tags.golden: losses and gradients of a bidirectional LSTM with a target at each timestep, in double precision.

    python3 tests/golden/make_tags.py      # any PyTorch; run it by hand and commit the result

Two layers over rows of 4, 1, 6 and 3 timesteps, which go through pack_padded_sequence; each loss is the mean over what the rows have.
"whole" reads all six timesteps of every row. What lies behind the ends is in the file as PyTorch was given it, and changes nothing.
The format is make.py's, and report says how far PyTorch's own float run lies from its run in double.
"""
import os

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from make import report, write

N, T, F, H, K = 4, 6, 3, 5, 4
LENGTHS = torch.tensor([4, 1, 6, 3])
IGNORED, WEIGHTS = 2, [0.5, 2.0, 1.0, 1.5]


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(F, H, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * H, K)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0])


def cross_entropy(y, answers, there, **more):
    labels = answers["labels"].masked_fill(~there, -100)
    if more:
        labels = labels.masked_fill(labels == IGNORED, -100)
    return functional.cross_entropy(y.transpose(1, 2), labels, **more)


def of_numbers(loss, which):
    return lambda y, answers, there: loss(y[there], answers[which][there])


def losses(dtype):
    weight = torch.tensor(WEIGHTS, dtype=dtype)
    return {
        "whole": cross_entropy,
        "classes": cross_entropy,
        "weighted": lambda *a: cross_entropy(*a, weight=weight),
        "mse": of_numbers(functional.mse_loss, "values"),
        "mae": of_numbers(functional.l1_loss, "values"),
        "huber": of_numbers(functional.huber_loss, "values"),
        "bce": of_numbers(functional.binary_cross_entropy_with_logits, "shares"),
    }


def run(model, x, answers):
    out = {}
    for name, loss in losses(x.dtype).items():
        lengths = torch.full((N,), T) if name == "whole" else LENGTHS
        there = torch.arange(T)[None] < lengths[:, None]
        model.zero_grad()
        result = loss(model(x, lengths), answers, there)
        result.backward()
        out[name + "/loss"] = result.detach().reshape(1)
        out |= {name + "/" + key: p.grad.clone() for key, p in model.named_parameters()}
    return out


def main():
    torch.manual_seed(41)
    single = Tagger()
    exact = Tagger().double()
    exact.load_state_dict({key: value.double() for key, value in single.state_dict().items()})
    x = torch.randn(N, T, F)
    answers = {"labels": torch.randint(K, (N, T)), "values": 2 * torch.randn(N, T, K), "shares": torch.rand(N, T, K)}
    double = {key: value.double() if value.is_floating_point() else value for key, value in answers.items()}
    arrays = {"parameter/" + key: value for key, value in single.state_dict().items()}
    arrays |= {"input": x, "values": answers["values"], "shares": answers["shares"]}
    arrays |= {"labels": answers["labels"].int(), "lengths": LENGTHS.int()}
    results = run(exact, x.double(), double)
    write(os.path.join(os.path.dirname(os.path.abspath(__file__)), "tags.golden"), arrays | results)
    report("tags", results, run(single, x, answers))


if __name__ == "__main__":
    main()
