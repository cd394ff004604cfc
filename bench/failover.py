#!/usr/bin/env python3
"""How long nobody decides after kill -9 of the leading daemon: two daemons, one etcd, all on loopback.

    bench/failover.py [--build build/dev] [--rounds 10] [--lease 2]

A round is a leader killed at a random moment of its lease. "Takeover" ends when the standby says that it leads. The
lease counts from its last renewal, which was up to a third of it before the kill, so its share of a takeover is
between two thirds of it and all of it.
"""
import argparse
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from side_by_side import add_build_option, free_port


class Daemon:
    def __init__(self, build, folder, etcd, lease):
        self.log = tempfile.NamedTemporaryFile(dir=folder, prefix="daemon-", delete=False)
        self.process = subprocess.Popen(
            [os.path.join(build, "bin/ddprun-rendezvous"), "--no-auth", "--port", str(free_port()), "--etcd",
             etcd, "--etcd-lease", str(lease)], stderr=self.log, stdin=subprocess.DEVNULL)

    def wait_for(self, pattern, limit=60):
        end = time.monotonic() + limit
        while time.monotonic() < end:
            with open(self.log.name, encoding="utf-8") as f:
                if re.search(pattern, f.read()):
                    return time.monotonic()
            time.sleep(0.002)
        raise SystemExit(f"no {pattern!r} within {limit} s, see {self.log.name}")


def start_etcd(folder):
    url, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    process = subprocess.Popen(
        ["etcd", "--name", "b", "--data-dir", os.path.join(folder, "etcd"), "--listen-client-urls", url,
         "--advertise-client-urls", url, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
         "--initial-cluster", f"b={peer}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return process, url


def measure(options, folder, etcd):
    takeovers = []
    leader = Daemon(options.build, folder, etcd, options.lease)
    leader.wait_for("leads now")
    try:
        for _ in range(options.rounds):
            standby = Daemon(options.build, folder, etcd, options.lease)
            standby.wait_for("standing by")
            time.sleep(random.uniform(0, options.lease))
            leader.process.kill()
            killed = time.monotonic()
            leader.process.wait()
            leader = standby
            takeovers.append(standby.wait_for("leads now") - killed)
    finally:
        leader.process.kill()
        leader.process.wait()
    return takeovers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_build_option(parser, "bin/ddprun-rendezvous")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--lease", type=int, default=2)
    options = parser.parse_args()
    if not shutil.which("etcd"):
        sys.exit("there is no etcd (package etcd-server)")
    with tempfile.TemporaryDirectory(prefix="ddprun-failover-") as folder:
        process, url = start_etcd(folder)
        try:
            takeovers = measure(options, folder, url)
        finally:
            process.kill()
            process.wait()
    median = statistics.median(takeovers)
    print(f"takeover after kill -9, {options.rounds} rounds, lease {options.lease} s")
    print(f"  median {median:.2f} s   max {max(takeovers):.2f} s   min {min(takeovers):.2f} s")
    print(f"  beyond the lease: median {max(0.0, median - options.lease):.2f} s, "
          f"max {max(0.0, max(takeovers) - options.lease):.2f} s; "
          f"the lease is at most {min(1.0, options.lease / median):.0%} of the median")


if __name__ == "__main__":
    main()
