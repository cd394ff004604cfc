#!/usr/bin/env python3
"""kill -9 of launcher, agents and daemon in every combination: how long until nothing of the job is left.

    bench/orphans.py [--build build/dev] [--rounds 10]

Two nodes of two workers; each has detached three processes by setsid, deaf to SIGTERM. Beside them the launcher of MPICH, where the
number is what is left after one second. Milliseconds, median [min-max].
"""
import argparse
import itertools
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from side_by_side import ROOT, add_build_option, spread

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
add_build_option(parser, "bin/ddprun")
parser.add_argument("--rounds", type=int, default=10)
options = parser.parse_args()
os.environ["DDPRUN_BIN"] = os.path.join(options.build, "bin")
sys.path[:0] = [os.path.join(ROOT, "tests", folder) for folder in ("system", "failures")]
import ddprun_case  # noqa: E402  It reads DDPRUN_BIN.
import kill_test  # noqa: E402


def started(folder, argv):
    job = ddprun_case.Job([*argv, *ddprun_case.shell(kill_test.HARD_TO_KILL + kill_test.WAIT)], folder, {"D": folder})
    ddprun_case.wait_until(lambda: kill_test.NothingStays.offspring(job) == 12, lambda: str(job.processes()))
    return job


def left_after(job, victims, limit):
    """Milliseconds until nothing was left, or how many processes were after `limit` seconds."""
    begun = time.monotonic()
    for pid in victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # The others have noticed, and were faster.
    while True:
        left = job.processes()
        took = time.monotonic() - begun
        if not left:
            return took * 1000, 0
        if took > limit:
            return None, len(left)


def main():
    argv = [ddprun_case.DDPRUN, "--local-nodes", "2", "--nproc-per-node", "2"]
    rows = [names for size in (1, 2, 3) for names in itertools.combinations(("launcher", "agents", "daemon"), size)
            if names != ("daemon",)]
    times, left = {names: [] for names in rows}, {names: 0 for names in rows}
    others = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for names in rows:
                job = started(folder, argv)
                who = {"launcher": [job.pid], "agents": [a.pid for a in job.agents()], "daemon": [job.daemon().pid]}
                took, remaining = left_after(job, [pid for name in names for pid in who[name]], 1)
                times[names].append(took or 1000)
                left[names] += remaining
                job.end()
            if shutil.which("mpirun.mpich"):
                job = started(folder, ["mpirun.mpich", "-n", "4", "-genv", "TORCHELASTIC_RESTART_COUNT", "0",
                                       "-genv", "WORLD_SIZE", "4", "-genv", "RANK", "0"])
                others.append(left_after(job, [job.pid], 1)[1])
                job.end()
    for names in rows:
        print(f"{' + '.join(names):<28} {spread(times[names])} ms, {left[names]} left after 1 s")
    if others:
        print(f"{'mpirun.mpich':<28} {statistics.median(others):g} of 16 processes left after 1 s")
    raise SystemExit(any(left.values()))


if __name__ == "__main__":
    main()
