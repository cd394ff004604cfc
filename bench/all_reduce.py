#!/usr/bin/env python3
"""all_reduce of f32 on one host beside Gloo, torch.distributed, Open MPI, MPICH and a plain copy.

    bench/all_reduce.py [--build build/dev] [--ranks 2] [--rounds 3] [--seconds 0.5] [--bind]

Root runs all of it in a network namespace of its own with Reno for all. A round runs bench_all_reduce (our ways, Gloo's
C++ ring and the copy in the same processes), then each peer's program; MPI with its own shared memory. Prints the medians
of the rounds' medians in microseconds, and the ratios of direct to each peer. Peers that are not installed are left out.
--bind gives each rank of every contestant a CPU to itself, as mpirun's --bind-to core does.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile

from side_by_side import HERE, PYTHON, add_build_option, free_port, has_torch, median_ratio, mpi_program, take_turns
from store_contestants import in_a_network_of_its_own


def table(text):
    """{bytes: microseconds} of lines "bytes microseconds"."""
    return {int(size): float(us) for size, us in (line.split("\t") for line in text.splitlines() if "\t" in line)}


def run(argv, env=None):
    return subprocess.run(argv, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=600,
                          env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}).stdout


def ours(args):
    program = os.path.join(args.build, "bin", "bench_all_reduce")
    rows = {}
    for line in run([program, str(args.ranks), str(args.seconds), "lines", *["bind"] * args.bind]).splitlines():
        name, size, us = line.split("\t")
        rows.setdefault(name, {})[int(size)] = float(us)
    return rows


def torch(args):
    port, children = free_port(), []
    for rank in range(args.ranks):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(args.ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                   OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
        cpu = ["taskset", "-c", str(sorted(os.sched_getaffinity(0))[rank])] if args.bind else []
        children.append(subprocess.Popen([*cpu, PYTHON, os.path.join(HERE, "programs", "all_reduce_torch.py"), str(args.seconds)], env=env,
                                         text=True, stdout=subprocess.PIPE))
    return table("".join(child.communicate(timeout=600)[0] for child in children))


def mpi(kind, folder, args):
    """A function that runs MPI's program, or None where that MPI is not installed."""
    found = mpi_program(kind, os.path.join(HERE, "programs", "all_reduce_mpi.cc"), folder)
    if not found:
        return None
    launcher, program = found
    more = ["--allow-run-as-root", *["--oversubscribe"] * (not args.bind)] if kind == "openmpi" else []
    if args.bind:
        more += ["--bind-to", "core"] if kind == "openmpi" else ["-bind-to", "core"]
    return lambda: table(run([launcher, *more, "-n", str(args.ranks), program, str(args.seconds)]))


def main():
    parser = argparse.ArgumentParser()
    add_build_option(parser, "bin/bench_all_reduce")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--bind", action="store_true")
    args = parser.parse_args()
    in_a_network_of_its_own()
    with tempfile.TemporaryDirectory() as folder:
        contestants = {"ours": lambda: ours(args), "torch gloo": (lambda: torch(args)) if has_torch("torch gloo") else None,
                       "Open MPI": mpi("openmpi", folder, args), "MPICH": mpi("mpich", folder, args)}
        rounds = take_turns({name: f for name, f in contestants.items() if f}, args.rounds)
    own = rounds.pop("ours")
    columns = {name: [round_[name] for round_ in own] for name in own[0]} | rounds
    print(f"{args.ranks} ranks, microseconds (x: as many times as long as shm direct)\n{'KiB':>8}", end="")
    print("".join(f"{name:>20}" for name in columns))
    for size in columns["shm direct"][0]:
        direct = [round_[size] for round_ in columns["shm direct"]]
        print(f"{size // 1024:>8}", end="")
        for values in columns.values():
            times = [round_[size] for round_ in values]
            print(f"{statistics.median(times):>11.1f} ({median_ratio(times, direct):6.2f})", end="")
        print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
