#!/usr/bin/env python3
"""What it costs a run to be seen: everything on beside everything off, in turns.

    bench/ledger/watched.py [--build build/dev] [--ranks 4] [--steps 1000] [--rounds 5]

Off: DDPRUN_HISTORY=0, --quiet, output into a file. On: the history, --report-html, a terminal with its status line, and a
`ddprunctl top` that looks every second. The workers sleep for 5 ms a step and exchange a gradient, so that all CPU is overhead.
CPU is that of ddprun and its workers together, without top; wall time is from start to end.
"""
import argparse
import os
import pty
import select
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from side_by_side import add_build_option


def drained(fd, over):
    while not over.is_set():
        if select.select([fd], [], [], 0.1)[0]:
            try:
                os.read(fd, 65536)
            except OSError:
                return


def measured(options, on):
    """(CPU seconds, wall seconds)."""
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ, TERM="xterm", XDG_STATE_HOME=folder, DDPRUN_HISTORY="1" if on else "0")
        for name in ("CI", "GITHUB_ACTIONS", "NO_COLOR"):
            env.pop(name, None)
        ours, theirs = pty.openpty()
        over = threading.Event()
        reader = threading.Thread(target=drained, args=(ours, over))
        reader.start()
        argv = [os.path.join(options.build, "bin", "ddprun"), "--nproc-per-node", str(options.ranks)]
        argv += ["--report-html", os.path.join(folder, "r.html")] if on else ["--quiet"]
        argv += [os.path.join(options.build, "tests", "planted_worker"), f"steps={options.steps}", "forward=5"]
        top = None
        with open(os.path.join(folder, "out"), "wb") as file:
            to = theirs if on else file
            begun = time.monotonic()
            run = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=to, stderr=to)
            if on:
                top = subprocess.Popen([os.path.join(options.build, "bin", "ddprunctl"), "top", "--interval", "1"], env=env,
                                       stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL)
            _, status, usage = os.wait4(run.pid, 0)
            took = time.monotonic() - begun
        if top:
            top.kill()
            top.wait()
        over.set()
        reader.join()
        os.close(ours)
        os.close(theirs)
        if status != 0:
            raise SystemExit(f"{argv} ended with {status}")
        return usage.ru_utime + usage.ru_stime, took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_build_option(parser)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows = {False: [], True: []}
    for _ in range(options.rounds):
        for on, row in rows.items():
            row.append(measured(options, on))
    for index, what in enumerate(("CPU", "wall")):
        ratios = [a[index] / b[index] for a, b in zip(rows[True], rows[False])]
        off, on = (statistics.median(one[index] for one in rows[key]) for key in (False, True))
        print(f"{what:5} off {off:7.3f} s   on {on:7.3f} s   ratio {statistics.median(ratios):.4f} [{min(ratios):.4f}-{max(ratios):.4f}]")
    more = [100 * (a[0] - b[0]) / b[1] for a, b in zip(rows[True], rows[False])]
    print(f"more CPU {statistics.median(more):.2f} % of one core [{min(more):.2f}-{max(more):.2f}]")


if __name__ == "__main__":
    main()
