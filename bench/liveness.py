#!/usr/bin/env python3
"""Is a node that falls silent missed in time, and is none missed that is only slow? Network namespaces; needs root.

    bench/liveness.py [--build build/dev] [--nodes 8] [--rounds 10]          the cable of a node is pulled
    bench/liveness.py --soak 1800 [--load 8]                                 nothing happens, on a busy machine

One daemon and N nodes, each in a network namespace of its own on one bridge, all settings at their defaults. Pulling a
cable takes the node's link down: no packet leaves it any more, nobody is told. Measured is the time until the workers
of the other nodes have been told to stop. The soak counts the rounds: more than one would be a death that was none.
"""
import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from side_by_side import add_build_option

WORKER = ("trap 'date +%s.%N > $STAMPS/$RANK.stopped; exit 0' TERM; echo > $STAMPS/$TORCHELASTIC_RESTART_COUNT.$MASTER_PORT.$RANK; "
          "while :; do sleep 1000 & wait; done")


def ip(*words):
    subprocess.run(["ip", *words], check=True, stdout=subprocess.DEVNULL, timeout=30)


class Network:
    """Namespaces <name>-0 .. <name>-N on one bridge; number 0 is the daemon's."""

    def __init__(self, nodes):
        self.name = f"dl{os.getpid()}"
        self.names = [f"{self.name}-{i}" for i in range(nodes + 1)]
        hub = f"{self.name}-hub"
        ip("netns", "add", hub)
        self.hub = hub
        ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        ip("-n", hub, "link", "set", "bridge", "up")
        for i, name in enumerate(self.names):
            ip("netns", "add", name)
            ip("link", "add", "wire", "netns", name, "type", "veth", "peer", "name", f"port{i}", "netns", hub)
            ip("-n", hub, "link", "set", f"port{i}", "master", "bridge", "up")
            ip("-n", name, "addr", "add", f"{self.address(i)}/24", "dev", "wire")
            ip("-n", name, "link", "set", "wire", "up")
            ip("-n", name, "link", "set", "lo", "up")

    @staticmethod
    def address(i):
        return f"10.77.0.{i + 1}"

    def pull(self, i):
        ip("-n", self.hub, "link", "set", f"port{i}", "down")

    def plug_in(self, i):
        ip("-n", self.hub, "link", "set", f"port{i}", "up")

    def remove(self):
        for name in [*self.names, self.hub]:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, timeout=30)


class Run:
    """One run of all nodes, from the first worker's line to its end."""

    def __init__(self, options, network):
        self.folder = tempfile.mkdtemp()
        self.nodes = options.nodes
        env = dict(os.environ, DDPRUN_TOKEN="liveness", STAMPS=self.folder)
        self.log = open(os.path.join(self.folder, "log"), "w")
        bin_folder = os.path.join(options.build, "bin")
        self.processes = []

        def start(i, *argv):
            self.processes.append(subprocess.Popen(
                ["ip", "netns", "exec", network.names[i], os.path.join(bin_folder, argv[0]), *argv[1:]],
                env=env, stdout=self.log, stderr=self.log, start_new_session=True))

        start(0, "ddprun-rendezvous", "--address", network.address(0))
        for i in range(1, options.nodes + 1):
            start(i, "ddprun", "--nnodes", str(options.nodes), "--rdzv-endpoint", network.address(0),
                  "--rdzv-conf", "is_host=0", "--no-python", "/bin/bash", "-c", WORKER)
        self.wait(lambda: len(self.begun()) == options.nodes, "all workers")

    def stamps(self, ending):
        return [name for name in os.listdir(self.folder) if name.endswith(ending)]

    def begun(self):
        return [name for name in os.listdir(self.folder) if name.count(".") == 2]

    def wait(self, condition, what):
        deadline = time.monotonic() + 60
        while not condition():
            if time.monotonic() > deadline:
                raise SystemExit(f"not within a minute: {what}; see {self.folder}/log")
            time.sleep(0.01)

    def stopped_at(self, ranks):
        names = [f"{rank}.stopped" for rank in ranks]
        self.wait(lambda: all(os.path.exists(os.path.join(self.folder, n)) for n in names), "the survivors' stop")
        self.wait(lambda: all(os.path.getsize(os.path.join(self.folder, n)) for n in names), "their stamps")
        times = []
        for name in names:
            with open(os.path.join(self.folder, name)) as f:
                times.append(float(f.read()))
        return times

    def end(self, keep=False):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGKILL)
        for process in self.processes:
            process.wait(30)
        self.log.close()
        if not keep:
            shutil.rmtree(self.folder)


def pull_one(options, network, number):
    run = Run(options, network)
    with open(os.path.join(run.folder, "log")) as f:
        said = f.read()
    victim = 1 + number % options.nodes
    try:
        # Which rank sits where is the daemon's to say: all but the victim's are to stop first.
        pulled = time.time()
        network.pull(victim)
        run.wait(lambda: len(run.stamps(".stopped")) >= options.nodes - 1, "the survivors' stop\n" + said)
        ranks = [int(name.split(".")[0]) for name in run.stamps(".stopped")]
        times = sorted(run.stopped_at(ranks))[:options.nodes - 1]
        return times[0] - pulled, times[-1] - pulled
    finally:
        network.plug_in(victim)
        run.end()


def soak(options, network):
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.load)]
    try:
        run = Run(options, network)
        begun = time.monotonic()
        while time.monotonic() < begun + options.soak:
            time.sleep(1)
            if len(run.begun()) != options.nodes or run.stamps(".stopped") or any(p.poll() is not None for p in run.processes):
                run.end(keep=True)
                print(f"WRONG: after {time.monotonic() - begun:.0f} s something moved; see {run.folder}/log")
                return 1
        with open("/proc/loadavg") as f:
            load = f.read().split()[2]
        run.end()
        print(f"{options.soak} s, {options.nodes} nodes, load {load} on {os.cpu_count()} cores: no false death")
        return 0
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_build_option(parser, "bin/ddprun")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--soak", type=int, default=0)
    parser.add_argument("--load", type=int, default=8)
    options = parser.parse_args()
    network = Network(options.nodes)
    try:
        if options.soak:
            return soak(options, network)
        times = [pull_one(options, network, number) for number in range(options.rounds)]
        for what, figures in (("first", [t[0] for t in times]), ("last", [t[1] for t in times])):
            print(f"{what} surviving worker told to stop after the cable was pulled: {statistics.median(figures):.3f} s "
                  f"[{min(figures):.3f}-{max(figures):.3f}], {options.rounds} times, {options.nodes} nodes")
        return 0
    finally:
        network.remove()


if __name__ == "__main__":
    sys.exit(main())
