#!/usr/bin/env python3
"""Thousands of launches of 8 to 256 short workers: how many hang, end with a wrong code, or leave something.

    bench/launch_many.py [--build build/dev] [--launches 2000] [--seed 1]

One worker of every second launch exits with a code of its own at a random moment; the launcher must end with that
code, the others with 0. After each launch nothing of it may run, and no file, folder or cgroup of it may be there;
an agent that stays up for many rounds (--max-restarts) must not gain descriptors.
"""
import argparse
import glob
import os
import random
import statistics
import subprocess
import tempfile
import time

from side_by_side import add_build_option

PATIENCE = 60


def left_behind(folder, pid):
    """What a launch left in its folder for temporary files, and its cgroup."""
    return os.listdir(folder) + glob.glob(f"/sys/fs/cgroup/**/ddprun-{pid}", recursive=True)


def launch(program, n, failing, code):
    script = f'[ $RANK = {failing} ] && exit {code}; exit 0'
    argv = [program, "--standalone", "--quiet", "--nproc-per-node", str(n), "/bin/sh", "-c", script]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            return process.wait(PATIENCE), process.pid
        except subprocess.TimeoutExpired:
            process.kill()
            return None, process.pid


def descriptors_after(program, rounds):
    """How many more descriptors the agent has in its last rounds than in its first."""
    script = 'ls /proc/$PPID/fd | wc -l; exit 1'
    done = subprocess.run([program, "--standalone", "--quiet", "--max-restarts", str(rounds), "--nproc-per-node", "1",
                           "/bin/sh", "-c", script], capture_output=True, text=True, timeout=600, check=False)
    counts = [int(line.split(":")[-1]) for line in done.stdout.splitlines()]
    quarter = len(counts) // 4
    return statistics.median(counts[-quarter:]) - statistics.median(counts[:quarter]), len(counts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_build_option(parser, "bin/ddprun")
    parser.add_argument("--launches", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    program = os.path.join(options.build, "bin", "ddprun")
    chance = random.Random(options.seed)
    hung = wrong = workers = 0
    left = []
    folder = tempfile.mkdtemp(prefix="launch_many_")
    os.environ["TMPDIR"] = folder
    begun = time.monotonic()
    for number in range(options.launches):
        # Sizes from 8 to 256, small ones more often.
        n = int(2 ** chance.uniform(3, 8))
        workers += n
        code = chance.choice([1, 7, 42, 137]) if number % 2 else 0
        actual, pid = launch(program, n, chance.randrange(n) if code else -1, code)
        hung += actual is None
        wrong += actual is not None and actual != code
        left += left_behind(folder, pid)
    took = time.monotonic() - begun
    gained, rounds = descriptors_after(program, 200)
    left += os.listdir(folder)
    os.rmdir(folder) if not left else print("left:", left)
    print(f"{options.launches} launches of {workers} workers in {took:.0f} s: {hung} hung, {wrong} wrong exit codes, "
          f"{len(left)} files or cgroups left, {gained:g} descriptors gained in {rounds} rounds")
    raise SystemExit(bool(hung or wrong or gained > rounds // 20 or left))


if __name__ == "__main__":
    main()
