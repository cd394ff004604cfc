#!/usr/bin/env python3
"""What passes between two nodes directly, and through the daemon where they cannot reach each other.

    bench/relay.py [--build build/dev] [--rounds 3] [--size 400]

Two network namespaces joined by a veth pair play the hosts (root only); the daemon is on the first.
By turns: SIZE MB over one TCP connection; a file of SIZE MB in a memory folder until its copy is on
the other host; all_reduce of 16 MB of f32 by the backend gloo, one rank on each host, in MB of the
array per second. "relayed" is the same with --one-port. At last, how long `ddprunctl status` takes
while a relayed copy is under way, beside the same while nothing is.
"""
import argparse
import glob
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from side_by_side import ROOT, add_build_option, take_turns

sys.path.insert(0, os.path.join(ROOT, "tests", "system"))
from ddprun_case import Network

ENDPOINT = 29400
LIMIT_S = 300
RECEIVE = """
import socket, sys
listening = socket.create_server((sys.argv[1], 29700))
print("up", flush=True)
peer, _ = listening.accept()
left = int(sys.argv[2])
into = memoryview(bytearray(1 << 20))
while left > 0:
    left -= peer.recv_into(into)
peer.sendall(b"k")
"""
SEND = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], 29700))
left, piece, began = int(sys.argv[2]), bytes(1 << 20), time.monotonic()
while left > 0:
    peer.sendall(piece[:min(left, len(piece))])
    left -= min(left, len(piece))
peer.recv(1)
print(int(sys.argv[2]) / 1e6 / (time.monotonic() - began))
"""
REDUCE = """
import array, os, time
import ddprun
with ddprun.init(init_timeout=50) as group:
    data = array.array("f", bytes(16 << 20))
    group.all_reduce(data)
    group.barrier()
    began, turns = time.monotonic(), 12
    for _ in range(turns):
        group.all_reduce(data)
    if group.rank == 0:
        print(turns * 16.777216 / (time.monotonic() - began), flush=True)
"""
# The file is complete at once, as its name says.
WRITE = """
if [ "$RANK" = 0 ]; then head -c $BYTES /dev/urandom > "$DDPRUN_MEMORY/.big"; : > "$D/ready"
    while [ ! -e "$D/write" ]; do sleep 0.01; done; mv "$DDPRUN_MEMORY/.big" "$DDPRUN_MEMORY/big"; fi
