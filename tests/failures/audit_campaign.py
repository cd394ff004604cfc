#!/usr/bin/env python3
"""In each case one of four nodes computes wrong: a bit flips in a sample, a gradient, the weights or a sum. The audit of the
job must name this node and no other, the others must go on without it, and the weights must be those of a run in which nothing
happened.

    DDPRUN_BIN=build/dev/bin tests/failures/audit_campaign.py [--cases N] [--seed S] [--rare]

With --rare the node computes wrong in one of 50 steps, 2 % are audited, and the wrong steps until it is found are compared with
those that chance allows to expect.

The worker is tests/process/worker_sdk/campaign_worker.cc, one on each node, each node a host of its own. In every fifth case
no bit flips: then nothing may be found. What was written is kept if something is wrong.
"""
import argparse
import os
import random
import re
import shutil
import sys
import tempfile

import paths  # noqa: F401
import ddprun_case
from campaign_logs import Workers
from ddprun_case import BIN, DDPRUN, Job

WORKER = os.path.join(os.path.dirname(BIN), "tests", "campaign_worker")
NODES, STEPS, PATIENCE = 4, 48, 120.0
SHARDS, RARE, RARE_PERCENT, RARE_STEPS = 32, 50, 2, 1504  # SHARDS and RARE as campaign_worker.cc has them.
FOUND = re.compile(r"audit: step (\d+), shard \d+: .* is wrong; the others go on without it")
WRONG = re.compile(r"audit: .*: rank \d+ on (\S+) is wrong; the others go on without it")
STATE = re.compile(r"audit: before step \d+ the kept state of rank \d+ on (\S+) was [0-9a-f]{16}, .*; the others go on without it")


class Wrong(Exception):
    pass


def case_of(seed):
    """What flips, in which node, when, which bit."""
    choose = random.Random(seed)
    what = choose.choice(["input", "gradient", "weight", "sum"]) if seed % 5 else ""
    return {"FLIP": what, "FLIP_NODE": str(choose.randrange(NODES)), "FLIP_STEP": str(choose.randint(1, 20)),
            # The sum is added to what is larger: a low bit of it would be rounded away.
            "FLIP_BIT": str(choose.randint(12 if what == "sum" else 0, 22)), "FLIP_TIMES": choose.choice(["once", "always"]),
            "SPEEDS": choose.choice(["equal", "vary"])}, choose.choice([100, 50, 20])


def run(folder, *argv, **env):
    logs = os.path.join(folder, f"logs{len(os.listdir(folder))}")
    os.mkdir(logs)
    env = {"LOGS": logs, "STEPS": str(STEPS), "STEP_MS": "2", "DDPRUN_TOKEN": "audit", "DDPRUN_SOCKET_IFNAME": "lo", **env}
    job = Job([DDPRUN, *argv, WORKER], folder, env)
    code = job.wait(PATIENCE)
    return job, code, dict(Workers(logs).results())


def play(folder, seed, quiet):
    env, percent = case_of(seed)
    job, code, results = run(folder, "--local-nodes", str(NODES), "--nnodes", f"{NODES - 1}:{NODES}", "--nproc-per-node", "1",
                             "--max-restarts", "3", "--audit", str(percent), HOSTS="nodes", DDPRUN_BACKEND="cpu", **env)
    text = job.out() + job.err()
    named = WRONG.findall(text) + STATE.findall(text)
    flipped = "a bit flips in step" in text
    expected = [f"host-{env['FLIP_NODE']}"] if flipped else []
    problem = ""
    if env["FLIP"] and not flipped:
        problem = "no bit has flipped"
    elif named != expected:
        problem = f"{named} was named, not {expected}"
    elif code != 0:
        problem = f"the run has ended with {code}"
    elif set(results) != {quiet} or sum(results.values()) != NODES - len(expected):
        problem = f"the results are {results}, not {quiet} of {NODES - len(expected)} ranks"
    elif expected and ("wrong_result" not in text and "wrong result" not in text or "continues without" not in text):
        problem = "the node was not left out"
    job.end()
    if problem:
        raise Wrong(f"case {seed}, {env}, {percent} %: {problem}\n{text}")
    return env["FLIP"] or "nothing"


def rare(folder, seed, quiet):
    """The wrong steps until the node is found."""
    choose = random.Random(f"rare {seed}")
    env = {"FLIP": choose.choice(["input", "gradient"]), "FLIP_NODE": str(choose.randrange(NODES)), "FLIP_STEP": str(choose.randrange(RARE)),
           "FLIP_BIT": str(choose.randint(0, 22)), "FLIP_TIMES": "fiftieth", "STEPS": str(RARE_STEPS)}
    job, code, results = run(folder, "--local-nodes", str(NODES), "--nnodes", f"{NODES - 1}:{NODES}", "--nproc-per-node", "1",
                             "--max-restarts", "3", "--audit", str(RARE_PERCENT), HOSTS="nodes", DDPRUN_BACKEND="cpu", **env)
    text = job.out() + job.err()
    found = FOUND.search(text)
    job.end()
    if code != 0 or not found or WRONG.findall(text) != [f"host-{env['FLIP_NODE']}"] or set(results) != {quiet}:
        raise Wrong(f"case {seed}, {env}: {code}, {results}, not {quiet}\n{text}")
    return (int(found.group(1)) - int(env["FLIP_STEP"])) // RARE + 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1, help="of the first case [1]")
    parser.add_argument("--rare", action="store_true")
    options = parser.parse_args()
    if not os.access(DDPRUN, os.X_OK) or not os.access(WORKER, os.X_OK):
        ddprun_case.skip_all(f"there is no {DDPRUN} or no {WORKER}")
    folder = tempfile.mkdtemp(prefix="ddprun-audit-")
    done = {}
    try:
        steps = {"STEPS": str(RARE_STEPS)} if options.rare else {}
        job, code, results = run(folder, "--standalone", "--nproc-per-node", "2", DDPRUN_BACKEND="shm", **steps)
        if code != 0 or len(results) != 1:
            raise Wrong(f"the quiet run has ended with {code} and {results}\n{job.text()}")
        quiet = next(iter(results))
        if options.rare:
            wrong_steps = [rare(folder, seed, quiet) for seed in range(options.seed, options.seed + options.cases)]
            # In a step that is audited each node computes one shard of its own and one of another that are.
            chance = RARE_PERCENT / 100 * SHARDS / NODES
            print(f"{len(wrong_steps)} cases, found in the wrong step number {sum(wrong_steps) / len(wrong_steps):.2f} in the mean, at most "
                  f"{max(wrong_steps)}; expected {1 / chance:.2f}")
            return shutil.rmtree(folder)
        for seed in range(options.seed, options.seed + options.cases):
            what = play(folder, seed, quiet)
            done[what] = done.get(what, 0) + 1
    except (Wrong, AssertionError) as wrong:
        print(f"WRONG after {done}: {wrong}\neverything is in {folder}")
        sys.exit(1)
    shutil.rmtree(folder)
    print(f"{sum(done.values())} cases, the right node in all: " + ", ".join(f"{n} {what}" for what, n in sorted(done.items())))


if __name__ == "__main__":
    main()
