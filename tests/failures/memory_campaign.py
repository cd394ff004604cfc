#!/usr/bin/env python3
"""Workers, agents, memory servers and whole nodes of a run are killed at random; what is restored from the memory folders
must be right to the last bit, and no older than what was safe.

    DDPRUN_BIN=build/dev/bin tests/failures/memory_campaign.py [--kills N] [--seed S] [--verbose]

Three nodes of two plain workers (tests/process/worker_sdk/memory_worker.cc), a daemon with a journal, every node's folder with
its copy on another one. A node that is lost is replaced. Checked:

  * every state that is restored is that of its step, which each rank computes by itself;
  * after the death of workers the step is at least that of the last checkpoint that all ranks had written;
  * after the death of a node it is at least that of the last one that had been written and copied;
  * nothing is left in memory when the run has ended.

A node is lost only when the newest checkpoint is copied, so that it is never lost together with the only copy of its files.
"""
import argparse
import collections
import glob
import os
import random
import shutil
import signal
import sys
import tempfile
import time

import paths  # noqa: F401
import ddprun_case
from ddprun_case import BIN, DDPRUN, Job, free_port, wait_until

WORKER = os.path.join(os.path.dirname(BIN), "tests", "memory_worker")
NODES, EVERY = 3, 20
OPERATIONS = {"worker": 8, "workers": 3, "server": 2, "agent": 1.5, "launcher": 1.5}
PATIENCE = 90.0


class Wrong(Exception):
    pass


