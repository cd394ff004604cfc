#!/usr/bin/env python3
"""The daemon is killed every two seconds, nodes come and go, and the ranks step on.

    bench/endurance.py [--build build/dev] [--seconds 300] [--nodes 8] [--per-node 8] [--kill-every 2] [--change-every 8]

One run of MIN = nodes - 2 to MAX = nodes; a standing daemon with a state directory, killed with SIGKILL and started
again; by turns a node leaves (SIGTERM), is killed (SIGKILL) or comes. Checked at the end, from what each rank wrote down
at each of its steps:

  * in each round every rank ran once, in one process, and all of them agree on world size and restart count (0);
  * the ranks of a round made the same steps, without a hole (the last one may be missing on some: they were stopped);
  * each round ended because a node had come or gone: the daemon's deaths ended none;
  * in the end every launcher exits with 0.

Exits with 1 and says what it saw if any of this does not hold.
"""
import argparse
import collections
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from side_by_side import add_build_option, free_port


class Cluster:
    def __init__(self, options):
        self.options = options
        self.folder = tempfile.mkdtemp()
        self.steps = os.path.join(self.folder, "steps")
        os.mkdir(self.steps)
        self.port = free_port()
        self.env = dict(os.environ, DDPRUN_TOKEN="endurance", STEPS=self.steps)
        self.log = open(os.path.join(self.folder, "log"), "w")
        self.daemon = None
        self.nodes = []
        self.changes = []  # (time, what)
        self.kills = 0

    def program(self, name):
        return os.path.join(self.options.build, "bin", name)

    def start_daemon(self):
        argv = [self.program("ddprun-rendezvous"), "--port", str(self.port), "--state-dir",
                os.path.join(self.folder, "state")]
        os.makedirs(os.path.join(self.folder, "state"), exist_ok=True)
        self.daemon = subprocess.Popen(argv, env=self.env, stderr=self.log, start_new_session=True)

    def kill_daemon(self):
        self.daemon.kill()
        self.daemon.wait()
        self.kills += 1
        self.start_daemon()

    def start_node(self):
        o = self.options
        argv = [self.program("ddprun"), "--nnodes", f"{o.nodes - 2}:{o.nodes}", "--nproc-per-node", str(o.per_node),
                "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "endurance", "--shutdown-timeout", "5",
                "--rdzv-conf", "is_host=0,last_call_timeout=1,join_timeout=120", self.program("bench_step_worker")]
        self.nodes.append(subprocess.Popen(argv, env=self.env, stdout=self.log, stderr=self.log,
                                           start_new_session=True))

    def change(self):
        if len(self.nodes) < self.options.nodes:
            self.changes.append((time.monotonic(), "a node came"))
            return self.start_node()
        node = self.nodes.pop(random.randrange(len(self.nodes)))
        kill = random.random() < 0.5
        self.changes.append((time.monotonic(), "a node was killed" if kill else "a node left"))
        node.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        node.wait(60)

    def end(self):
        with open(os.path.join(self.steps, "stop"), "w"):
            pass
        statuses = [node.wait(120) for node in self.nodes]
        self.daemon.terminate()
        self.daemon.wait(30)
        self.log.close()
        return statuses

    def kill_what_is_left(self):
        for process in [*self.nodes, self.daemon]:
            if process and process.poll() is None:
                process.kill()
                process.wait(30)

    def everybody_steps(self):
        """Whether all ranks of a full round have begun."""
        begun = collections.Counter(name.split(".")[0] for name in os.listdir(self.steps) if name != "stop")
        return any(n == self.options.nodes * self.options.per_node for n in begun.values())


