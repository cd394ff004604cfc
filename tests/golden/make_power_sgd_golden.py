#!/usr/bin/env python3
"""Writes power_sgd.txt: gradients as PyTorch's powerSGD_hook averages them over two ranks, for
tests/unit/ddp/power_sgd_test.cc.

    /usr/bin/python3 tests/golden/make_power_sgd_golden.py > tests/golden/power_sgd.txt

A case: "case rank start rate feedback warm epsilon type : shape ; shape ...", then for each step one line with the
averaged gradients of the bucket one after the other. What went in is draw_normal(1000 case + 100 rank + step). That
(splitmix64 and Box-Muller, as in worker_sdk/training/power_sgd_math.cc) also stands in the place of torch.randn for the
numbers that begin the factors; all else is PyTorch's.
"""
import math
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd

MASK = (1 << 64) - 1
STEPS = 5
CASES = [  # rank, start, rate, feedback, warm, epsilon, type, shapes
    (1, 0, 2, True, True, 0, "f32", [(12, 9), (5,), (8, 3, 3), (2, 2)]),
    (2, 0, 1.5, True, True, 0, "f32", [(20, 16), (7,), (16, 20)]),
    (1, 2, 2, True, False, 1e-6, "f32", [(10, 11), (10,)]),
    (2, 1, 1, False, True, 0, "f64", [(9, 14), (6, 6), (3,)]),
    (3, 0, 1, True, True, 1e-8, "f64", [(16, 12), (13, 17)]),
    (1, 0, 2, False, False, 0, "f32", [(15, 15)]),
    (4, 0, 4, True, True, 0, "f32", [(6, 5), (4,)]),  # Nothing is worth compressing.
]
TYPES = {"f32": torch.float32, "f64": torch.float64}


def draw_normal(seed, count):
    state = seed & MASK
    values = []

    def uniform():
        nonlocal state
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return (((z ^ (z >> 31)) >> 11) + 1) * 2.0**-53

    while len(values) < count:
        radius = math.sqrt(-2 * math.log(uniform()))
        angle = 2 * math.pi * uniform()
        values += [radius * math.cos(angle), radius * math.sin(angle)]
    return values[:count]


class Bucket:
    def __init__(self, shapes, flat):
        self.flat, self.shapes = flat, shapes

    def buffer(self):
        return self.flat

    def index(self):
        return 0

    def is_last(self):
        return True

    def gradients(self):
        offset, out = 0, []
        for shape in self.shapes:
            count = math.prod(shape)
            out.append(self.flat[offset:offset + count].view(shape))
            offset += count
        return out


def factors_to_draw(case):
    """Sizes of all q of a bucket, in their order."""
    rank, _, rate, *_, shapes = case
    sizes = []
    for shape in shapes:
        n = shape[0]
        m = math.prod(shape[1:])
        r = min(n, m, rank)
        if (n + m) * r * rate < n * m:
            sizes.append(m * r)
    return sizes


def gradients(case, case_number, rank, step):
    count = sum(math.prod(s) for s in case[-1])
    return torch.tensor(draw_normal(1000 * case_number + 100 * rank + step, count), dtype=TYPES[case[6]])


def run_case(number, case, rank):
    order, start, rate, feedback, warm, epsilon, type_name, shapes = case
    state = power_sgd.PowerSGDState(None, matrix_approximation_rank=order, start_powerSGD_iter=max(start, 2),
                                    min_compression_rate=rate, use_error_feedback=feedback, warm_start=warm,
                                    orthogonalization_epsilon=epsilon)
    state.start_powerSGD_iter = start  # PyTorch wants 2 at least, because DDP rebuilds its buckets first.
    lines = []
    for step in range(STEPS):
        drawn = iter(draw_normal(((step + 1) << 20), sum(factors_to_draw(case))))

        def randn(*shape, **options):
            values = [next(drawn) for _ in range(math.prod(shape))]
            return torch.tensor(values, dtype=torch.float64).view(*shape).to(options["dtype"])

        mine = gradients(case, number, rank, step)
        flat = mine.clone()
        real, torch.randn = torch.randn, randn
        try:
            future = power_sgd.powerSGD_hook(state, Bucket(shapes, flat))
            result = future.wait()
        finally:
            torch.randn = real
        result = result[0] if isinstance(result, (list, tuple)) else result
        lines.append(" ".join(f"{x:.9g}" for x in result.tolist()))
    return lines


def worker(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    for number, case in enumerate(CASES):
        lines = run_case(number, case, rank)
        if rank == 0:
            order, start, rate, feedback, warm, epsilon, type_name, shapes = case
            print("case", order, start, rate, int(feedback), int(warm), epsilon, type_name, ":",
                  " ; ".join(" ".join(map(str, s)) for s in shapes))
            print("\n".join(lines), flush=True)
    dist.barrier()


def main():
    print(f"# torch {torch.__version__}; written by make_power_sgd_golden.py", flush=True)
    mp.spawn(worker, args=(29511,), nprocs=2)


if __name__ == "__main__":
    sys.exit(main())