while [ ! -e "$D/go" ]; do sleep 0.02; done
"""


class Bench:
    def __init__(self, args, network):
        self.args, self.network = args, network
        self.bytes = args.size * 1_000_000

    def inside(self, host, argv, **more):
        env = {**os.environ, "DDPRUN_TOKEN": "a token of the bench", "DDPRUN_LIB": os.path.join(self.args.build, "worker_sdk", "libddprun.so"),
               "PYTHONPATH": os.path.join(ROOT, "python"), "PYTHONDONTWRITEBYTECODE": "1", "DDPRUN_HISTORY": "0", **more}
        return subprocess.Popen(["ip", "netns", "exec", self.network.names[host], *argv], env=env, stdout=subprocess.PIPE, text=True,
                                stderr=sys.stderr if self.args.verbose else subprocess.DEVNULL)

    def nodes(self, argv, **more):
        line = [os.path.join(self.args.build, "bin", "ddprun"), "--nnodes", "2", "--rdzv-endpoint", f"{self.network.addresses[0]}:{ENDPOINT}"]
        return [self.inside(host, [*line, "--node-rank", str(host), *argv], **more) for host in (0, 1)]

    def plain(self):
        address = self.network.addresses[0]
        receiver = self.inside(0, [sys.executable, "-c", RECEIVE, address, str(self.bytes)])
        receiver.stdout.readline()
        sender = self.inside(1, [sys.executable, "-c", SEND, address, str(self.bytes)])
        rate = float(sender.communicate(timeout=LIMIT_S)[0])
        receiver.wait(timeout=LIMIT_S)
        return rate

    def reduce(self, *more):
        with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
            script.write(REDUCE)
            script.flush()
            jobs = self.nodes([*more, script.name], DDPRUN_BACKEND="gloo")
            said = [job.communicate(timeout=LIMIT_S)[0] for job in jobs]
        return float(said[0].split(":")[-1])

    def copy(self, *more, during=None):
        place = tempfile.mkdtemp(dir="/dev/shm")
        folder = tempfile.mkdtemp()
        jobs = []
        try:
            room = self.bytes + 50_000_000
            jobs = self.nodes([*more, "--memory-folder", f"{room // (1 << 20)}M,at={place}", "--no-python", "/bin/sh", "-c", WRITE],
                              D=folder, BYTES=str(self.bytes))
            self.until(lambda: os.path.exists(os.path.join(folder, "ready")))
            # The first, empty copy: by then the two are connected.
            self.until(lambda: len(glob.glob(f"{place}/*/node*/copies/*")) == 2)
            began = time.monotonic()
            open(os.path.join(folder, "write"), "w", encoding="ascii").close()
            found = []

            def is_there():
                found[:] = glob.glob(f"{place}/*/node*/copies/*/big")
                return bool(found)

            self.until(is_there, during)
            took = time.monotonic() - began
            open(os.path.join(folder, "go"), "w", encoding="ascii").close()
            for job in jobs:
                job.communicate(timeout=LIMIT_S)
            return self.bytes / 1e6 / took
        finally:
            for job in jobs:
                job.terminate()
                job.communicate(timeout=LIMIT_S)
            shutil.rmtree(place, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)

    @staticmethod
    def until(condition, during=None):
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            if time.monotonic() > deadline:
                sys.exit("this takes too long")
            during() if during else time.sleep(0.005)

    def status_ms(self):
        began = time.monotonic()
        self.inside(0, [os.path.join(self.args.build, "bin", "ddprunctl"), "-e", f"{self.network.addresses[0]}:{ENDPOINT}", "status"]).communicate()
        return 1e3 * (time.monotonic() - began)

    def latency(self):
        """Milliseconds that a query takes, while a copy is relayed and while not."""
        folder = tempfile.mkdtemp()
        jobs = self.nodes(["--no-python", "/bin/sh", "-c", "while [ ! -e $D/go ]; do sleep 0.02; done"], D=folder)
        time.sleep(1)
        quiet = [self.status_ms() for _ in range(50)]
        open(os.path.join(folder, "go"), "w", encoding="ascii").close()
        for job in jobs:
            job.communicate(timeout=LIMIT_S)
        shutil.rmtree(folder, ignore_errors=True)
        busy = []
        while len(busy) < 50:
            self.copy("--one-port", during=lambda: busy.append(self.status_ms()))
        return quiet, busy


def main():
    parser = argparse.ArgumentParser()
    add_build_option(parser, "bin/ddprun", "bin/ddprunctl", "worker_sdk/libddprun.so")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=400)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    if Network.missing():
        sys.exit(Network.missing())
    with Network() as network:
        bench = Bench(args, network)
        contestants = {"plain TCP": bench.plain, "copy, direct": bench.copy, "copy, relayed": lambda: bench.copy("--one-port"),
                       "all_reduce, direct": bench.reduce, "all_reduce, relayed": lambda: bench.reduce("--one-port")}
        for name, rates in take_turns(contestants, args.rounds).items():
            print(f"{name:20} {statistics.median(rates):8.0f} MB/s   [{min(rates):.0f}-{max(rates):.0f}]")
        quiet, busy = bench.latency()
        for name, times in (("nothing", quiet), ("a relayed copy", busy)):
            print(f"ddprunctl status beside {name:15} p50 {statistics.median(times):6.1f} ms, most {max(times):6.1f} ms")
    print("load", *os.getloadavg())


if __name__ == "__main__":
    main()
