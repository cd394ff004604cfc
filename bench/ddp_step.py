#!/usr/bin/env python3
"""A step under our DistributedDataParallel for libtorch beside PyTorch's: same models, same machine, in turn.

    bench/ddp_step.py [--build build/dev] [--workers 2] [--rounds 5] [--steps 50] [--launcher "ddprun ..."]

The models are those of programs/ddp_overhead.cc. On GPUs, over NCCL, where PyTorch sees any, else on the host over Gloo
(ours: over shm). Prints each round, medians and the median of the rounds' ratios.
"""
import argparse
import os
import re
import shlex
import statistics
import subprocess
import sys
import time

from side_by_side import PYTHON, add_build_option, has_torch, median_ratio, take_turns

MODELS = ("ConvNet", "perceptron")


def conv_net(nn):
    return nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(7 * 7 * 32, 10))


def perceptron(nn):
    layers = [layer for _ in range(6) for layer in (nn.Linear(2040, 2040), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(2040, 10))


def worker(steps):
    """What PyTorch's ranks run."""
    import torch
    import torch.distributed as dist
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device.type == "cpu" else "nccl")
    torch.manual_seed(1)

    def measure(name, model, x):
        x, y = x.to(device), torch.randint(10, (len(x),)).to(device)
        model = model.to(device)
        ddp = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)

        def run(times):
            for _ in range(times):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(ddp(x), y).backward()
                optimizer.step()
            if device.type == "cuda":
                torch.cuda.synchronize()

        run(10)
        dist.barrier()
        start = time.monotonic()
        run(steps)
        if dist.get_rank() == 0:
            print(f"step {name}: {1000 * (time.monotonic() - start) / steps:.4f} ms", flush=True)
        del ddp

    measure("ConvNet", conv_net(torch.nn), torch.randn(100, 1, 28, 28))
    measure("perceptron", perceptron(torch.nn), torch.randn(32, 2040))
    dist.destroy_process_group()


def times_of(launcher, workers, program):
    line = [*shlex.split(launcher), "--standalone", "--nproc-per-node", str(workers), *program]
    env = dict(os.environ, OMP_NUM_THREADS="1", PYTHON_EXEC=PYTHON)
    job = subprocess.run(line, env=env, text=True, stdout=subprocess.PIPE, check=False, timeout=300)
    found = {model: re.search(rf"step {model}: ([0-9.]+) ms", job.stdout) for model in MODELS}
    if job.returncode or not all(found.values()):
        sys.exit(f"{' '.join(line)} failed:\n{job.stdout}")
    return {model: float(match[1]) for model, match in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    # A worker is PyTorch's, and needs no build.
    add_build_option(parser, *([] if "--worker" in sys.argv else ["bin/bench_ddp_overhead"]))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--launcher")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options.steps)
    launcher = options.launcher or os.path.join(options.build, "bin", "ddprun")
    steps = str(options.steps)
    ours = [os.path.join(options.build, "bin", "bench_ddp_overhead"), "step", steps]
    theirs = [os.path.abspath(__file__), "--worker", "--steps", steps]
    contestants = {"ours": lambda: times_of(launcher, options.workers, ours)}
    if has_torch("PyTorch DDP"):
        contestants["theirs"] = lambda: times_of(launcher, options.workers, theirs)
    rounds = take_turns(contestants, options.rounds)
    print(f"ms a step, medians of {options.rounds} rounds of {steps} steps, {options.workers} workers")
    if "theirs" not in rounds:
        for model in MODELS:
            print(f"{model}: {statistics.median(r[model] for r in rounds['ours']):.3f}")
        return 0
    print("| model | ddprun | PyTorch DDP | ratio of a round, median | ratios |\n|--|--|--|--|--|")
    for model in MODELS:
        mine, others = ([r[model] for r in rounds[who]] for who in ("ours", "theirs"))
        ratios = [m / o for m, o in zip(mine, others)]
        print(f"| {model} | {statistics.median(mine):.3f} | {statistics.median(others):.3f} | "
              f"{median_ratio(mine, others):.3f} | {min(ratios):.3f}-{max(ratios):.3f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
