#!/usr/bin/env python3
"""What ddprun costs while workers compute: private memory of its processes, and how often they wake up.

    bench/idle.py [--build build/dev] [--workers 8] [--seconds 20]

For one node, and for two nodes with a daemon. Wake-ups are voluntary context switches by /proc; beside MPICH.
"""
import argparse
import os
import shutil
import subprocess
import time

from side_by_side import add_build_option

WORKER = ["/bin/sh", "-c", "echo here; exec sleep 600"]


def field(path, name):
    with open(path, encoding="ascii", errors="replace") as f:
        return sum(int(line.split()[1]) for line in f if line.startswith(name))


def tree(pid):
    """This process and all below it but the workers."""
    found = [pid]
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
        for child in f.read().split():
            with open(f"/proc/{child}/comm", encoding="ascii") as c:
                if c.read().strip() not in ("sleep", "sh"):
                    found += tree(int(child))
    return found


def facts(pid):
    private = field(f"/proc/{pid}/smaps_rollup", "Private_Clean:") + field(f"/proc/{pid}/smaps_rollup", "Private_Dirty:")
    with open(f"/proc/{pid}/comm", encoding="ascii") as f:
        return f.read().strip(), private / 1024, field(f"/proc/{pid}/status", "voluntary_ctxt_switches:")


def measure(name, argv, workers, seconds):
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as job:
        for _ in range(workers):
            job.stdout.readline()
        time.sleep(2)  # What begins of itself has begun.
        before = {pid: facts(pid) for pid in tree(job.pid)}
        time.sleep(seconds)
        after = {pid: facts(pid) for pid in before}
        job.terminate()
        job.stdout.read()
    for pid, (comm, private, switches) in after.items():
        print(f"{name:<22} {comm:<18} {private:6.1f} MB private {(switches - before[pid][2]) / seconds:7.2f} wake-ups/s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_build_option(parser, "bin/ddprun")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    n, ddprun = str(options.workers), os.path.join(options.build, "bin", "ddprun")
    measure("one node", [ddprun, "--standalone", "--nproc-per-node", n, *WORKER], options.workers, options.seconds)
    measure("two nodes, a daemon", [ddprun, "--local-nodes", "2", "--nproc-per-node", n, *WORKER], 2 * options.workers,
            options.seconds)
    if shutil.which("mpirun.mpich"):
        measure("mpirun.mpich", ["mpirun.mpich", "-n", n, *WORKER], options.workers, options.seconds)


if __name__ == "__main__":
    main()
