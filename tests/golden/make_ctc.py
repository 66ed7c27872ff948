#!/usr/bin/env python3
"""Makes ctc.golden: torch.nn.functional.ctc_loss in double precision, for logits that are floats.

    python3 tests/golden/make_ctc.py      # any PyTorch; run it by hand and commit the result

Three cases, each with logits, targets padded with -1, both lengths, each sample's loss (reduction none), the mean, and its
gradient with respect to the logits. short: no labels, one repeated label, labels that do not fit the timesteps (zero_infinity).
certain: logits of magnitude up to 30, and another blank. long: 500 timesteps. The format is make.py's.
"""
import os

import torch

from make import write


def case(name, steps, classes, blank, labels, lengths, size, zero_infinity):
    batch, most = len(labels), max(len(row) for row in labels)
    logits = (size * torch.randn(steps, batch, classes)).float()
    targets = torch.tensor([row + [-1] * (most - len(row)) for row in labels])
    target_lengths, input_lengths = torch.tensor([len(row) for row in labels]), torch.tensor(lengths)
    x = logits.double().requires_grad_()

    def loss(reduction):
        return torch.nn.functional.ctc_loss(x.log_softmax(2), targets.clamp(min=0), input_lengths, target_lengths, blank,
                                            reduction, zero_infinity)

    loss("mean").backward()
    arrays = {"logits": logits, "targets": targets.int(), "input_lengths": input_lengths.int(),
              "target_lengths": target_lengths.int(), "losses": loss("none").detach(), "mean": loss("mean").detach(),
              "gradient": x.grad}
    return {f"{name}/{key}": value for key, value in arrays.items()}


def main():
    torch.manual_seed(7)
    arrays = case("short", 9, 5, 0, [[1, 2, 3, 4], [], [2, 2, 2], [3], [1, 1, 4, 4], [4, 3, 4, 3]],
                  [9, 9, 5, 7, 5, 3], 1.5, True)
    arrays |= case("certain", 24, 6, 4, [[0, 0, 1, 2, 5], [3, 1, 3, 1, 3, 1], [5]], [24, 20, 13], 10, False)
    arrays |= case("long", 500, 4, 0, [[1 + k * k % 3 for k in range(60)]], [500], 1, False)
    write(os.path.join(os.path.dirname(os.path.abspath(__file__)), "ctc.golden"), arrays)


if __name__ == "__main__":
    main()
