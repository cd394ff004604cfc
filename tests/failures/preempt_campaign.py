#!/usr/bin/env python3
"""Nodes of runs are pre-empted: the one that hosts the daemon, another one, all at once, while the daemon restarts.

    DDPRUN_BIN=build/dev/bin tests/failures/preempt_campaign.py [--each N] [--seed S] [--nodes 3] [--verbose]

Each game is a run of its own whose nodes all end by pre-emption, by SIGUSR1 to their launchers, after times that follow the
seed. `--each 200` is the long campaign: so many pre-emptions of the hosting node, of another, and of all at
once, each with workers that keep their process (tests/process/worker_sdk/campaign_worker.cc, --nnodes 1:N) and with plain
ones (--nnodes N). Checked:

  * every node exits with 75, whatever happened to the others and to the daemon, and leaves no process;
  * where workers keep their process, those of the nodes that stay live on and commit every step in turn: one that was begun
    when a node left may run again, and no committed one is lost;
  * where they do not, the nodes that stay wait for another one.
"""
import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time

import paths  # noqa: F401
import campaign_logs
import ddprun_case
from campaign_logs import Workers
from ddprun_case import BIN, DDPRUN, Job, free_port, wait_until

WORKER = os.path.join(os.path.dirname(BIN), "tests", "campaign_worker")
PLAIN = ["/bin/sh", "-c", "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done"]
EVENTS = ("host", "other", "all", "restart")  # restart: another node, within a second of the daemon's death.
PATIENCE = 90.0
GRACE = 3  # --shutdown-timeout, which also limits how long the hosting node stays.


class Wrong(Exception):
    pass


