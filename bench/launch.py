#!/usr/bin/env python3
"""How long it takes to start and end N workers that do nothing, beside MPICH and a bare posix_spawn loop.

    bench/launch.py [--build build/dev] [--rounds 15] [--workers 8 64 256] [--torchrun]

Contestants take turns. Prints medians [min-max] of wall and CPU seconds, the peak memory of the largest process of
ddprun's, and the medians of the rounds' ratios. MPICH is Debian's mpirun.mpich; without it that row is left out.
--torchrun adds `torchrun --standalone`, which takes seconds a round.
"""
import argparse
import os
import shutil
import statistics
import subprocess
import time

from side_by_side import PYTHON, ROOT, median_ratio, spread, take_turns


def timed(argv, memory=None):
    """(wall, CPU) seconds of a command and all that it waited for."""
    def run():
        begun = time.monotonic()
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        words = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(argv)}: {process.returncode}\n{words.decode()}")
        if memory is not None:
            memory.append(usage.ru_maxrss / 1024)
        return wall, usage.ru_utime + usage.ru_stime
    return run


def contestants(options, n, memory):
    program = "/bin/true"
    bin_of = lambda name: os.path.join(options.build, "bin", name)
    found = {"ddprun": [bin_of("ddprun"), "--standalone", "--nproc-per-node", str(n), program],
             "posix_spawn": [bin_of("bench_spawn_loop"), str(n), program]}
    if shutil.which("mpirun.mpich"):
        found["mpirun.mpich"] = ["mpirun.mpich", "-n", str(n), program]
    if options.torchrun:  # -r and -t: Debian's 1.13.1 cannot start without them.
        found["torchrun"] = [PYTHON, "-m", "torch.distributed.run", "--standalone", "-r", "9999:1", "-t", "9999:1",
                             "--nproc_per_node", str(n), "--no_python", program]
    return {name: timed(argv, memory if name == "ddprun" else None) for name, argv in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "dev"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--torchrun", action="store_true")
    options = parser.parse_args()

    print(f"{options.rounds} rounds; median [min-max]; ratio: ddprun's wall time to theirs")
    print(f"{'workers':>7}  {'launcher':<13} {'wall s':>22} {'CPU s':>22} {'ratio':>7}")
    for n in options.workers:
        memory = []
        values = take_turns(contestants(options, n, memory), options.rounds)
        walls = {name: [wall for wall, _ in pairs] for name, pairs in values.items()}
        for name, pairs in values.items():
            print(f"{n:>7}  {name:<13} {spread(walls[name]):>22} {spread([cpu for _, cpu in pairs]):>22} "
                  f"{median_ratio(walls['ddprun'], walls[name]):>7.2f}", flush=True)
        print(f"{n:>7}  peak memory of ddprun's largest process: {statistics.median(memory):.1f} MB")


if __name__ == "__main__":
    main()
