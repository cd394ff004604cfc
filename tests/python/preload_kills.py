#!/usr/bin/env python3
"""Kills processes of runs with --preload at random moments: nothing may hang, be left behind, or end with a code that it cannot have.

    tests/python/preload_kills.py [--count N] [--seed N]

Each run has two ranks, two restarts and a fork server, that of a list of modules or of --preload auto; one or two of its processes
(fork server, agent, launcher, a worker) get SIGKILL or SIGSTOP at random moments from its start on. Half of the runs have
--preload-keep, and their kept fork server may be hit, too. By hand only: its length depends on --count.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../system"), HERE]

import ddprun_case  # noqa: E402  pylint: disable=wrong-import-position

SCRIPT = """
import os, select, sys
print("preloaded", "xml.dom.minidom" in sys.modules, flush=True)
import xml.dom.minidom
select.select([], [], [], 0.05)
sys.exit(3 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1" else 0)
"""
MOMENTS_S = 0.5  # Of a run, in which it is hit; a quiet one lasts as long.
ENDS_MAX_S = 60.0


def victim_of(job, kind):
    """The number of a process of that kind, as long as there is one."""
    processes = job.processes()
    if kind == "holder":
        return next(iter(holders(job.folder)), None)
    if kind == "launcher":
        return job.pid
    if kind == "agent":
        return next((p.pid for p in job.agents()), None)
    if kind == "server":
        return next((p.pid for p in processes if p.name == "ddprun-preload"), None)
    return next((p.pid for p in processes if p.name.startswith("python")), None)


def hit(job, source):
    """[(kind, signal)] of what was hit."""
    hits = []
    for _ in range(source.randint(1, 2)):
        time.sleep(source.uniform(0, MOMENTS_S / 2))
        kind = source.choice(("server", "server", "holder", "agent", "launcher", "worker"))
        may_stop = kind in ("server", "holder")
        number = source.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP)) if may_stop else signal.SIGKILL
        pid = None if job.ended() else victim_of(job, kind)
        try:
            if pid:
                os.kill(pid, number)
                hits.append((kind, number))
        except ProcessLookupError:
            pass
    return hits


def fault_of(job, hits):
    """What is wrong with the end of a run; empty: nothing."""
    try:
        code = job.wait(ENDS_MAX_S)
    except AssertionError as error:
        return f"hangs: {error}"
    deadline = time.monotonic() + ddprun_case.PROMISED
    while (left := job.processes()) and time.monotonic() < deadline:
        time.sleep(ddprun_case.POLL)
    if left:
        return f"left behind: {left}"
    kinds = {kind for kind, _ in hits} - {"holder"}
    if kinds <= {"server"} and code != 0:
        return f"the fork server alone was hit, and the run ended with {code}"
    if kinds <= {"server", "worker"} and code not in (0, 137, 3):
        return f"ended with {code}"
    return ""


def holders(folder):
    """The processes that keep the fork servers of scripts in this folder."""
    answer = subprocess.run([os.path.join(ddprun_case.BIN, "ddprunctl"), "preload"], capture_output=True, text=True, timeout=60, check=True)
    return [int(row.split()[0]) for row in answer.stdout.splitlines() if folder in row]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    source = random.Random(options.seed)
    faults, forks, cold, resumed = 0, 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="ddprun-kills-") as folder:
        script = os.path.join(folder, "script.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(SCRIPT)
        env = {"PYTHON_EXEC": sys.executable, "XDG_CACHE_HOME": folder, "XDG_STATE_HOME": folder, "TMPDIR": folder}
        for number in range(options.count):
            modules = source.choice(("xml.dom.minidom", "auto"))
            keep = source.choice((["--preload-keep", "5"], []))
            job = ddprun_case.Job([ddprun_case.DDPRUN, "-v", "--preload", modules, *keep, "--nproc-per-node", "2", "--max-restarts", "2",
                                   script], folder, env)
            job.folder = folder
            try:
                hits = hit(job, source)
                fault = fault_of(job, hits)
                forks, cold = forks + job.out().count("preloaded True"), cold + job.out().count("preloaded False")
                resumed += "kept by an earlier run" in job.err()
                if fault:
                    faults += 1
                    print(f"run {number}, hits {hits}: {fault}\n{job.text()}", flush=True)
            finally:
                job.end()
        for pid in holders(folder):
            os.kill(pid, signal.SIGKILL)
    print(f"{options.count} runs: {forks} workers were forked, {cold} started cold, {resumed} runs had a kept server, {faults} runs failed")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
