#!/usr/bin/env python3
"""PyTorch on the backend ddprun beside gloo: what an all_reduce takes, and what DDP trains a second.

    bench/python/compare.py [--build build/dev] [--rounds 5] [--ranks 2 4] [--only all_reduce convnet transformer]
                            [--steps N]

PYTHON_EXEC names the interpreter with torch. Contestants take turns: gloo, ddprun, and ddprun-shared, which is ddprun
with its own DistributedDataParallel and tensors in shared memory. Prints medians [min-max] of the rounds, and of the
rounds' own ratios to gloo. "added by Python": a ctypes call of ddprun_all_reduce beside
torch.distributed.all_reduce in one process pair, 4 bytes (cost.py). Each run is also a line on standard error: with
4 ranks on 2 processors one takes up to half a minute, most of which is the ranks' import of torch.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from side_by_side import PYTHON, ROOT, add_build_option, median_ratio, need_torch, take_turns  # noqa: E402

BACKENDS = ("gloo", "ddprun", "ddprun-shared")
LIMIT_S = 600  # Of one run. What takes longer hangs.


def environment(build):
    return {**os.environ, "PYTHONPATH": os.path.join(ROOT, "python"), "PYTHON_EXEC": PYTHON, "PYTHONWARNINGS": "ignore",
            "DDPRUN_LIB": os.path.join(build, "worker_sdk", "libddprun.so"), "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}


def run(build, ranks, script, *arguments):
    """What rank 0 prints."""
    command = [os.path.join(build, "bin", "ddprun"), "--nproc-per-node", str(ranks), os.path.join(HERE, script), *arguments]
    begun = time.monotonic()
    done = subprocess.run(command, env=environment(build), stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S)
    print(f"# {ranks} ranks, {' '.join([script, *arguments])}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    line = done.stdout.splitlines()[-1]
    return json.loads(line[line.index("{"):] if "{" in line else line.rpartition("]:")[2])


def shown(values):
    return f"{statistics.median(values):,.0f} [{min(values):,.0f}-{max(values):,.0f}]"


def ratio_text(ours, theirs):
    """The median of the rounds' own ratios, and their range."""
    ratios = [a / b for a, b in zip(ours, theirs)]
    return f"{median_ratio(ours, theirs):.2f} [{min(ratios):.2f}-{max(ratios):.2f}]"


def print_all_reduce(ranks, values):
    print(f"all_reduce, {ranks} ranks, microseconds")
    for size in values["gloo"][0]:
        row = {name: [each[size] for each in rounds] for name, rounds in values.items()}
        times = "  ".join(f"{name} {shown(row[name])}" for name in row)
        ratios = " ".join(ratio_text(row["gloo"], row[name]) for name in list(row)[1:])
        print(f"  {int(size) >> 10:>6} KiB  {times}  gloo's to these: {ratios}", flush=True)


def print_training(what, ranks, values):
    for name, rounds in values.items():
        ratio = ratio_text(rounds, values["gloo"])
        print(f"{what}, {ranks} ranks: {name:<14} {shown(rounds)} samples/s, {ratio} times gloo", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_build_option(parser, "bin/ddprun", "worker_sdk/libddprun.so")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--only", nargs="+", default=["cost", "all_reduce", "convnet", "transformer"])
    parser.add_argument("--steps", type=int, help="how many are timed; a model has a number of its own (worker.py)")
    options = parser.parse_args()
    need_torch()
    steps = [str(options.steps)] if options.steps else []
    if "cost" in options.only:
        cost = run(options.build, 2, "cost.py")
        print("one all_reduce of 4 bytes, 2 ranks, microseconds:", ", ".join(f"{k} {v:.1f}" for k, v in cost.items()))
    for ranks in options.ranks:
        for what in options.only:
            if what == "cost":
                continue
            turns = {name: lambda name=name: run(options.build, ranks, "worker.py", name, what, *steps) for name in BACKENDS}
            values = take_turns(turns, options.rounds)
            print_all_reduce(ranks, values) if what == "all_reduce" else print_training(what, ranks, values)


if __name__ == "__main__":
    main()
