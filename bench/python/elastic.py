#!/usr/bin/env python3
"""A rank of a Python job is killed, again and again: how long until the others have committed their next step.

    bench/python/elastic.py [--build build/dev] [--kills 200] [--ranks 4] [--state-mb 16] [--step-ms 20] [--seed 1]
                            [--seconds 3600] [--only torch]

PYTHON_EXEC names the interpreter with torch. Contestants, each one run of the same length of step: "C++ job" is
bench_elastic_worker job, "Python job" the same with ddprun.elastic, "Python torch" a small model with ddprun.elastic.torch,
"Python gloo" that model on torch's own Gloo (elastic_worker.py). A rank is killed when all are there and in step.

  on     from SIGKILL to the first new step that all ranks of its world have committed; the step's own length is in it
  full   from SIGKILL to the first such step of the full size: a new process has imported what it needs, and has the state

Afterwards tests/failures/sample_count.py must find each sample in exactly one committed step of each epoch, and the weights
of the torch and gloo runs, which they write every 20 steps, must have the bits of quiet runs of 1 and 3 ranks, at every
step that was written.
"""
import argparse
import glob
import importlib.util
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from side_by_side import PYTHON, ROOT, add_build_option, has_torch  # noqa: E402

_spec = importlib.util.spec_from_file_location("bench_elastic", os.path.join(os.path.dirname(HERE), "elastic.py"))
bench_elastic = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bench_elastic)

PATIENCE = 180.0
LENGTH, SHARDS = 1000, 16
EVERY = 20  # As in elastic_worker.py.
STEADY = 10  # Steps of the full size before a kill.


class Stamps:
    """What all processes of a run have stamped, read as it comes."""

    def __init__(self, folder):
        self.folder, self.offsets, self.last = folder, {}, {}
        self.open, self.done = {}, []  # {(step, world): {rank}}, [(ns, step, world)]

    def refresh(self):
        fresh = []
        for path in glob.glob(os.path.join(self.folder, "*.stamps")):
            with open(path, "rb") as f:
                f.seek(self.offsets.get(path, 0))
                text = f.read()
            whole = text[:text.rfind(b"\n") + 1]
            self.offsets[path] = self.offsets.get(path, 0) + len(whole)
            pid = int(os.path.basename(path).split(".")[0])
            for line in whole.decode().splitlines():
                rank, world, step, ns = map(int, line.split())
                fresh.append((ns, step, world, rank, pid))
        for ns, step, world, rank, pid in sorted(fresh):
            self.last[pid] = step
            ranks = self.open.setdefault((step, world), set())
            ranks.add(rank)
            if len(ranks) == world:
                self.done.append((ns, step, world))
        newest = max(self.last.values(), default=0)
        self.open = {key: ranks for key, ranks in self.open.items() if key[0] >= newest - 5}

    def living(self):
        newest = max(self.last.values(), default=0)
        return sorted(pid for pid, step in self.last.items() if step >= newest - 3 and os.path.exists(f"/proc/{pid}"))


