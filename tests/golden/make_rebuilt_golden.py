#!/usr/bin/env python3
"""Writes rebuilt_buckets.txt: how PyTorch's DDP packs parameters that arrived in some order, for
tests/unit/ddp/buckets_test.cc.

    /usr/bin/python3 tests/golden/make_rebuilt_golden.py > tests/golden/rebuilt_buckets.txt

A line: limits | elements ... | arrival ... | bucket ; bucket ; ...   with parameter numbers in launch order, as
Reducer::rebuild_buckets gives them: the arriving parameters through _compute_bucket_assignment_by_size. All are of
one type: with several, PyTorch orders what is left over as its hash table does.
"""
import random
import sys

import torch
from torch.distributed import _compute_bucket_assignment_by_size


def main():
    print(f"# torch {torch.__version__}; written by make_rebuilt_golden.py")
    rng = random.Random(11)
    for case in range(500):
        counts = [rng.randint(1, rng.choice((4, 60, 1000))) for _ in range(rng.randint(1, 24))]
        arrival = list(range(len(counts)))
        rng.shuffle(arrival)
        limits = [rng.choice((1, 40, 400, 1 << 20)), rng.choice((1, 100, 1000, 25 << 20))]
        tensors = [torch.empty(1).expand(counts[p]) for p in arrival]
        buckets, _ = _compute_bucket_assignment_by_size(tensors, limits, [False] * len(tensors), arrival)
        print(",".join(map(str, limits)), "|", *counts, "|", *arrival, "|",
              " ; ".join(" ".join(map(str, bucket)) for bucket in buckets))


if __name__ == "__main__":
    sys.exit(main())
