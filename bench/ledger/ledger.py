#!/usr/bin/env python3
"""The ledger against what was planted: each class beside its truth, and what it costs.

  bench/ledger/ledger.py [--build DIR]               truth, in per cent of what was planted
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


def mean(run, part, rank=None):
    slots = [s for s in run["slots"] if rank is None or s["rank"] == rank]
    return statistics.mean(s["parts_s"].get(part, 0) for s in slots)


def truth(build):
    steps, failed = 200, 130
    with tempfile.TemporaryDirectory() as folder:
        run = account(build, folder, ["--max-restarts", "1"],
                      ["startup=2000", f"steps={steps}", "outside=20", "forward=50", "backward=30", "save=50:400",
                       f"fail=1:{failed}", f"state={folder}/state"])
        saved = failed // 50 * 50
        rows = [("startup", 2.0, mean(run, "startup")), ("restart", 2.0, mean(run, "restart")),
                ("checkpoint", steps // 50 * 0.4, mean(run, "checkpoint")),
                ("lost", (failed - saved) * 0.1, mean(run, "lost")), ("outside", steps * 0.02, mean(run, "outside")),
                ("forward", steps * 0.05, mean(run, "forward")), ("backward", steps * 0.03, mean(run, "backward"))]
        late = account(build, folder, [], [f"steps={steps}", "forward=20", "late=1:80"])
        rows.append(("waiting", steps * 0.08, mean(late, "waiting", rank=0) + mean(late, "steps", rank=0)))
        stall = account(build, folder, [], ["steps=40", "forward=20", "stall=1:20:4000"])
        rows.append(("stall of the other: waiting", 4.0, mean(stall, "waiting", rank=0)))
        rows.append(("stall of its own: outside", 4.0, mean(stall, "outside", rank=1)))
        print(f"{'class':30} {'planted s':>10} {'found s':>10} {'off':>8}")
        for name, planted, found in rows:
            print(f"{name:30} {planted:10.2f} {found:10.2f} {100 * (found / planted - 1):+7.1f} %")
        for one in (run, late, stall):
            for slot in one["slots"]:
                assert abs(sum(slot["parts_s"].values()) - one["run"]["wall_s"]) < 0.06, slot
        print("all rows add up to the wall time")


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
    options = parser.parse_args()
    if options.cost:
        cost(options.build, options.cost)
    else:
        truth(options.build)
    return 0


if __name__ == "__main__":
    sys.exit(main())
