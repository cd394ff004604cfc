#!/usr/bin/env python3
"""The ledger against what was planted: each class beside its truth, by the workers' own clocks, and what it costs.

  bench/ledger/ledger.py [--build DIR] [--scale N]   a table: truth, ledger, difference; fails if a class is more than 2 % off
  bench/ledger/ledger.py [--build DIR] --cost 10     a run with everything on beside one with everything off, in turns
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import side_by_side


def account(build, folder, launch, planted, code=0):
    page = os.path.join(folder, "report.html")
    argv = [os.path.join(build, "bin", "ddprun"), "--quiet", "--nproc-per-node", "2", *launch, "--report-html", page,
            os.path.join(build, "tests", "planted_worker"), *planted]
    done = subprocess.run(argv, cwd=folder, stderr=subprocess.DEVNULL, check=False)
    assert done.returncode == code, done.returncode
    with open(page, encoding="utf-8") as f:
        text = re.search(r'id="data">(.*?)</script>', f.read(), re.DOTALL).group(1)
    return json.loads(text)


class Truth:
    """What the planted workers have written down by their own clocks: `events[rank][start]` = [(what, step, from, until)]."""

    def __init__(self, folder, ranks=2):
        self.events = [[] for _ in range(ranks)]
        for rank in range(ranks):
            start = 0
            while os.path.exists(path := os.path.join(folder, f"{rank}.{start}")):
                with open(path, encoding="ascii") as f:
                    words = [line.split() for line in f]
                self.events[rank].append([(w[0], int(w[1]), int(w[2]) / 1e9, int(w[3]) / 1e9) for w in words])
                start += 1

    def seconds(self, rank, what, kept=lambda start, step: True):
        return sum(until - begin for start, events in enumerate(self.events[rank])
                   for name, step, begin, until in events if name == what and kept(start, step))

    def when(self, rank, start, what):
        """(begin, end) of the last of that name."""
        return [(begin, until) for name, _, begin, until in self.events[rank][start] if name == what][-1]

    def waited(self, rank):
        """How long this rank waited for the other one: nothing but the two clocks at which they came."""
        arrivals = [{step: begin for name, step, begin, _ in events[0] if name == "arrival"} for events in self.events]
        return sum(max(0, arrivals[1 - rank][step] - mine) for step, mine in arrivals[rank].items())


class Table:
    """Each class of a run beside its truth."""

    def __init__(self):
        self.worst = 0

    def row(self, what, rank, planted, found):
        off = 100 * (found / planted - 1)
        self.worst = max(self.worst, abs(off))
        print(f"{what:44} {rank:4} {planted:10.3f} {found:10.3f} {off:+7.2f} %")

    def parts(self, name, run, rank, truth):
        [slot] = [slot for slot in run["slots"] if slot["rank"] == rank]
        for part, planted in truth.items():
            found = slot["parts_s"].get(part, 0)
            if part == "waiting":  # Without a whole window nobody knows which part of the exposed time it is.
                found += slot["parts_s"].get("steps", 0)
            self.row(f"{name}: {part}", rank, planted, found)


def kill(planted, table):
    """A rank is killed; what was computed since the last checkpoint is lost, and all start again."""
    steps, failed, every = planted.steps, planted.steps * 13 // 20, planted.steps // 4
    saved = failed // every * every
    run, truth = planted.run(["--max-restarts", "1"], [f"startup={planted.startup}", f"steps={steps}", "outside=20", "forward=50",
                                                       "backward=30", f"save={every}:{planted.startup // 4}",
                                                       f"fail=1:{failed}"])

    def kept(start, step):
        return start == 1 or step < saved

    killed, _ = truth.when(1, 0, "kill")
    for rank in (0, 1):
        _, lost_from = truth.when(rank, 0, "checkpoint")
        _, again = truth.when(rank, 1, "startup")
        parts = {part: truth.seconds(rank, part, kept) for part in ("outside", "forward", "backward", "checkpoint")}
        parts["startup"] = truth.seconds(rank, "startup", lambda start, _: start == 0)
        table.parts("kill", run, rank, {**parts, "restart": again - killed, "lost": killed - lost_from})
    return run


def late(planted, table):
    run, truth = planted.run([], [f"steps={planted.steps}", "forward=40", "late=1:120"])
    table.parts("late in every step", run, 0, {"forward": truth.seconds(0, "forward"), "waiting": truth.waited(0)})
    table.parts("late in every step", run, 1, {"forward": truth.seconds(1, "forward")})
    return run


def stall(planted, table):
    run, truth = planted.run([], ["steps=40", "forward=20", f"stall=1:20:{2 * planted.startup}"])
    table.parts("a stall", run, 0, {"waiting": truth.waited(0)})
    table.parts("a stall", run, 1, {"outside": truth.seconds(1, "outside")})
    return run


def loader(planted, table):
    run, truth = planted.run([], [f"steps={planted.steps}", "outside=5", "forward=40", "load=1:8:400"])
    table.parts("a slow loader", run, 0, {"waiting": truth.waited(0)})
    table.parts("a slow loader", run, 1, {"outside": truth.seconds(1, "outside")})
    return run


class Planted:
    def __init__(self, build, scale):
        self.build, self.steps, self.startup = build, int(200 * scale), int(2000 * scale)

    def run(self, launch, words):
        with tempfile.TemporaryDirectory() as folder:
            truth = os.path.join(folder, "truth")
            os.mkdir(truth)
            run = account(self.build, folder, launch, [*words, f"state={folder}/state", f"truth={truth}"])
            return run, Truth(truth)


def truth(build, scale):
    planted, table = Planted(build, scale), Table()
    print(f"{'class':44} {'rank':4} {'truth s':>10} {'ledger s':>10} {'off':>9}")
    for scene in (kill, late, stall, loader):
        run = scene(planted, table)
        for slot in run["slots"]:
            assert abs(sum(slot["parts_s"].values()) - run["run"]["wall_s"]) < 0.06, slot
    print(f"the furthest is {table.worst:.2f} % off; all rows add up to the wall time")
    return 0 if table.worst <= 2 else 1


def cost(build, rounds):
    argv = [os.path.join(build, "bin", "ddprun"), "--quiet", "--nproc-per-node", "2"]
    worker = [os.path.join(build, "tests", "planted_worker"), "steps=20000"]
    took = {"off": [], "on": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name, flags in (("off", ["--on-stall", "off"]), ("on", ["--report-html", folder + "/r.html"])):
                began = time.monotonic()
                subprocess.run(argv + flags + worker, check=True, cwd=folder, stderr=subprocess.DEVNULL)
                took[name].append(time.monotonic() - began)
    ratios = [on / off for on, off in zip(took["on"], took["off"])]
    for name, values in took.items():
        print(f"{name:4} {statistics.median(values):.3f} s [{min(values):.3f}-{max(values):.3f}]")
    print(f"on / off: {statistics.median(ratios):.4f} [{min(ratios):.4f}-{max(ratios):.4f}]")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    side_by_side.add_build_option(parser, "bin/ddprun", "tests/planted_worker")
    parser.add_argument("--cost", type=int, metavar="ROUNDS")
    parser.add_argument("--scale", type=float, default=1, help="longer runs: what a busy machine adds at each end counts less")
    options = parser.parse_args()
    if options.cost:
        cost(options.build, options.cost)
        return 0
    return truth(options.build, options.scale)


if __name__ == "__main__":
    sys.exit(main())
