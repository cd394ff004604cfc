#!/usr/bin/env python3
"""Does a standstill cost anything? The real programs, stopped by SIGSTOP for 0.5 to 60 s under stepping ranks.

    bench/standstill.py --minutes 30 --seed 1 [--nodes 4] [--ranks 16] [--longest 60] [--build build/dev]

One daemon and N launchers on loopback, whose ranks step in lockstep (bench_step_worker). Again and again the daemon, an
agent, a launcher, or all of the run together stand still, in four of ten cases while a worker is killed. No round may end
without a death; each death costs one restart, or is the verdict of all launchers (137) where none is left. Then the next
run begins. Ends with 1 if anything was wrong.
"""
import argparse
import collections
import glob
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from side_by_side import add_build_option, free_port

PATIENCE = 180  # Of a machine that has other things to do.


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
            return [int(word) for word in f.read().split()]
    except OSError:
        return []


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # It has ended, as workers do when one of them has.


class Wrong(Exception):
    pass


def wait(condition, what, patience=PATIENCE):
    deadline = time.monotonic() + patience
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise Wrong(f"not within {patience} s: {what}")
        time.sleep(0.05)


class Run:
    def __init__(self, options, restarts):
        self.options, self.restarts = options, restarts
        self.folder = tempfile.mkdtemp(prefix="ddprun-standstill-")
        self.log = open(os.path.join(self.folder, "log"), "w", encoding="utf-8")
        env = dict(os.environ, DDPRUN_TOKEN="standstill", STEPS=self.folder)
        port = str(free_port())
        programs = os.path.join(options.build, "bin")

        def start(*argv):
            return subprocess.Popen([os.path.join(programs, argv[0]), *argv[1:]], env=env, stdin=subprocess.DEVNULL,
                                    stdout=self.log, stderr=self.log, start_new_session=True)

        self.daemon = start("ddprun-rendezvous", "--port", port)
        self.launchers = [start("ddprun", "--nnodes", str(options.nodes), "--nproc-per-node", str(options.ranks),
                                "--max-restarts", str(restarts), "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf",
                                "is_host=0", os.path.abspath(options.worker)) for _ in range(options.nodes)]
        self.wait_for_round(0)

    def workers(self, restart):
        """Of the ranks that have begun with this restart count, their processes."""
        pids = []
        for name in glob.glob(os.path.join(self.folder, "[0-9]*.*")):
            with open(name, encoding="ascii") as f:
                words = f.readline().split()
            if len(words) == 3 and int(words[2]) == restart:
                pids.append(int(words[0]))
        return pids

    def rounds(self):
        return len({os.path.basename(name).split(".")[0] for name in glob.glob(os.path.join(self.folder, "[0-9]*.*"))})

    def wait_for_round(self, restart):
        self.restart = restart
        wait(lambda: len(self.workers(restart)) == self.options.nodes * self.options.ranks, f"all ranks of round {restart}")
        self.check()

    def check(self):
        if self.rounds() != self.restart + 1:
            raise Wrong(f"{self.rounds()} rounds after {self.restart} deaths")

    def agents(self):
        return [child for launcher in self.launchers for child in children(launcher.pid)
                if len(children(child)) >= self.options.ranks]

    def pids(self, what, lot):
        if what == "daemon":
            return [self.daemon.pid]
        if what == "agent":
            return [lot.choice(self.agents())]
        if what == "launcher":
            return [lot.choice(self.launchers).pid]
        everybody = [self.daemon.pid, *(launcher.pid for launcher in self.launchers), *self.agents()]
        return everybody + (self.workers(self.restart) if what == "all and workers" else [])

    def end(self, keep=False):
        for process in [*self.launchers, self.daemon]:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(60)
        self.log.close()
        if not keep:
            shutil.rmtree(self.folder)


def stand_still(run, pids, how_long, kill_after):
    """Returns whether a worker was killed."""
    killed = False
    begun = time.monotonic()
    for pid in pids:
        send(pid, signal.SIGSTOP)
    try:
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(run.victim, signal.SIGKILL)
            killed = True
        time.sleep(max(0, begun + how_long - time.monotonic()))
    finally:
        for pid in pids:
            send(pid, signal.SIGCONT)
    return killed


def one(run, what, how_long, dies, lot):
    """Returns whether the run goes on."""
    run.victim = lot.choice(run.workers(run.restart))
    killed = stand_still(run, run.pids(what, lot), how_long, lot.uniform(0, how_long) if dies else None)
    if not killed:
        time.sleep(3)  # What is lost by then is lost by the standstill.
        run.check()
        if any(process.poll() is not None for process in [run.daemon, *run.launchers]):
            raise Wrong("the run ended without a death")
        return True
    if run.restart < run.restarts:
        run.wait_for_round(run.restart + 1)
        return True
    wait(lambda: all(launcher.poll() is not None for launcher in run.launchers), "the verdict of a death")
    codes = {launcher.poll() for launcher in run.launchers}
    run.check()
    if codes != {128 + signal.SIGKILL}:
        raise Wrong(f"exit codes {codes} where a worker was killed")
    return False


def campaign(options):
    lot = random.Random(options.seed)
    end = time.monotonic() + 60 * options.minutes
    table = collections.defaultdict(collections.Counter)
    run = None
    while time.monotonic() < end:
        what = lot.choice(["daemon", "agent", "launcher", "all", "all and workers"])
        how_long = 0.5 * (options.longest / 0.5) ** lot.random()
        dies = lot.random() < 0.4
        row = table[what]
        try:
            run = run or Run(options, lot.randrange(4))
            goes_on = one(run, what, how_long, dies, lot)
        except KeyboardInterrupt:
            break
        except Wrong as wrong:
            print(f"WRONG: {what} for {how_long:.1f} s, death {dies}: {wrong}; see {run.folder if run else '?'}/log", flush=True)
            row["wrong"] += 1
            if run:
                run.end(keep=True)
            run = None
            continue
        row["standstills"] += 1
        row["seconds"] += how_long
        row["deaths"] += dies
        row["verdicts"] += not goes_on
        if not goes_on:
            run.end()
            run = None
    if run:
        run.end()
    print("| stood still | times | seconds | deaths meanwhile | verdicts, all right | wrong |\n|---|---|---|---|---|---|")
    for what, row in sorted(table.items()):
        print(f"| {what} | {row['standstills']} | {row['seconds']:.0f} | {row['deaths']} | {row['verdicts']} | {row['wrong']} |")
    return 1 if any(row["wrong"] for row in table.values()) else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_build_option(parser, "bin/ddprun", "bin/bench_step_worker")
    parser.add_argument("--worker", help="what steps; bench_step_worker of the build")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--longest", type=float, default=60, help="seconds")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # The run under way ends with this program.
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Which nohup and & of a script have ignored.
    options.worker = options.worker or os.path.join(options.build, "bin", "bench_step_worker")
    return campaign(options)


if __name__ == "__main__":
    sys.exit(main())
