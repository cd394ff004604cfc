#!/usr/bin/env python3
"""Writes training.txt: what PyTorch's clip_grad_norm_, GradScaler and ZeroRedundancyOptimizer do, for
tests/unit/ddp/gradients_test.cc, tests/unit/ddp/sharding_test.cc and tests/process/torch/torch_training_test.cc.

    python3 tests/golden/make_training_golden.py > tests/golden/training.txt         # PyTorch 2.3 or newer

    clip SEED NORM_TYPE MAX_NORM type : sizes | norm | gradients afterwards
    scale INIT GROWTH BACKOFF INTERVAL : found_inf of each iteration | scale after each
    unscale SCALE : gradients | gradients afterwards | found_inf
    partition WORLD : sizes | parameters of rank 0 ; of rank 1 ; ...
    zero OPTIMIZER STEPS : sizes | all parameters after STEPS steps on two ranks

Inputs are draw_normal(SEED) of worker_sdk/training/power_sgd_math.cc; for zero, parameters are draw_normal(1), and the
gradients of step s draw_normal(100 + s).
"""
import os
import random
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.optim import ZeroRedundancyOptimizer

from make_power_sgd_golden import draw_normal

TYPES = {"f32": torch.float32, "f64": torch.float64}
STEPS = 6
OPTIMIZERS = {
    "adam": lambda p: (torch.optim.Adam, dict(lr=0.05, weight_decay=0.01)),
    "momentum": lambda p: (torch.optim.SGD, dict(lr=0.1, momentum=0.9)),
    "sgd": lambda p: (torch.optim.SGD, dict(lr=0.1)),
}
ZERO_SIZES = [[12, 5, 30, 7, 7], [3], [8, 8, 8]]


def numbers(values):
    return " ".join(f"{float(v):.9g}" for v in values)


def split(values, sizes, dtype):
    parts, at = [], 0
    for size in sizes:
        parts.append(torch.tensor(values[at:at + size], dtype=dtype))
        at += size
    return parts


def clip_lines(rng):
    for case in range(60):
        sizes = [rng.randint(1, 9) for _ in range(rng.randint(1, 5))]
        norm_type = rng.choice((1.0, 2.0, 2.0, 3.0, 0.5, float("inf")))
        max_norm = rng.choice((0.01, 0.5, 1.0, 2.0, 100.0))
        name = rng.choice(("f32", "f32", "f64"))
        parameters = []
        for gradient in split(draw_normal(case, sum(sizes)), sizes, TYPES[name]):
            parameters.append(torch.zeros_like(gradient).requires_grad_())
            parameters[-1].grad = gradient
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)
        print("clip", case, norm_type, max_norm, name, ":", *sizes, "|", numbers([norm]), "|",
              numbers(torch.cat([p.grad for p in parameters])))


def one_iteration(scaler, gradient):
    """Of a training loop whose scaled gradient is `gradient`; returns what unscale_ made of it."""
    parameter = torch.zeros_like(gradient).requires_grad_()
    optimizer = torch.optim.SGD([parameter], lr=1)
    scaler.scale(torch.zeros(()))  # Makes the scale tensor.
    parameter.grad = gradient
    scaler.unscale_(optimizer)
    result = parameter.grad.clone()
    scaler.step(optimizer)
    scaler.update()
    return result


def scale_lines(rng):
    for case in range(40):
        growth, backoff = rng.choice((2.0, 1.5, 3.0)), rng.choice((0.5, 0.25, 0.7))
        interval, init = rng.choice((1, 2, 3, 5, 9)), rng.choice((65536.0, 1.0, 3.7, 2.0**126))
        scaler = torch.amp.GradScaler("cpu", init, growth, backoff, interval)
        found, scales = [], []
        for _ in range(40):
            found.append(int(rng.random() < 0.2))
            one_iteration(scaler, torch.tensor([1.0, float("inf") if found[-1] else 2.0]))
            scales.append(scaler.get_scale())
        print("scale", init, growth, backoff, interval, ":", *found, "|", numbers(scales))
    for case in range(20):
        init = rng.choice((65536.0, 3.7, 1 / 3, 1e-30))
        values = draw_normal(case, 6)
        if case % 3 == 0:
            values[rng.randrange(6)] = rng.choice((float("inf"), float("-inf"), float("nan")))
        scaler = torch.amp.GradScaler("cpu", init, 2.0, 0.5, 1000)
        result = one_iteration(scaler, torch.tensor(values))
        print("unscale", init, ":", numbers(torch.tensor(values)), "|", numbers(result), "|",
              int(scaler.get_scale() < init))


def partition_lines(rng):
    for _ in range(200):
        world = rng.choice((1, 2, 3, 4, 7, 8))
        sizes = [rng.choice((1, 8, 8, rng.randint(1, 500))) for _ in range(rng.randint(1, 14))]
        parameters = [torch.zeros(size) for size in sizes]
        number = {id(p): i for i, p in enumerate(parameters)}
        # Its own code on as much of the object as it looks at: a group of 8 processes takes long.
        optimizer = ZeroRedundancyOptimizer.__new__(ZeroRedundancyOptimizer)
        optimizer.process_group = None
        optimizer.world_size = world
        optimizer.param_groups = [{"params": parameters}]
        optimizer._partition_parameters_cache = []
        shares = optimizer._partition_parameters()
        print("partition", world, ":", *sizes, "|",
              " ; ".join(" ".join(str(number[id(p)]) for group in share for p in group["params"]) for share in shares))


def zero_worker(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for name, make in OPTIMIZERS.items():
        for sizes in ZERO_SIZES:
            parameters = [p.requires_grad_() for p in split(draw_normal(1, sum(sizes)), sizes, torch.float32)]
            kind, options = make(parameters)
            optimizer = ZeroRedundancyOptimizer(parameters, kind, **options)
            for step in range(STEPS):
                for p, g in zip(parameters, split(draw_normal(100 + step, sum(sizes)), sizes, torch.float32)):
                    p.grad = g
                optimizer.step()
            if rank == 0:
                print("zero", name, STEPS, ":", *sizes, "|", numbers(torch.cat([p.detach() for p in parameters])), flush=True)
    dist.barrier()


def main():
    print(f"# torch {torch.__version__.split('+')[0]}; written by make_training_golden.py")
    rng = random.Random(5)
    clip_lines(rng)
    scale_lines(rng)
    partition_lines(rng)
    sys.stdout.flush()
    mp.spawn(zero_worker, args=(29512,), nprocs=2)


if __name__ == "__main__":
    sys.exit(main())
