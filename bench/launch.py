#!/usr/bin/env python3
"""How long it takes to start and end N workers that do nothing, beside MPICH and a bare posix_spawn loop.

    bench/launch.py [--build build/dev] [--before OTHER_BUILD] [--rounds 15] [--workers 8 64 256] [--torchrun]

Contestants take turns. Prints medians [min-max] of wall and CPU seconds, the peak memory of ddprun's launcher
and agent, and the medians of the rounds' ratios. MPICH is Debian's mpirun.mpich; without it that row is left out.
--before adds the ddprun of another build, such as that of the last release. --torchrun adds `torchrun --standalone`, which takes seconds a round.
"""
import argparse
import os
import shutil
import subprocess
import time

from side_by_side import PYTHON, add_build_option, has_torch, median_ratio, spread, take_turns


def timed(argv):
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
        return wall, usage.ru_utime + usage.ru_stime
    return run


def ddprun(build, n, *command):
    return [os.path.join(build, "bin", "ddprun"), "--standalone", "--nproc-per-node", str(n), *command]


def peak_memory(argv, workers):
    """MB that the launcher and the agent have ever held, once all workers have said a word."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as launcher:
        for _ in range(workers):
            launcher.stdout.readline()
        with open(f"/proc/{launcher.pid}/task/{launcher.pid}/children") as f:
            pids = [launcher.pid, *map(int, f.read().split())]
        peaks = []
        for pid in pids:
            with open(f"/proc/{pid}/status") as f:
                peaks += [int(line.split()[1]) / 1024 for line in f if line.startswith("VmHWM")]
        launcher.terminate()
        launcher.stdout.read()
    return peaks


def contestants(options, n):
    program = "/bin/true"
    found = {"ddprun": ddprun(options.build, n, program),
             "posix_spawn": [os.path.join(options.build, "bin", "bench_spawn_loop"), str(n), program]}
    if options.before:
        found["ddprun before"] = ddprun(options.before, n, program)
    if shutil.which("mpirun.mpich"):
        found["mpirun.mpich"] = ["mpirun.mpich", "-n", str(n), program]
    if options.torchrun and has_torch("torchrun"):  # -r and -t: Debian's 1.13.1 cannot start without them.
        found["torchrun"] = [PYTHON, "-m", "torch.distributed.run", "--standalone", "-r", "9:1", "-t", "9:1",
                             "--nproc_per_node", str(n), "--no_python", program]
    return {name: timed(argv) for name, argv in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_build_option(parser, "bin/ddprun", "bin/bench_spawn_loop")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--before")
    parser.add_argument("--torchrun", action="store_true")
    options = parser.parse_args()

    print(f"{options.rounds} rounds; median [min-max]; ratio: ddprun's wall time to theirs")
    print(f"{'workers':>7}  {'launcher':<13} {'wall s':>22} {'CPU s':>22} {'ratio':>7}")
    for n in options.workers:
        values = take_turns(contestants(options, n), options.rounds)
        walls = {name: [wall for wall, _ in pairs] for name, pairs in values.items()}
        for name, pairs in values.items():
            print(f"{n:>7}  {name:<13} {spread(walls[name]):>22} {spread([cpu for _, cpu in pairs]):>22} "
                  f"{median_ratio(walls['ddprun'], walls[name]):>7.2f}", flush=True)
        launcher, *others = peak_memory(ddprun(options.build, n, "/bin/sh", "-c", "echo here; exec sleep 600"), n)
        print(f"{n:>7}  peak memory: {launcher:.1f} MB in the launcher, "
              f"{max(others):.1f} MB in the agent, {min(others):.1f} MB in the keeper")


if __name__ == "__main__":
    main()
