#!/usr/bin/env python3
"""A barrier of N clients through a store: all connect at once, add to a counter, the last sets a key, all wait for it.

    bench/barrier.py [--build build/dev] [--rounds 5] [--clients 64 256 1024 4096] [--before OTHER_store_serve]

Beside PyTorch's TCPStore, redis (INCR, XADD, XREAD BLOCK; --tcp-backlog 4096) and etcd (a transaction of put and count,
watch; 3.4's JSON gateway, data in memory). Contestants take turns, each on CPU 0; the clients are one thread on CPU 1,
bench_store_barrier. Prints medians [min-max] from the first connect until all are released, the medians until all are
connected, and the medians of the rounds' ratios: theirs to ddprun's, each PyTorch store beside our server speaking the
same dialect. "inf": nobody was told anything for 20 s.

Newer PyTorch: DDPRUN_TEST_TORCH_PYTHONS, see tests/interop/make_venv.sh. redis-server and etcd-server are the packages
that must be installed for their rows.
"""
import argparse
import math
import os
import shutil
import statistics
import subprocess

from side_by_side import add_build_option, median_ratio, take_turns
from store_contestants import etcd, in_a_network_of_its_own, stores

SERVER_CPU, CLIENT_CPU = 0, 1
NEVER = (math.inf, math.inf)


class Barrier:
    """One more barrier of so many clients each time it is called: (connected, released) in milliseconds."""

    count = 0

    def __init__(self, program, server, clients):
        self.program, self.server, self.clients = program, server, clients
        self.failed = False

    def __call__(self):
        if self.failed:
            return NEVER
        Barrier.count += 1
        argv = [self.program, self.server.protocol, str(self.server.port), str(self.clients),
                f"barrier{Barrier.count}", str(CLIENT_CPU)]
        done = subprocess.run(argv, stdout=subprocess.PIPE, check=False, text=True)
        self.failed = done.returncode != 0
        return NEVER if self.failed else tuple(map(float, done.stdout.split()))


def print_table(clients, values, servers):
    for name, rounds in values.items():
        connected, released = zip(*rounds)
        ours = values["ddprun, 1.13's dialect" if servers[name].protocol == "old" else "ddprun"]
        ratio = median_ratio(released, [r for _, r in ours])
        shown = f"{statistics.median(released):.1f} [{min(released):.1f}-{max(released):.1f}]"
        print(f"{clients:>7}  {name:<24} {statistics.median(connected):>9.1f} {shown:>26} {ratio:>6.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_build_option(parser, "bin/bench_store_barrier", "tests/store_serve")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, nargs="+", default=[64, 256, 1024, 4096])
    parser.add_argument("--before", help="another build of store_serve, as one more contestant")
    options = parser.parse_args()

    in_a_network_of_its_own()
    program = os.path.join(options.build, "bin", "bench_store_barrier")
    starters = stores(options.build, SERVER_CPU, options.before)
    if shutil.which("etcd"):
        starters["etcd, JSON gateway"] = lambda: etcd(SERVER_CPU)
    servers = {name: start() for name, start in starters.items()}
    print(f"{options.rounds} rounds; ms; ratio: theirs to ddprun's")
    print(f"{'clients':>7}  {'server':<24} {'connected':>9} {'released':>26} {'ratio':>6}")
    try:
        for clients in options.clients:
            contestants = {name: Barrier(program, server, clients) for name, server in servers.items()}
            print_table(clients, take_turns(contestants, options.rounds), servers)
    finally:
        for server in servers.values():
            server.end()


if __name__ == "__main__":
    main()
