#!/usr/bin/env python3
"""Prints sampler_orders.h: orders drawn by PyTorch's DistributedSampler, for test_sampler.c. Long ones as a checksum. Then
the batches that its BatchSampler cuts some of them into."""
import torch
from torch.utils.data.distributed import DistributedSampler


class Samples(torch.utils.data.Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n


# n, replicas, rank, seed, epoch, shuffle, drop_last
CASES = [
    (4, 2, 0, 0, 0, True, False), (4, 2, 1, 0, 0, True, False), (4, 2, 0, 0, 1, True, False), (4, 2, 1, 0, 1, True, False),
    (1, 1, 0, 0, 0, True, False), (1, 3, 2, 5, 2, True, False), (2, 1, 0, 7, 0, True, False), (2, 5, 4, 0, 3, True, False),
    (7, 1, 0, 0, 0, True, False), (7, 1, 0, 0, 9, True, False), (7, 3, 1, 123, 4, True, False), (7, 3, 2, 123, 4, True, True),
    (10, 4, 3, 42, 0, False, False), (10, 4, 3, 42, 0, False, True), (10, 4, 0, 2**31, 1, True, False),
    (13, 2, 1, 2**32 - 1, 1, True, False), (13, 2, 1, 2**32 + 5, 0, True, False), (3, 8, 7, 1, 1, True, False),
    (1000, 1, 0, 0, 0, True, False), (1000, 7, 6, 99, 12, True, False), (100003, 1, 0, 1, 1, True, False),
]


def checksum(order):
    value = 0
    for index in order:
        value = (value * 1000003 + index) % 2**64
    return value


print("/* sampler_orders.h: made by make_sampler_orders.py with PyTorch %s. */" % torch.__version__.split("+")[0])
print("static const struct {\n    remat_sampler_config config;\n    int64_t epoch, count;\n    uint64_t checksum;")
print("    int64_t head[10]; /* the first of them */\n} orders[] = {")
for n, replicas, rank, seed, epoch, shuffle, drop_last in CASES:
    sampler = DistributedSampler(Samples(n), replicas, rank, shuffle, seed, drop_last)
    sampler.set_epoch(epoch)
    order = list(sampler)
    print("    {{sizeof(remat_sampler_config), %d, %d, %d, %s, %s, %d}, %d, %d, %du, {%s}}," % (
        n, replicas, rank, str(shuffle).lower(), str(drop_last).lower(), seed, epoch, len(order), checksum(order),
        ", ".join(map(str, order[:10]))))
print("};")

# n, replicas, rank, seed, epoch, shuffle, drop_last, batch, drop_last of batches
BATCHES = [
    (4, 2, 0, 0, 0, True, False, 2, False), (4, 2, 1, 0, 1, True, False, 2, True), (7, 2, 1, 3, 2, True, False, 2, True),
    (7, 2, 1, 3, 2, True, True, 2, False), (7, 2, 1, 3, 2, True, True, 2, True), (10, 3, 2, 1, 0, False, False, 3, False),
    (10, 3, 2, 1, 0, False, False, 3, True), (3, 1, 0, 0, 0, True, False, 5, True), (3, 1, 0, 0, 0, True, False, 5, False),
    (1000, 7, 6, 99, 12, True, False, 16, False), (1000, 7, 6, 99, 12, True, True, 16, True),
    (1000, 8, 3, 5, 1, True, True, 25, True), (1000, 6, 5, 5, 1, True, True, 1, True),
]
print("static const struct {\n    remat_sampler_config config;\n    int64_t epoch, batch;\n    bool drop_last;\n"
      "    int64_t batches, last; /* how many; length of the last one */\n    uint64_t checksum; /* of indices, and n after each "
      "batch */\n} cuts[] = {")
for n, replicas, rank, seed, epoch, shuffle, drop_last, batch, drop_short in BATCHES:
    sampler = DistributedSampler(Samples(n), replicas, rank, shuffle, seed, drop_last)
    sampler.set_epoch(epoch)
    batches = list(torch.utils.data.BatchSampler(sampler, batch, drop_short))
    flat = [index for one in batches for index in one + [n]]
    print("    {{sizeof(remat_sampler_config), %d, %d, %d, %s, %s, %d}, %d, %d, %s, %d, %d, %du}," % (
        n, replicas, rank, str(shuffle).lower(), str(drop_last).lower(), seed, epoch, batch, str(drop_short).lower(),
        len(batches), len(batches[-1]) if batches else 0, checksum(flat)))
print("};")