class Round:
    def __init__(self):
        self.heads, self.stamps = {}, {}

    def add(self, rank, path):
        with open(path) as f:
            lines = f.read().splitlines()
        self.heads[rank] = [int(word) for word in lines[0].split()]
        self.stamps[rank] = [tuple(int(word) for word in line.split()) for line in lines[1:]]

    def begun(self):
        return min((s[0][1] for s in self.stamps.values() if s), default=None)

    def ended(self):
        return max((s[-1][1] for s in self.stamps.values() if s), default=None)

    def complaints(self, name):
        world = {head[1] for head in self.heads.values()}
        restarts = {head[2] for head in self.heads.values()}
        if len(world) != 1 or restarts != {0}:
            yield f"round {name}: world sizes {world}, restart counts {restarts}"
        if len({head[0] for head in self.heads.values()}) != len(self.heads):
            yield f"round {name}: two ranks are one process"
        counts = [len(s) for s in self.stamps.values()]
        # A round may be stopped before all of its ranks have written their first line.
        if len(self.heads) != next(iter(world)) and max(counts) > 1:
            yield f"round {name}: {len(self.heads)} ranks of {world} ran, and made {max(counts)} steps"
        if len(self.heads) == next(iter(world)) and max(counts) - min(counts) > 1:
            yield f"round {name}: ranks made {min(counts)} to {max(counts)} steps"
        for rank, stamps in self.stamps.items():
            if [step for step, _ in stamps] != list(range(len(stamps))):
                yield f"round {name}: rank {rank} has a hole in its steps"


def read_rounds(folder):
    rounds = collections.defaultdict(Round)
    for name in os.listdir(folder):
        if name != "stop":
            port, rank = name.split(".")
            rounds[port].add(int(rank), os.path.join(folder, name))
    return dict(sorted(rounds.items(), key=lambda item: item[1].begun() or 0))


def judge(cluster, rounds, statuses):
    complaints = [text for name, r in rounds.items() for text in r.complaints(name)]
    if statuses != [0] * len(statuses):
        complaints.append(f"the launchers ended with {statuses}")
    ended = [r.ended() for r in rounds.values() if r.ended()]
    for end in ended[:-1]:
        # The last step of a round lies before the moment it was stopped, or right after the change.
        if not any(-2 < end / 1e9 - when < 10 for when, _ in cluster.changes):
            complaints.append(f"a round ended at {end / 1e9:.1f} though no node had come or gone")
    if len(rounds) > len(cluster.changes) + 1:
        complaints.append(f"{len(rounds)} rounds for {len(cluster.changes)} changes")
    return complaints


def summary(cluster, rounds):
    steps = sum(max((len(s) for s in r.stamps.values()), default=0) for r in rounds.values())
    gaps = [b[1] - a[1] for r in rounds.values() for s in r.stamps.values() for a, b in zip(s, s[1:])]
    ranks = sum(len(r.heads) for r in rounds.values())
    return (f"daemon killed {cluster.kills} times, {len(cluster.changes)} nodes came or went, {len(rounds)} rounds, "
            f"{steps} steps, {ranks} processes; between two steps {statistics.median(gaps) / 1e6:.0f} ms, at most "
            f"{max(gaps) / 1e6:.0f} ms")


def endure(cluster, options):
    """The launchers' exit statuses."""
    cluster.start_daemon()
    for _ in range(options.nodes):
        cluster.start_node()
    deadline = time.monotonic() + 120
    while not cluster.everybody_steps():
        if time.monotonic() > deadline:
            raise SystemExit(f"the ranks do not step after two minutes; everything is in {cluster.folder}")
        time.sleep(0.05)
    begun = time.monotonic()
    next_kill, next_change = begun + options.kill_every, begun + options.change_every
    while time.monotonic() < begun + options.seconds:
        time.sleep(max(0, min(next_kill, next_change) - time.monotonic()))
        if next_kill <= next_change:
            cluster.kill_daemon()
            next_kill += options.kill_every
        else:
            cluster.change()
            next_change += options.change_every
    return cluster.end()

def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_build_option(parser, "bin/ddprun", "bin/bench_step_worker")
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--per-node", type=int, default=8)
    parser.add_argument("--kill-every", type=float, default=2)
    parser.add_argument("--change-every", type=float, default=8)
    options = parser.parse_args()
    cluster = Cluster(options)
    try:
        statuses = endure(cluster, options)
    finally:
        cluster.kill_what_is_left()
    rounds = read_rounds(cluster.steps)
    complaints = judge(cluster, rounds, statuses)
    print(summary(cluster, rounds))
    for text in complaints:
        print("WRONG: " + text)
    if complaints:
        print("everything is in " + cluster.folder)
        return 1
    shutil.rmtree(cluster.folder)
    print("every rank ran once a round, no step was lost, and no round ended without a cause")
    return 0


if __name__ == "__main__":
    sys.exit(main())
