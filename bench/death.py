#!/usr/bin/env python3
"""One worker of many is killed with SIGKILL: until all its siblings are gone, and until the launcher has ended.

    bench/death.py [--build build/dev] [--rounds 15] [--workers 64] [--namespaces 8]

On one node with so many workers, beside MPICH's mpirun; then on as many nodes as network namespaces (root only; eight
workers each), every launcher of which must end. The exit code must be 137 everywhere. Milliseconds, median [min-max].
"""
import argparse
import os
import select
import shutil
import signal
import subprocess
import time
import uuid

from side_by_side import add_build_option, spread

MARK = "DDPRUN_BENCH_JOB"
WORKER = ["/bin/sh", "-c", "echo here; exec sleep 600"]


def workers_of(mark):
    needle, found = f"{MARK}={mark}\0".encode(), []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/environ", "rb") as f, open(f"/proc/{entry}/comm", "rb") as c:
                if needle in f.read() and c.read() == b"sleep\n":
                    found.append(int(entry))
        except OSError:
            continue
    return found


def one_death(commands, workers, codes):
    """(ms to the last sibling's end, ms to the last launcher's end) of these launchers."""
    mark = uuid.uuid4().hex
    jobs = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
                             env={**os.environ, MARK: mark, "DDPRUN_TOKEN": "of the benchmark"}) for argv in commands]
    try:
        pids, until = [], time.monotonic() + 60
        while len(pids) < workers:
            if time.monotonic() > until:
                raise SystemExit(f"{len(pids)} of {workers} workers came")
            time.sleep(0.02)
            pids = workers_of(mark)
        ends = {os.pidfd_open(pid): pid for pid in pids}
        launchers = {os.pidfd_open(job.pid): job for job in jobs}
        watch = select.poll()
        for fd in [*ends, *launchers]:
            watch.register(fd, select.POLLIN)
        victim = sorted(pids)[len(pids) // 2]
        begun = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        last = {True: 0.0, False: 0.0}
        open_fds = set([*ends, *launchers])
        while open_fds:
            ready = watch.poll(20_000)
            now = (time.monotonic() - begun) * 1000
            if not ready:
                raise SystemExit("they did not end")
            for fd, _ in ready:
                last[fd in ends] = now
                watch.unregister(fd)
                open_fds.discard(fd)
        for fd in [*ends, *launchers]:
            os.close(fd)
        for job in jobs:
            code = job.wait()
            if codes and (code if code >= 0 else 128 - code) not in codes:
                raise SystemExit(f"exit code {code}")
        return last[True], last[False]
    finally:
        for job in jobs:
            job.stdout.close()
            if job.poll() is None:
                job.terminate()
                job.wait(30)


class Namespaces:
    """So many of them on one bridge."""
    def __init__(self, count):
        self.names = [f"ddpd{os.getpid()}n{i}" for i in range(count)]
        self.bridge = f"br{os.getpid()}"

    def __enter__(self):
        ip = lambda *argv: subprocess.run(["ip", *argv], check=True, timeout=20)
        ip("netns", "add", self.names[0] + "h")
        ip("-n", self.names[0] + "h", "link", "add", self.bridge, "type", "bridge")
        ip("-n", self.names[0] + "h", "link", "set", self.bridge, "up")
        for i, name in enumerate(self.names):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            ip("link", "add", f"p{i}", "netns", self.names[0] + "h", "type", "veth", "peer", "name", "eth", "netns", name)
            ip("-n", self.names[0] + "h", "link", "set", f"p{i}", "master", self.bridge, "up")
            ip("-n", name, "addr", "add", f"10.78.0.{i + 1}/24", "dev", "eth")
            ip("-n", name, "link", "set", "eth", "up")
        return self.names

    def __exit__(self, *_):
        for name in [self.names[0] + "h", *self.names]:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, timeout=20, check=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_build_option(parser, "bin/ddprun")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--namespaces", type=int, default=8)
    options = parser.parse_args()
    ddprun = os.path.join(options.build, "bin", "ddprun")

    contestants = {"ddprun": ([[ddprun, "--standalone", "--quiet", "--nproc-per-node", str(options.workers), *WORKER]],
                              {137})}
    if shutil.which("mpirun.mpich"):
        contestants["mpirun.mpich"] = ([["mpirun.mpich", "-n", str(options.workers), *WORKER]], None)
    values = {name: [] for name in contestants}
    dropped = set()
    for number in range(options.rounds):
        for name, (commands, codes) in contestants.items():
            if name in dropped:
                continue
            try:
                values[name].append(one_death(commands, options.workers, codes))
            except SystemExit as why:
                if name == "ddprun":
                    raise
                dropped.add(name)
                print(f"{name}: {why} within 20 s in round {number}: left out")
    for name, pairs in values.items():
        if pairs:
            print(f"{options.workers} workers, {name}: siblings gone {spread([p[0] for p in pairs])} ms, "
                  f"launcher ended {spread([p[1] for p in pairs])} ms")
    if os.geteuid() != 0 or not shutil.which("ip"):
        return
    with Namespaces(options.namespaces) as names:
        common = ["--quiet", "--nnodes", str(options.namespaces), "--nproc-per-node", "8", "--rdzv-endpoint",
                  "10.78.0.1:29400"]
        commands = [["ip", "netns", "exec", name, ddprun, *common, "--rdzv-conf", f"is_host={int(i == 0)}", *WORKER]
                    for i, name in enumerate(names)]
        pairs = [one_death(commands, 8 * len(names), {137}) for _ in range(options.rounds)]
    print(f"{options.namespaces} namespaces of 8 workers: siblings gone {spread([p[0] for p in pairs])} ms, "
          f"launchers ended {spread([p[1] for p in pairs])} ms")


if __name__ == "__main__":
    main()
