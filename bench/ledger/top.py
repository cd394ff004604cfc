#!/usr/bin/env python3
"""What watching costs: a daemon with 128 synthetic nodes of 8 ranks that report every 5 s, without and with `ddprunctl top`.

    bench/ledger/top.py [--build build/dev] [--nodes 128] [--seconds 20] [--rounds 3]

CPU is of one core: of the daemon, and of a top on a terminal of 200 columns and 60 lines that looks every 2 s. Rows take turns.
"""
import argparse
import fcntl
import json
import os
import pty
import secrets
import select
import statistics
import struct
import subprocess
import sys
import termios
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from rendezvous import Daemon, cpu_seconds
from side_by_side import add_build_option


class Top:
    def __init__(self, options, port, token):
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
        self.process = subprocess.Popen([os.path.join(options.build, "bin", "ddprunctl"), "top", "-e", f"127.0.0.1:{port}"],
                                        env=dict(os.environ, DDPRUN_TOKEN=token, TERM="xterm"), stdin=theirs, stdout=theirs)
        os.close(theirs)
        self.bytes = 0

    def read(self, seconds):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self.ours], [], [], left)[0]:
                self.bytes += len(os.read(self.ours, 65536))

    def end(self):
        self.process.kill()
        self.process.wait()
        os.close(self.ours)


def measured(options, watched):
    """{who: share of a core}."""
    token = secrets.token_hex(16)
    daemon = Daemon(options, token)
    agents = None
    try:
        argv = [os.path.join(options.build, "bin", "bench_synthetic_agents"), "127.0.0.1", str(daemon.port), str(options.nodes), "8",
                str(options.seconds + 30), "5"]
        agents = subprocess.Popen(argv, env=dict(os.environ, DDPRUN_TOKEN=token), stdout=subprocess.PIPE, text=True)
        if not json.loads(agents.stdout.readline() or "{}"):
            raise SystemExit(daemon.said())
        time.sleep(6)  # All have reported once.
        top = Top(options, daemon.port, token) if watched else None
        if top:
            top.read(1)
        begun, of_daemon = time.monotonic(), cpu_seconds(daemon.process.pid)
        of_top = cpu_seconds(top.process.pid) if top else 0
        if top:
            top.read(options.seconds)
        else:
            time.sleep(options.seconds)
        took = time.monotonic() - begun
        found = {"daemon": (cpu_seconds(daemon.process.pid) - of_daemon) / took}
        if top:
            found["top"] = (cpu_seconds(top.process.pid) - of_top) / took
            found["bytes"] = top.bytes
            top.end()
        return found
    finally:
        if agents:
            agents.kill()
            agents.wait()
        daemon.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_build_option(parser)
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    options.no_auth = False
    rows = {False: [], True: []}
    for _ in range(options.rounds):
        for watched, row in rows.items():
            row.append(measured(options, watched))
    for watched, row in rows.items():
        daemon = [100 * one["daemon"] for one in row]
        text = f"{'with top' if watched else 'alone':10} daemon {statistics.median(daemon):5.2f} % [{min(daemon):.2f}-{max(daemon):.2f}]"
        if watched:
            top = [100 * one["top"] for one in row]
            text += f"   top {statistics.median(top):5.2f} % [{min(top):.2f}-{max(top):.2f}], {row[0]['bytes']:,} bytes drawn"
        print(text)


if __name__ == "__main__":
    main()
