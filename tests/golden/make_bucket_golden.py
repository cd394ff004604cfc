#!/usr/bin/env python3
"""Writes buckets.txt: how PyTorch's DDP packs parameters into buckets, for tests/unit/ddp/buckets_test.cc.

    /usr/bin/python3 tests/golden/make_bucket_golden.py > tests/golden/buckets.txt

A line: limits | type:elements ... | bucket ; bucket ; ...   with positions in launch order, as
torch.distributed._compute_bucket_assignment_by_size gives them.
"""
import random
import sys

import torch
from torch.distributed import _compute_bucket_assignment_by_size

TYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}


def line(limits, parameters):
    tensors = [torch.empty(1, dtype=TYPES[name]).expand(count) for name, count in parameters]
    buckets, _ = _compute_bucket_assignment_by_size(tensors, list(limits))
    print(",".join(map(str, limits)), "|", *(f"{name}:{count}" for name, count in parameters), "|",
          " ; ".join(" ".join(map(str, bucket)) for bucket in buckets))


def main():
    print(f"# torch {torch.__version__}; written by make_bucket_golden.py")
    rng = random.Random(7)
    for case in range(500):
        names = rng.sample(sorted(TYPES), rng.choice((1, 1, 1, 2, 4)))
        largest = rng.choice((4, 60, 1000))
        parameters = [(rng.choice(names), rng.randint(1, largest)) for _ in range(rng.randint(1, 24))]
        first = rng.choice((1, 40, 400, 1 << 20))
        limits = (first, rng.choice((1, 100, 1000, 25 << 20))) if case % 10 else (first,)
        line(limits, parameters)


if __name__ == "__main__":
    sys.exit(main())
