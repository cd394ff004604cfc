#!/usr/bin/env python3
"""Runs of an elastic job with 0, 1 and 2 spares under --chaos, and the goodput that `ddprunctl whatif` expects of each, from
the account of the run without spares alone.

    DDPRUN_BIN=build/dev/bin tests/failures/whatif_campaign.py [--steps 9000] [--chaos 30] [--starts 3] [--seed 1]

The runs are made at once. Each worker waits `--starts` seconds before it opens its Job, as one that imports; DDPRUN_CHAOS_SEED makes the kills alike.
Prints measured and expected goodput and their difference, and fails if one is more than 3 % of the measured. The times of
a machine under load change from run to run; the table shows them. Not part of CI.
"""
import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile

import paths  # noqa: F401
from ddprun_case import BIN, DDPRUN

PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python")
LIBRARY = os.environ.get("DDPRUN_LIB") or os.path.join(os.path.dirname(BIN), "worker_sdk", "libddprun.so")
WORKER = """
import os, time
time.sleep(float(os.environ["STARTS"]))
import ddprun.elastic

weights = bytearray(1 << 20)
job = ddprun.elastic.Job()
job.keep(weights=weights)

def step(step):
    time.sleep(0.05)
    step.commit(lambda: None)

job.run(int(os.environ["STEPS"]), step)
"""


def environment(options, folder):
    return {**os.environ, "STARTS": str(options.starts), "STEPS": str(options.steps), "XDG_STATE_HOME": folder,
            "DDPRUN_CHAOS_SEED": str(options.seed), "PYTHONPATH": PACKAGE, "DDPRUN_LIB": LIBRARY}


def account_of(options, folder, spares):
    """The account of a run with so many spares."""
    run, program = f"spares{spares}", os.path.join(folder, "job.py")
    with open(program, "w", encoding="utf-8") as f:
        f.write(WORKER)
    env = environment(options, folder)
    argv = [DDPRUN, "--nproc-per-node", str(options.ranks), "--spares", str(spares), "--max-restarts", "100000", "--chaos",
            str(options.chaos), "--rdzv-id", run, sys.executable, program]
    with open(os.path.join(folder, run + ".log"), "w", encoding="utf-8") as log:
        status = subprocess.run(argv, env=env, stdout=log, stderr=log, timeout=600 + options.steps, check=False)
    if status.returncode != 0:
        sys.exit(f"{run} ended with {status.returncode}: see {log.name}")
    text = subprocess.run([os.path.join(BIN, "ddprunctl"), "report", run], env=env, check=True, stdout=subprocess.PIPE,
                          text=True).stdout
    path = os.path.join(folder, run + ".json")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


def whatif(path, *words):
    argv = [os.path.join(BIN, "ddprunctl"), "whatif", "--from", path, "--json", *words]
    return json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=9000, help="of 50 ms")
    parser.add_argument("--chaos", type=float, default=30)
    parser.add_argument("--starts", type=float, default=3)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", help="keep accounts and output here")
    options = parser.parse_args()
    folder = options.folder or tempfile.mkdtemp(prefix="ddprun-whatif-")
    os.makedirs(folder, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:  # Their workers sleep most of the time.
        accounts = dict(enumerate(pool.map(lambda spares: account_of(options, folder, spares), (0, 1, 2))))
    expected = whatif(accounts[0], "--spares", "0,1,2")["answers"]
    worst = 0
    print("spares  failures  measured  expected  difference  pause  start  join")
    for spares, answer in zip((0, 1, 2), expected):
        measured = whatif(accounts[spares])
        off = answer["goodput"] / measured["goodput"] - 1
        worst = max(worst, abs(off))
        facts = measured["facts"]
        times = " ".join(f"{facts[name]['value']:6.2f}" for name in ("change_s", "refill_s", "growth_s"))
        with open(accounts[spares], encoding="utf-8") as f:
            failures = len(json.load(f)["incidents"])
        print(f"{spares:6}  {failures:8}  {100 * measured['goodput']:7.2f} %  {100 * answer['goodput']:7.2f} %  "
              f"{100 * off:+9.2f} %  {times}")
    print(f"accounts and output are in {folder}")
    sys.exit(0 if worst <= 0.03 else 1)


if __name__ == "__main__":
    main()
