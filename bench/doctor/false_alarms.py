#!/usr/bin/env python3
"""False alarms of ddprun doctor on a machine that is busy, and what --preflight costs a run.

    bench/doctor/false_alarms.py [--build build/dev] [--runs 200] [--load 8] [--rounds 20]

Alarms: `ddprun doctor --json` is run again and again while LOAD processes compute. What it says without load is true of
this machine; whatever else it says is a false alarm and printed. Cost: runs of a worker that does nothing, with
--preflight off (the default), fast and full in turns, without load. The script fails if there was a false alarm."""
import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from side_by_side import add_build_option, take_turns  # noqa: E402


def findings(ddprun):
    """The checks that are not well: their names, with what was said."""
    done = subprocess.run([ddprun, "doctor", "--json"], capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    return {check["name"]: f'{check["status"]}: {check["value"]}' for check in report["checks"]
            if check["status"] not in ("ok", "skipped")}, report["took_ms"]


class Load:
    """Processes that compute, ended with the block."""

    def __init__(self, number):
        self._number = number

    def __enter__(self):
        self._children = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(self._number)]

    def __exit__(self, *_):
        for child in self._children:
            child.kill()
            child.wait()


def count_alarms(ddprun, runs, load):
    true, _ = findings(ddprun)
    print(f"without load: {', '.join(true) or 'nothing'}", flush=True)
    false, times = collections.Counter(), []
    with Load(load):
        for _ in range(runs):
            found, took_ms = findings(ddprun)
            times.append(took_ms)
            for name in found.keys() - true.keys():
                false[name] += 1
                print(f"false alarm: {name}: {found[name]} (load average {os.getloadavg()[0]:.1f})", flush=True)
    print(f"{runs} runs beside {load} processes that compute: {sum(false.values())} false alarms; "
          f"{statistics.median(times):.0f} ms [{min(times):.0f}-{max(times):.0f}] each")
    return sum(false.values())


def milliseconds_of(ddprun, preflight):
    began = time.monotonic()
    subprocess.run([ddprun, *preflight, "--nproc-per-node", "2", "true"], capture_output=True, check=True)
    return (time.monotonic() - began) * 1000


def measure_cost(ddprun, rounds):
    kinds = {"(not given)": [], "off": ["--preflight", "off"], "fast": ["--preflight", "fast"],
             "full": ["--preflight", "full"]}
    times = take_turns({kind: lambda flags=flags: milliseconds_of(ddprun, flags) for kind, flags in kinds.items()}, rounds)
    for kind, values in times.items():
        print(f"--preflight {kind}: {statistics.median(values):.1f} ms [{min(values):.1f}-{max(values):.1f}]")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_build_option(parser, "bin/ddprun")
    parser.add_argument("--runs", type=int, default=200, help="runs of the doctor under load [200]")
    parser.add_argument("--load", type=int, default=8, help="processes that compute meanwhile [8]")
    parser.add_argument("--rounds", type=int, default=20, help="runs with each kind of --preflight; 0: none [20]")
    options = parser.parse_args()
    ddprun = os.path.join(options.build, "bin", "ddprun")
    alarms = count_alarms(ddprun, options.runs, options.load) if options.runs else 0
    if options.rounds:
        measure_cost(ddprun, options.rounds)
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
