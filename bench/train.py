#!/usr/bin/env python3
"""Samples/s of `train` beside PyTorch DDP's (examples/train.py), same model, data and settings.

    bench/train.py [--build build/dev] [--workers 2] [--rounds 5] [--steps 100] [--launcher "ddprun ..."]
                   [--device cuda] [--data FOLDER]

Each round runs both, in turns, so that a noisy machine is noisy for both. Workers are spawned plainly
with the env:// variables and one thread each, or with --launcher by that program for both. Prints one line
a round, then medians and the median of the rounds' ratios. Without PyTorch only `train` is measured.
"""
import argparse
import os
import re
import shlex
import statistics
import subprocess
import sys

from side_by_side import PYTHON, ROOT, add_build_option, free_port, has_torch, median_ratio


def spawn(command, workers):
    port = free_port()
    processes = []
    for rank in range(workers):
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(workers),
                   LOCAL_WORLD_SIZE=str(workers), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                   OMP_NUM_THREADS="1")
        processes.append(subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE))
    outputs = [p.communicate(timeout=600)[0] for p in processes]
    if any(p.returncode for p in processes):
        sys.exit(f"{command[0]} failed: {[p.returncode for p in processes]}")
    return "".join(outputs)


def launch(command, workers, launcher):
    if not launcher:
        return spawn(command, workers)
    line = [*shlex.split(launcher), "--standalone", "--nproc-per-node", str(workers),
            *command[command[0] == PYTHON:]]
    env = dict(os.environ, OMP_NUM_THREADS="1", PYTHON_EXEC=PYTHON)
    return subprocess.run(line, env=env, text=True, stdout=subprocess.PIPE, check=True).stdout


def samples_per_s(output):
    return float(re.search(r"speed\s+(\d+) samples/s", output).group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_build_option(parser, "bin/train")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--launcher")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data")
    options = parser.parse_args()

    settings = ["--epochs", "1", "--max-steps", str(options.steps), "--device", options.device]
    if options.data:
        settings += ["--data", options.data]
    ours = [os.path.join(options.build, "bin", "train"), *settings]
    theirs = [PYTHON, os.path.join(ROOT, "examples", "train.py"), *settings]
    if not has_torch("PyTorch DDP"):
        speeds = [samples_per_s(launch(ours, options.workers, options.launcher)) for _ in range(options.rounds)]
        print(f"train: {statistics.median(speeds):.0f} samples/s [{min(speeds):.0f}-{max(speeds):.0f}], "
              f"{options.workers} workers, {options.steps} steps")
        return
    pairs = []
    print(f"{'round':>5} {'train':>10} {'PyTorch DDP':>12} {'ratio':>7}   samples/s, "
          f"{options.workers} workers, {options.steps} steps")
    for number in range(options.rounds):
        pair = {}
        for name, command in (("ours", ours), ("theirs", theirs))[:: 1 if number % 2 else -1]:
            pair[name] = samples_per_s(launch(command, options.workers, options.launcher))
        pairs.append((pair["ours"], pair["theirs"]))
        print(f"{number + 1:>5} {pairs[-1][0]:>10.0f} {pairs[-1][1]:>12.0f} "
              f"{pairs[-1][0] / pairs[-1][1]:>7.3f}", flush=True)
    print(f"{'med.':>5} {statistics.median(p[0] for p in pairs):>10.0f} "
          f"{statistics.median(p[1] for p in pairs):>12.0f} "
          f"{median_ratio(*zip(*pairs)):>7.3f}")


if __name__ == "__main__":
    main()