class Run:
    """One ddprun of a contestant."""

    def __init__(self, options, argv, ranks, **env):
        self.options = options
        self.folder = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.log = open(os.path.join(self.folder, "log"), "w", encoding="utf-8")
        build = options.build
        command = [os.path.join(build, "bin", "ddprun"), "--standalone", "--nproc-per-node", str(ranks), "--max-restarts", "1000000"]
        self.job = subprocess.Popen([*command, *argv], stdout=self.log, stderr=self.log, start_new_session=True, env={
            **os.environ, "STAMPS": self.folder, "STATE_MB": str(options.state_mb), "STEP_MS": str(options.step_ms),
            "OMP_NUM_THREADS": "1", "PYTHONPATH": os.path.join(ROOT, "python"), "PYTHON_EXEC": PYTHON, "CUDA_VISIBLE_DEVICES": "",
            "DDPRUN_LIB": os.path.join(build, "worker_sdk", "libddprun.so"), "CHECKPOINT_EVERY": "10", **env})
        self.stamps = Stamps(self.folder)

    def wait_for(self, condition, what):
        until = time.monotonic() + PATIENCE
        while True:
            self.stamps.refresh()
            if value := condition():
                return value
            if self.job.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{what}: not within {PATIENCE:g} s, or its launcher has ended\n{self.words()}")
            time.sleep(0.02)

    def one_death(self, rng):
        """Seconds until the others have committed a step, and until all ranks have."""
        stamps, ranks = self.stamps, self.options.ranks
        self.wait_for(lambda: len(stamps.done) >= STEADY and {world for _, _, world in stamps.done[-STEADY:]} == {ranks}
                      and len(stamps.living()) == ranks, f"{ranks} ranks in step")
        victim = rng.choice(stamps.living())
        time.sleep(rng.uniform(0, self.options.step_ms / 1000))
        when = time.monotonic_ns()
        os.kill(victim, signal.SIGKILL)
        stamps.refresh()
        last = max((step for ns, step, _ in stamps.done if ns <= when), default=-1)

        def after():
            done = [each for each in stamps.done[-400:] if each[0] > when and each[1] > last]
            full = [each for each in done if each[2] == ranks and each[0] > done[0][0]]
            return full and ((done[0][0] - when) / 1e9, (full[0][0] - when) / 1e9)
        return self.wait_for(after, "a step of all ranks after the death")

    def text(self, ending):
        return {path: open(path, encoding="ascii").read() for path in glob.glob(os.path.join(self.folder, "*" + ending))}

    def bits(self):
        """{step: {checksum}}"""
        found = {}
        for text in self.text(".bits").values():
            for line in text.split("\n")[:-1]:
                step, checksum = line.split()
                found.setdefault(int(step), set()).add(checksum)
        return found

    def wait_while_it_steps(self):
        """Until it ends, however many steps that takes, as long as there are new ones."""
        newest, since = -1, time.monotonic()
        while self.job.poll() is None:
            size = sum(os.path.getsize(path) for path in glob.glob(os.path.join(self.folder, "*.bits")))
            if size != newest:
                newest, since = size, time.monotonic()
            if time.monotonic() - since > PATIENCE:
                raise SystemExit(f"no step for {PATIENCE:g} s\n{self.words()}")
            time.sleep(0.1)
        if self.job.returncode != 0:
            raise SystemExit(f"a quiet run has failed\n{self.words()}")

    def problem(self):
        logs = self.text(".samples")
        steps = {int(line.split()[3]) for text in logs.values() for line in text.split("\n")[:-1] if line[0] == "c"}
        return bench_elastic.sample_count.judge(logs, LENGTH, SHARDS, max(steps, default=-1) + 1)

    def words(self):
        with open(os.path.join(self.folder, "log"), encoding="utf-8", errors="replace") as f:
            return f.read()[-2000:]

    def end(self):
        self.job.terminate()
        try:
            self.job.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.job.pid, signal.SIGKILL)
            self.job.wait()
        self.log.close()

    def remove(self):
        shutil.rmtree(self.folder)


def shown(name, values):
    ordered = sorted(1000 * value for value in values)
    p99 = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    return f"{name} p50 {statistics.median(ordered):.0f}, p99 {p99:.0f}, max {ordered[-1]:.0f} ms"


def step_length(done):
    """Milliseconds from one step to the next of the same ranks, the median."""
    return statistics.median((b[0] - a[0]) / 1e6 for a, b in zip(done, done[1:]) if a[2] == b[2] and a[1] + 1 == b[1])


def differing_bits(options, argv, bits):
    """The (ranks, step) of which a quiet run has other weights, or none, for 1 and 3 ranks; both run at once."""
    quiet = {ranks: Run(options, argv, ranks, STEPS=str(max(bits)), STEP_MS="0") for ranks in (1, 3)}
    wrong = []
    try:
        for ranks, run in quiet.items():
            run.wait_while_it_steps()
            theirs = run.bits()
            wrong += [(ranks, step) for step in sorted(bits) if len(bits[step]) != 1 or bits[step] != theirs.get(step)]
    finally:
        for run in quiet.values():
            run.end()
            run.remove()
    return wrong


def contest(name, argv, options):
    rng = random.Random(options.seed)
    run = Run(options, argv, options.ranks)
    until, times = time.monotonic() + options.seconds, []
    try:
        while len(times) < options.kills and time.monotonic() < until:
            times.append(run.one_death(rng))
    finally:
        run.end()
    problem, bits = run.problem(), run.bits()
    print(f"{name}: steps of {step_length(run.stamps.done):.0f} ms; {len(times)} kills; {shown('on', [on for on, _ in times])}; {shown('full', [full for _, full in times])}; "
          f"samples {'each once' if not problem else problem[:3]}", flush=True)
    if bits:
        wrong = differing_bits(options, argv, bits)
        print(f"{name}: weights noted {len(bits)} times, every {EVERY} steps to the last, {max(bits)}; all compared with quiet "
              f"runs of 1 and 3 ranks: {'the same bits' if not wrong else wrong[:5]}", flush=True)
        problem = problem or wrong
    run.remove()
    return not problem


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_build_option(parser, "bin/ddprun", "bin/bench_elastic_worker")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--state-mb", type=int, default=16)
    parser.add_argument("--step-ms", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3600, help="no further kill of a contestant after that long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="contestants whose name contains this")
    options = parser.parse_args()
    worker = os.path.join(HERE, "elastic_worker.py")
    contestants = {"C++ job": [os.path.join(options.build, "bin", "bench_elastic_worker"), "job"], "Python job": [worker, "job"],
                   "Python torch": [worker, "torch"], "Python gloo": [worker, "gloo"]}
    if not has_torch("the rows of PyTorch"):
        contestants = {name: argv for name, argv in contestants.items() if "torch" not in name and "gloo" not in name}
    return min((contest(name, argv, options) for name, argv in contestants.items() if options.only in name), default=True)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