class Campaign:
    def __init__(self, options):
        self.options, self.random = options, random.Random(options.seed)
        self.folder = tempfile.mkdtemp(prefix="ddprun-memory-campaign-")
        self.memory = tempfile.mkdtemp(prefix="ddprun-memory-campaign-", dir="/dev/shm")
        for name in ("state", "temporary"):
            os.mkdir(os.path.join(self.folder, name))
        self.log, self.port, self.begun = os.path.join(self.folder, "log"), free_port(), time.monotonic()
        open(self.log, "w", encoding="ascii").close()
        self.jobs, self.nodes, self.story, self.done = [], {}, [], collections.Counter()

    def tell(self, what):
        self.story.append(f"{time.monotonic() - self.begun:8.3f} {what}")
        if self.options.verbose:
            print(self.story[-1], flush=True)

    def job(self, argv, **env):
        temporary = os.path.join(self.folder, "temporary")
        env = {"DDPRUN_TOKEN": "campaign", "TMPDIR": temporary, "XDG_RUNTIME_DIR": temporary,
               "XDG_STATE_HOME": os.path.join(self.folder, "history"), **env}
        self.jobs.append(Job(argv, self.folder, env))
        return self.jobs[-1]

    def start_node(self, node):
        argv = [DDPRUN, "--nnodes", str(NODES), "--nproc-per-node", "2", "--max-restarts", "1000000", "--memory-folder",
                f"16M,at={self.memory}", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "campaign",
                "--rdzv-conf", "is_host=0,last_call_timeout=0.3,join_timeout=300", WORKER]
        self.nodes[node] = self.job(argv, LOG=self.log, STEPS="1000000", EVERY=str(EVERY), STEP_MS="5", SIZE="20000",
                                    DDPRUN_HOST=f"host-{node}", DDPRUN_SOCKET_IFNAME="lo")

    def events(self):
        with open(self.log, encoding="ascii") as f:
            return [(what, int(value)) for what, value in (line.split() for line in f.read().splitlines() if " " in line)]

    def texts(self):
        return "\n".join(job.text() for job in self.nodes.values())

    def wait(self, condition, what):
        def looked():
            time.sleep(0.01)
            return condition()
        try:
            return wait_until(looked, what, PATIENCE)
        except AssertionError as late:
            raise Wrong(f"{late}\n{self.texts()}") from late

    def last(self, *kinds, since=0):
        return next((value for what, value in reversed(self.events()[since:]) if what in kinds), None)

    def copied(self):
        """The step of the newest checkpoint, if all ranks' files are in copies; else None."""
        step = self.last("saved")
        files = glob.glob(f"{self.memory}/*/node0/copies/*/checkpoints/checkpoint-*-step-{step}/rank-*.bin")
        return step if len({os.path.basename(path) for path in files}) == 2 * NODES else None

    # What can be killed: a list of (process ids, the node that is lost with them).

    def do_worker(self):
        node = self.random.choice(list(self.nodes))
        return self.random.sample([p.pid for p in self.workers(node)], 1), None

    def do_workers(self):
        every = [p.pid for node in self.nodes for p in self.workers(node)]
        return self.random.sample(every, self.random.randint(2, len(every))), None

    def do_server(self):
        return [p.pid for p in self.nodes[self.random.choice(list(self.nodes))].processes() if p.name == "ddprun-memory"], None

    def do_agent(self):
        node = self.random.choice(list(self.nodes))
        return [p.pid for p in self.nodes[node].agents()], node

    def do_launcher(self):
        node = self.random.choice(list(self.nodes))
        return [self.nodes[node].pid], node

    def workers(self, node):
        return [p for p in self.nodes[node].processes() if p.argv[0] == WORKER]

    def step(self):
        kind = self.random.choices(list(OPERATIONS), list(OPERATIONS.values()))[0]
        self.wait(lambda: all(len(self.workers(node)) == 2 for node in self.nodes), "all workers to be there")
        safe = self.wait(self.copied, "a checkpoint and its copies") if kind in ("agent", "launcher") else self.last("saved", "restored")
        seen = len(self.events())
        pids, lost = getattr(self, "do_" + kind)()
        self.tell(f"kill {kind} {pids}" + (f", which loses node {lost}" if lost is not None else ""))
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.done[kind] += 1
        if kind == "server":
            return time.sleep(self.random.uniform(0, 0.5))
        if lost is not None:
            self.nodes[lost].wait(PATIENCE)
            time.sleep(self.random.uniform(0, 0.3))
            self.start_node(lost)
        restored = self.wait(lambda: [r for r in [self.last("restored", since=seen)] if r is not None], "all to go on")[0]
        if restored < safe:
            raise Wrong(f"step {restored} was restored, and {safe} was safe\n{self.texts()}")
        time.sleep(self.random.uniform(0, 0.4))

    def run(self):
        self.job([os.path.join(BIN, "ddprun-rendezvous"), "--port", str(self.port), "--state-dir", os.path.join(self.folder, "state")])
        for node in range(NODES):
            self.start_node(node)
        self.wait(lambda: self.last("saved"), "the first checkpoint")
        while sum(self.done.values()) < self.options.kills:
            self.step()
        saved, lost = self.last("saved"), len(self.events())
        for node in self.nodes.values():  # All at once: the memory goes with them.
            os.kill(node.pid, signal.SIGTERM)
        for node in self.nodes.values():
            node.wait(PATIENCE)
        self.wait(lambda: os.listdir(self.memory) == [], lambda: str(os.listdir(self.memory)))
        restored = [value for what, value in self.events()[:lost] if what == "restored"]
        print(f"{sum(self.done.values())} kills ({', '.join(f'{n} {what}' for what, n in self.done.items())}) in "
              f"{time.monotonic() - self.begun:.0f} s; {len(restored)} states restored, all right; step {saved} at the end")

    def close(self, keep):
        for job in self.jobs:
            job.end()
        shutil.rmtree(self.memory, ignore_errors=True)
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    campaign, wrong = Campaign(options), True
    try:
        campaign.run()
        wrong = False
    except Wrong as text:
        print("\n".join(campaign.story[-40:]))
        print(f"WRONG (--kills {options.kills} --seed {options.seed}): {text}\neverything is in {campaign.folder}")
    finally:
        campaign.close(keep=wrong)
    return int(wrong)


if __name__ == "__main__":
    ddprun_case.BIN or sys.exit(77)
    sys.exit(main())
