#!/usr/bin/env python3
"""Operations a second of the store beside PyTorch's TCPStore and redis, by the same client.

    bench/store.py [--build build/dev] [--rounds 5] [--seconds 1] [--clients 1 8 32 1000]
                   [--operations set get add wait] [--before OTHER_store_serve]

Contestants take turns, each on CPU 0; the client, bench_store_load, is on CPU 1. `set` is followed by a CHECK, since
TCPStore answers no SET; `get` is a WAIT and a GET, as PyTorch's clients do it; redis is asked SET, GET, INCR and
EXISTS. Prints medians of operations a second, of the median and 99th percentile of how long one takes, of the
server's CPU time an operation, and of the rounds' ratios of operations a second, ddprun's to theirs, and of that CPU
time, theirs to ddprun's; each PyTorch store beside our server speaking the same dialect. The ratio of CPU time and the
median are what other load on the machine disturbs least.

"bare epoll" understands nothing and sends a fixed answer: what the kernel leaves to any server of one thread. Only
where one request is one answer; a `get` is two of each.

Newer PyTorch: DDPRUN_TEST_TORCH_PYTHONS, see tests/interop/make_venv.sh. redis-server is redis's; without it those rows
are left out.
"""
import argparse
import os
import statistics
import subprocess

from side_by_side import add_build_option, median_ratio, take_turns
from store_contestants import Server, in_a_network_of_its_own, stores

SERVER_CPU, CLIENT_CPU = 0, 1
ANSWER_BYTES = {"add": 8, "wait": 1, "get": 72}  # A get waits first; a longer answer to that does no harm.


class Load:
    """One operation from so many clients on one contestant; called once a round."""

    def __init__(self, program, server, operation, clients, seconds):
        self.server = server
        self.argv = [program, server.protocol, operation, str(server.port), str(clients), str(seconds),
                     str(CLIENT_CPU)]

    def __call__(self):
        with subprocess.Popen(self.argv, stdout=subprocess.PIPE, text=True) as load:
            load.stdout.readline()
            before = self.server.cpu_seconds()
            out = load.stdout.read()
        if load.returncode != 0:
            raise SystemExit(f"{' '.join(self.argv)}: {load.returncode}")
        rate, median, late, operations = map(float, out.split())
        return rate, median, late, (self.server.cpu_seconds() - before) / operations * 1e6


def column(rounds, index):
    return [figures[index] for figures in rounds]


def floor(options, operation):
    """{name: server} of the one that only answers, where that is enough to take part."""
    if operation not in ANSWER_BYTES or (options.only and not "bare epoll".startswith(tuple(options.only))):
        return {}
    program = os.path.join(options.build, "bin", "bench_store_floor")
    return {"bare epoll": Server("old", [program, str(ANSWER_BYTES[operation])], cpu=SERVER_CPU)}


def print_table(operation, clients, values, servers):
    for name, rounds in values.items():
        rate, median, late, cpu = (statistics.median(column(rounds, i)) for i in range(4))
        old = servers[name].protocol == "old" and "ddprun, 1.13's dialect" in values
        ours = values["ddprun, 1.13's dialect" if old else "ddprun"]
        ratio = median_ratio(column(ours, 0), column(rounds, 0))
        cpu_ratio = median_ratio(column(rounds, 3), column(ours, 3))
        print(f"{operation:>5} {clients:>6}  {name:<24} {rate:>9.0f} {median:>9.1f} {late:>10.1f} {late / median:>6.1f} "
              f"{cpu:>8.2f} {ratio:>6.2f} {cpu_ratio:>9.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_build_option(parser, "bin/bench_store_load", "bin/bench_store_floor", "tests/store_serve")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32, 1000])
    parser.add_argument("--operations", nargs="+", default=["set", "get", "add", "wait"])
    parser.add_argument("--before", help="another build of store_serve, as one more contestant")
    parser.add_argument("--only", nargs="+", help="beginnings of the contestants' names")
    options = parser.parse_args()

    in_a_network_of_its_own()
    program = os.path.join(options.build, "bin", "bench_store_load")
    starters = stores(options.build, SERVER_CPU, options.before)
    servers = {name: start() for name, start in starters.items()
               if not options.only or name.startswith(tuple(options.only))}
    print(f"{options.rounds} rounds of {options.seconds:g} s; medians; ratio: ddprun's operations/s to theirs")
    print(f"{'':>5} {'clients':>6} {'server':<24} {'ops/s':>9} {'p50 us':>9} {'p99 us':>10} {'p99/50':>6} {'CPU us':>8} "
          f"{'ratio':>6} {'CPU ratio':>9}")
    try:
        for operation in options.operations:
            bare = floor(options, operation)
            taking_part = servers | bare
            for clients in options.clients:
                contestants = {name: Load(program, server, operation, clients, options.seconds)
                               for name, server in taking_part.items()}
                print_table(operation, clients, take_turns(contestants, options.rounds), taking_part)
            for server in bare.values():
                server.end()
    finally:
        for server in servers.values():
            server.end()


if __name__ == "__main__":
    main()
