#!/usr/bin/env python3
"""all_reduce between hosts: our hierarchical `cpu` backend beside Gloo's flat ring over the same wire.

    bench/between_hosts.py [--build build/dev] [--ranks-per-host 2] [--seconds 2] [--rate 1gbit] [--congestion reno]
                           [--deal]

Two network namespaces joined by a veth pair play the hosts (root only). All contestants run in the same processes, in
turn; with --rate, tc shapes both ends of the wire. With --deal the ranks are dealt to the hosts by turns, as
`mpirun --map-by node` does, so that each link of a ring in the order of ranks crosses the wire.
"""
import argparse
import os
import subprocess
import sys
import tempfile

from side_by_side import ROOT, add_build_option

sys.path.insert(0, os.path.join(ROOT, "tests", "system"))
from ddprun_case import Network


def prepare(network, args):
    for name in network.names:
        inside = ["ip", "netns", "exec", name]
        subprocess.run([*inside, "/bin/sh", "-c", f"echo {args.congestion} > /proc/sys/net/ipv4/tcp_congestion_control"],
                       check=True)
        if args.rate:
            subprocess.run([*inside, "tc", "qdisc", "add", "dev", "wire", "root", "tbf", "rate", args.rate, "burst", "256kb",
                            "latency", "50ms"], check=True)


def main():
    parser = argparse.ArgumentParser()
    add_build_option(parser, "bin/bench_all_reduce")
    parser.add_argument("--ranks-per-host", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rate", default="")
    parser.add_argument("--congestion", default="reno")
    parser.add_argument("--deal", action="store_true")
    args = parser.parse_args()
    if Network.missing():
        sys.exit(Network.missing())
    program = os.path.join(args.build, "bin", "bench_all_reduce")
    ranks = 2 * args.ranks_per_host
    with Network() as network, tempfile.TemporaryDirectory() as folder:
        prepare(network, args)
        processes = []
        for rank in range(ranks):
            host = network.names[rank % 2 if args.deal else rank // args.ranks_per_host]
            env = dict(os.environ, RANK=str(rank), DDPRUN_HOST=host, DDPRUN_SOCKET_IFNAME="wire")
            processes.append(subprocess.Popen(["ip", "netns", "exec", host, program, str(ranks), str(args.seconds), "hosts",
                                               folder], env=env))
        codes = [process.wait(timeout=600) for process in processes]
    sys.exit(max(map(abs, codes)))


if __name__ == "__main__":
    main()