class Game:
    def __init__(self, options, event, elastic, seed):
        self.options, self.event, self.elastic = options, event, elastic
        self.random = random.Random(f"{event} {elastic} {seed}")
        self.folder = tempfile.mkdtemp(prefix="ddprun-preempt-")
        for name in ("logs", "temporary"):
            os.mkdir(os.path.join(self.folder, name))
        self.workers, self.jobs, self.story, self.begun = Workers(os.path.join(self.folder, "logs")), [], [], time.monotonic()

    def tell(self, what):
        self.story.append(f"{time.monotonic() - self.begun:8.3f} {what}")
        if self.options.verbose:
            print(self.story[-1], flush=True)

    def start(self):
        port, nodes = free_port(), self.options.nodes
        temporary = os.path.join(self.folder, "temporary")
        for node in range(nodes):
            argv = [DDPRUN, "--nnodes", f"1:{nodes}" if self.elastic else str(nodes), "--nproc-per-node", "1",
                    "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "preempt", "--shutdown-timeout", str(GRACE),
                    "--preempt-signal", "SIGUSR1",
                    "--rdzv-conf", f"is_host={int(node == 0)},last_call_timeout=30,join_timeout=300"]
            env = {"DDPRUN_TOKEN": "preempt", "TMPDIR": temporary, "XDG_RUNTIME_DIR": temporary, "DDPRUN_BACKEND": "shm",
                   "LOGS": self.workers.folder, "NODE": str(node), "STEP_MS": "10"}
            self.jobs.append(Job(argv + ([WORKER] if self.elastic else PLAIN), self.folder, env))
        if self.elastic:
            self.until(lambda: self.newest().world == nodes, "the first step of all")
        else:
            self.until(lambda: all("up" in job.out() for job in self.jobs), "all workers")

    def newest(self):
        self.workers.refresh()
        return self.workers.newest() or campaign_logs.Stamp(-1, -1, -1, 0, 0)

    def texts(self):
        return "\n".join(job.text() for job in self.jobs)

    def until(self, condition, what):
        def looked():
            time.sleep(0.02)
            return condition()
        try:
            wait_until(looked, what, PATIENCE)
        except AssertionError as late:
            raise Wrong(f"{late}\n{self.texts()}") from late

    def preempt(self, node):
        self.tell(f"pre-empt node {node}")
        self.jobs[node].signal(signal.SIGUSR1)

    def left(self, node):
        code = self.jobs[node].wait(PATIENCE)
        self.tell(f"node {node} has ended with {code}")
        if code != 75:
            raise Wrong(f"node {node} ended with {code}\n{self.texts()}")
        self.until(lambda: not self.jobs[node].processes(), f"the processes of node {node} to end")

    def go_on(self, stayers):
        """Those that stay do, after the next change of the round or in front of an empty place."""
        if self.elastic:
            before = self.newest()
            self.until(lambda: self.newest().world == len(stayers) and self.newest().step > before.step + 3,
                       f"steps of {len(stayers)} workers")
        else:
            self.until(lambda: all("waiting for nodes" in self.jobs[node].err() for node in stayers), "those that stay to wait")
        for node in stayers:
            if self.jobs[node].ended():
                raise Wrong(f"node {node} has ended, though it was not pre-empted\n{self.texts()}")

    def play(self):
        self.start()
        time.sleep(self.random.uniform(0, 0.3))
        nodes = list(range(self.options.nodes))
        if self.event == "all":
            self.random.shuffle(nodes)
        else:
            first = 0 if self.event == "host" else self.random.choice(nodes[1:])
            if self.event == "restart":
                daemon = self.jobs[0].daemon()
                os.kill(daemon.pid, signal.SIGKILL)
                self.tell("kill the daemon")
                time.sleep(self.random.uniform(0, 0.5))
            self.preempt(first)
            nodes.remove(first)
            if self.random.random() < 0.5:
                self.left(first)
                first = None
            self.go_on(nodes)
            if first is not None:
                self.left(first)
                self.go_on(nodes)
        for node in nodes:
            self.preempt(node)
            time.sleep(self.random.uniform(0, 0.05))
        for node in nodes:
            self.left(node)

    def judge(self):
        """No committed step is lost: each process that stayed has committed every step in turn."""
        if not self.elastic:
            return
        for name in sorted(os.listdir(self.workers.folder)):
            if not name.endswith(".stamps"):
                continue
            with open(os.path.join(self.workers.folder, name), encoding="ascii") as f:
                steps = [int(line.split()[0]) for line in f if line.endswith("\n")]
            # The last rank to have heard of a commit may get it as state instead.
            for step, after in zip(steps, steps[1:]):
                if not step < after <= step + 2:
                    raise Wrong(f"{name} has committed step {after} after step {step}\n{self.texts()}")
        if len(os.listdir(self.workers.folder)) != 3 * self.options.nodes:
            raise Wrong(f"more processes than {self.options.nodes}: {os.listdir(self.workers.folder)}\n{self.texts()}")

    def close(self, keep):
        for job in self.jobs:
            job.end()
        if not keep:
            shutil.rmtree(self.folder)


def carry_out(options, event, elastic, seed):
    """Whether all was well."""
    game, well = Game(options, event, elastic, seed), False
    try:
        game.play()
        game.judge()
        well = True
    except (Wrong, AssertionError) as wrong:
        print("\n".join([*game.story, f"WRONG: {event}, {'elastic' if elastic else 'plain'}, seed {seed}: {wrong}",
                         f"everything is in {game.folder}"]), flush=True)
    finally:
        game.close(keep=not well)
    return well


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=1, help="games of each kind [1]")
    parser.add_argument("--events", nargs="*", choices=EVENTS, default=EVENTS)
    parser.add_argument("--workers", nargs="*", choices=("elastic", "plain"), default=["elastic", "plain"])
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    if not os.access(DDPRUN, os.X_OK) or ("elastic" in options.workers and not os.access(WORKER, os.X_OK)):
        ddprun_case.skip_all(f"there is no {DDPRUN} or no {WORKER}")
    wrong = 0
    for event in options.events:
        for workers in options.workers:
            results = [carry_out(options, event, workers == "elastic", options.seed + i) for i in range(options.each)]
            print(f"{event}, {workers}: {sum(results)} of {len(results)} right", flush=True)
            wrong += results.count(False)
    print(f"{'ok' if wrong == 0 else f'{wrong} WRONG'} (--each {options.each} --nodes {options.nodes} --seed {options.seed})")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
