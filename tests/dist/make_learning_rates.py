#!/usr/bin/env python3
"""Prints learning_rates.h: rates that PyTorch's schedulers give, and MLPerf's formula, for test_learning_rate.c.

PyTorch's epoch e, counted from 0, is our update t = e + 1 where the schedulers decay from the first rate on; the warm-up
and poly, which have taken a part of the way at their first update, are at t what PyTorch is at e = t.
"""
import torch
from torch.optim import lr_scheduler as S

UPDATES = 12


def rates(lr, make):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=lr)
    scheduler = make(optimizer)
    out = []
    for _ in range(UPDATES + 1):
        out.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return out


def mlperf(lr, end, warm_up, total):
    """s = min(t - Tw, D), D = T - Tw + 1: the reference for ResNet-50."""
    length = total - warm_up + 1
    out = []
    for t in range(1, UPDATES + 1):
        s = min(t - warm_up, length)
        out.append(lr * t / warm_up if t <= warm_up else end + (lr - end) * (1 - s / length) ** 2)
    return out


def one_cycle(total, **how):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=LR)
    scheduler = S.OneCycleLR(optimizer, LR, total_steps=total, cycle_momentum=False, **how)
    out = [scheduler.get_last_lr()[0]]
    for _ in range(total - 1):
        optimizer.step()
        scheduler.step()
        out.append(scheduler.get_last_lr()[0])
    return out + [out[-1]] * (UPDATES - total)


def by_epoch(updates, make):
    """Of a scheduler that is stepped once an epoch."""
    return [rate for rate in rates(LR, make) for _ in range(updates)][:UPDATES]


def plateau(reductions):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=LR)
    scheduler = S.ReduceLROnPlateau(optimizer, factor=0.3, patience=0, min_lr=0.01)
    for _ in range(1 + reductions):
        scheduler.step(1.0)
    return optimizer.param_groups[0]["lr"]


# comment, config, rates of updates 1, 2, ...
LR = 0.3
CASES = [
    ("MultiStepLR", ".schedule = RM_LR_STEP, .steps = 12, .gamma = 0.1, .milestone = {3, 7}, .n_milestones = 2",
     rates(LR, lambda o: S.MultiStepLR(o, [3, 7], gamma=0.1))[:UPDATES]),
    ("LinearLR to a tenth", ".schedule = RM_LR_LINEAR, .steps = 10, .end_lr = 0.03",
     rates(LR, lambda o: S.LinearLR(o, 1.0, 0.1, total_iters=10))[:UPDATES]),
    ("CosineAnnealingLR", ".schedule = RM_LR_COSINE, .steps = 12, .end_lr = 0.01",
     rates(LR, lambda o: S.CosineAnnealingLR(o, T_max=12, eta_min=0.01))[:UPDATES]),
    ("PolynomialLR", ".schedule = RM_LR_POLY, .steps = 99, .decay_steps = 9, .power = 1.5",
     rates(LR, lambda o: S.PolynomialLR(o, total_iters=9, power=1.5))[1:]),
    ("LinearLR as a warm-up from lr to 8 lr",
     ".schedule = RM_LR_CONSTANT, .steps = 12, .warmup_steps = 5, .scale = RM_SCALE_LINEAR, .batch = 256, .base_batch = 32",
     rates(8 * LR, lambda o: S.LinearLR(o, 1 / 8, 1.0, total_iters=5))[1:]),
    ("CosineAnnealingWarmRestarts", ".schedule = RM_LR_RESTARTS, .decay_steps = 3, .cycle_mult = 2, .end_lr = 0.01",
     rates(LR, lambda o: S.CosineAnnealingWarmRestarts(o, 3, T_mult=2, eta_min=0.01))[:UPDATES]),
    ("CosineAnnealingWarmRestarts of one length",
     ".schedule = RM_LR_RESTARTS, .decay_steps = 5, .cycle_mult = 1",
     rates(LR, lambda o: S.CosineAnnealingWarmRestarts(o, 5))[:UPDATES]),
    ("OneCycleLR",
     ".schedule = RM_LR_ONE_CYCLE, .steps = 12, .pct_start = 0.3, .div_factor = 25, .final_div_factor = 1e4",
     one_cycle(12)),
    ("OneCycleLR of 11, from a third, half of it rising",
     ".schedule = RM_LR_ONE_CYCLE, .decay_steps = 11, .pct_start = 0.5, .div_factor = 3, .final_div_factor = 10",
     one_cycle(11, pct_start=0.5, div_factor=3, final_div_factor=10)),
    ("ReduceLROnPlateau, thrice, not below a hundredth",
     ".schedule = RM_LR_PLATEAU, .steps = 12, .gamma = 0.3, .end_lr = 0.01, .reductions = 3", [plateau(3)] * UPDATES),
    ("ExponentialLR once an epoch", ".schedule = RM_LR_EXPONENTIAL, .steps = 12, .decay_steps = 3, .gamma = 0.7",
     by_epoch(3, lambda o: S.ExponentialLR(o, 0.7))),
    ("CosineAnnealingLR once an epoch", ".schedule = RM_LR_COSINE, .steps = 12, .hold = 3",
     by_epoch(3, lambda o: S.CosineAnnealingLR(o, T_max=4))),
    ("LinearLR as a warm-up once an epoch", ".schedule = RM_LR_CONSTANT, .steps = 12, .warmup_steps = 9, .hold = 3",
     by_epoch(3, lambda o: S.LinearLR(o, 1 / 3, 1.0, total_iters=2))),
    ("MLPerf", ".schedule = RM_LR_POLY, .steps = 10, .warmup_steps = 3, .power = 2, .end_lr = 1e-4",
     mlperf(LR, 1e-4, 3, 10)),
]

print("/* learning_rates.h: made by make_learning_rates.py with PyTorch %s. */" % torch.__version__.split("+")[0])
print("static const struct {\n    const char *name;\n    rm_learning_rate config;\n    double rate[%d]; /* of updates 1, 2, ... */"
      % UPDATES)
print("} golden[] = {")
for name, config, values in CASES:
    print('    {"%s", {.lr = %r, %s},' % (name, LR, config))
    print("     {" + ", ".join("%.17g" % v for v in values) + "}},")
print("};")
