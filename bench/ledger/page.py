#!/usr/bin/env python3
"""A report of many ranks in a browser: the size of its file, the seconds until it is drawn, and the time of a zoom.

  bench/ledger/page.py [--ranks 1000] [--steps 10000] [--rounds 5]

The account is made up (four failures, late ranks, a node that was lost and one that came); the page is the product's.
Needs chromium.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "watch"))
from browser import NARROW, WIDE, Browser

SIGNS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
BINS, STEP_S, PER_NODE = 200, 0.65, 8

ZOOM = """new Promise(done => {
  let left = %d, took = []; const W = D.run.wall_s;
  const once = () => { const began = performance.now(); zoom(W * Math.random() / 2, W * (.5 + Math.random() / 2));
    requestAnimationFrame(() => setTimeout(() => { took.push(performance.now() - began); --left ? once() : done(took) })) };
  once() })"""


def account(ranks, steps, seed=1):
    dice = random.Random(seed)
    wall = steps * STEP_S * 1.12
    failures = sorted(dice.uniform(.1, .9) * wall for _ in range(4))
    spans = [{"from_s": 0, "to_s": 20, "part": "startup", "slots": [[0, ranks - 1]]}]
    for at in failures:
        spans.append({"from_s": at - 120, "to_s": at, "part": "lost", "slots": [[0, ranks - 1]]})
        spans += [{"from_s": at, "to_s": at + dice.uniform(20, 40), "part": "restart", "slots": [[rank, rank]]}
                  for rank in range(ranks)]
    slots = []
    for rank in range(ranks):
        outside = 4 + dice.randrange(3) + (12 if rank == 19 else 0)
        rows = ["".join(SIGNS[max(0, mean + dice.randrange(-2, 3))] for _ in range(BINS)) for mean in (outside, 18, 32, 1)]
        parts = {"startup": 20, "lost": 480, "restart": 120, "outside": wall * .08, "forward": wall * .26, "backward": wall * .46,
                 "transfer": wall * .02}
        parts["waiting"] = wall - sum(parts.values())
        slots.append({"node": rank // PER_NODE, "host": f"node{rank // PER_NODE}", "local_rank": rank % PER_NODE, "rank": rank,
                      "steps": steps, "parts_s": {k: round(v, 3) for k, v in parts.items()}, "bins": rows,
                      "late_s": round(dice.expovariate(1 / 20), 3), "late_steps": dice.randrange(steps)})
    incidents = [{"id": i + 1, "at_s": at, "kind": "worker_failed", "fault": "out_of_memory", "what": "was killed: out of memory",
                  "who": f"rank {dice.randrange(ranks)}", "where": "node3", "slots": [27], "evidence": "496 of 500 GB",
                  "action": "round, all ranks", "back_s": 31.5, "lost_s": 120, "cost_rank_s": 151 * ranks}
                 for i, at in enumerate(failures)]
    return {"schema": "ddprun.report/1", "run": {"id": "job1000", "wall_s": wall, "queued_s": 0, "world_size": ranks,
                                                 "nodes": -(-ranks // PER_NODE), "max_restarts": 10, "restarts": 4, "rounds": 5,
                                                 "steps": steps, "command": "ddprun --nproc-per-node 8 ./trainer"},
            "verdict": {"kind": "success", "exit_code": 0, "text": "", "advice": "", "victims": 0}, "incidents": incidents,
            "hosts": [f"node{n}" for n in range(-(-ranks // PER_NODE))], "slots": slots, "spans": spans,
            "findings": {"incidents": "4 incidents cost 9.1 % of the run.", "ribbon": "82 % of the time went into kept steps.",
                         "help": [{"rank_s": 12000, "text": "the others waited for rank 19 on node2: look at its machine"}]}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--picture", metavar="FILE")
    options = parser.parse_args()
    with open(os.path.join(ROOT, "launcher", "page", "report.html"), encoding="utf-8") as f:
        page = f.read().replace("@DATA@", json.dumps(account(options.ranks, options.steps), separators=(",", ":")))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report.html")
        with open(path, "w", encoding="utf-8") as f:
            f.write(page)
        browser = Browser(folder)
        try:
            opened, zooms = [], []
            for _ in range(options.rounds):
                tab = browser.open("file://" + path)
                opened.append(tab.seconds)
                zooms += tab.value(ZOOM % 10)
                wrong = tab.complaints() + tab.spills()
            wrong += browser.open("file://" + path, NARROW).spills()
            if options.picture:
                browser.open("file://" + path, WIDE).picture(options.picture, 1600)
        finally:
            browser.close()
    print(f"{options.ranks} ranks, {options.steps} steps: {len(page) / 1e6:.2f} MB; drawn {statistics.median(opened):.2f} s after the "
          f"address was given [{min(opened):.2f}-{max(opened):.2f}]; a zoom takes {statistics.median(zooms):.0f} ms "
          f"[{min(zooms):.0f}-{max(zooms):.0f}]")
    for one in wrong:
        print("WRONG " + one)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
