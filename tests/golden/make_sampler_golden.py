#!/usr/bin/env python3
"""Writes sampler.txt: what torch.utils.data.DistributedSampler answers, for tests/unit/ddp/sampler_test.cc.

    /usr/bin/python3 tests/golden/make_sampler_golden.py > tests/golden/sampler.txt

A line: n world rank seed epoch shuffle drop_last num_samples fnv1a first...   (at most 8 indices; the
hash is 64-bit FNV-1a over all of them, 8 bytes each, least significant first). "randperm" lines: n seed
fnv1a first...
"""
import random
import sys

import torch
from torch.utils.data.distributed import DistributedSampler


def fnv1a(indices):
    h = 0xCBF29CE484222325
    for i in indices:
        for byte in int(i).to_bytes(8, "little"):
            h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def sampler_line(n, world, rank, seed, epoch, shuffle, drop_last):
    sampler = DistributedSampler(range(n), world, rank, shuffle, seed, drop_last)
    sampler.set_epoch(epoch)
    indices = list(sampler)
    assert len(indices) == len(sampler)
    head = " ".join(map(str, indices[:8]))
    print("sampler", n, world, rank, seed, epoch, int(shuffle), int(drop_last), len(indices),
          fnv1a(indices), head)


def randperm_line(n, seed):
    indices = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    print("randperm", n, seed, fnv1a(indices), *indices[:8])


def main():
    print(f"# torch {torch.__version__}; written by make_sampler_golden.py")
    for n in (0, 1, 2, 3, 5, 8, 13):  # Every small shape, n < world among them.
        for world in (1, 2, 3, 8):
            for rank in {0, world // 2, world - 1}:
                for shuffle in (False, True):
                    for drop_last in (False, True):
                        sampler_line(n, world, rank, 0, 1, shuffle, drop_last)
    rng = random.Random(20)
    seeds = (0, 1, 42, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1000)
    for _ in range(1000):
        world = rng.choice((1, 2, 3, 4, 7, 8, 16, 64))
        sampler_line(rng.choice((10, 99, 100, 101, rng.randrange(1, 3000))), world,
                     rng.randrange(world), rng.choice(seeds), rng.randrange(100),
                     rng.random() < 0.8, rng.random() < 0.5)
    for n in (10, 1000, 60000):
        for seed in seeds:
            randperm_line(n, seed)


if __name__ == "__main__":
    sys.exit(main())
