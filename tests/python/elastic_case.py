"""What the tests of ddprun.elastic share: a job whose weights show every sample that was lost or counted twice, and how
its ranks are made to die."""

import collections
import os
import re
import sys
import textwrap

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../system"), os.path.join(HERE, "../failures")]

import ddprun_case  # noqa: E402  pylint: disable=wrong-import-position
import sample_count  # noqa: E402  pylint: disable=wrong-import-position
from ddprun_case import BIN, DdprunCase, free_port  # noqa: E402  pylint: disable=wrong-import-position

PACKAGE = os.path.abspath(os.path.join(HERE, "../../python"))
LIBRARY = os.environ.get("DDPRUN_LIB") or os.path.join(os.path.dirname(BIN), "worker_sdk", "libddprun.so")
PATIENCE = 4 * ddprun_case.PATIENCE  # Interpreters start several times.

# What every script begins with. die("where", step) kills the process for each "where:STEP:RANK" in DIE once, at the first step
# from that one on in which all ranks are there; pace(step) waits for who is to replace the dead, and raises if nobody comes.
HEAD = """
import os, signal, sys, time
import ddprun
from ddprun import elastic
D = os.environ["D"]
LOG = os.open(f"{D}/{os.getpid()}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def once(what):
    try:
        os.close(os.open(f"{D}/once.{what}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
class Job(elastic.Job):
    def __init__(self, **options):
        super().__init__(**options)
        once(f"ready.{os.getpid()}")
FULL = int(os.environ.get("FULL", "1"))
def die(where, step):
    for what in os.environ.get("DIE", "").split():
        at, number, rank = what.split(":")
        if (at, int(rank)) == (where, step.rank) and step.number >= int(number) and step.world_size == FULL and once(what):
            os.kill(os.getpid(), signal.SIGKILL)
def pace(step):
    def waits():
        names = os.listdir(D)
        dead = sum(name.startswith("once.") and ":" in name for name in names)
        return sum(name.startswith("once.ready") for name in names) < FULL + dead
    until = time.monotonic() + 60
    while step.world_size < FULL and waits():
        if time.monotonic() > until:
            raise TimeoutError(f"rank {step.rank} of {step.world_size} has waited 60 s for {FULL} ranks: nobody has come in "
                               f"place of the dead; {D} has {sorted(os.listdir(D))}")
        time.sleep(0.01)
    time.sleep(0.2 if step.world_size < FULL else 0.005)
def note(*words):
    os.write(LOG, (" ".join(map(str, words)) + "\\n").encode())
def note_shard(step, shard):
    samples = [f"{epoch}:{index}" for epoch, index in zip(shard.epochs, shard.indices)]
    note("shard", step.round, step.rank, step.number, shard.number, *samples)
def note_commit(step):
    note("commit", step.round, step.rank, step.number)
"""


class ElasticCase(DdprunCase):
    python = sys.executable
    runs = 0

    def environment(self, **more):
        return {"PYTHONPATH": PACKAGE, "DDPRUN_LIB": LIBRARY, "PYTHON_EXEC": self.python, "PYTHONDONTWRITEBYTECODE": "1",
                "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **more}

    def script(self, *parts):
        path = self.path("script.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write("".join(textwrap.dedent(part) for part in parts))
        return path

    def job(self, *parts, nproc=3, options=("--max-restarts", "9"), env=None, head=HEAD):
        """Starts it. What its processes write goes to a folder of this run's."""
        self.runs += 1
        self.folder = self.path(f"run{self.runs}")
        os.mkdir(self.folder)
        return self.start("--nproc-per-node", nproc, *options, self.script(head, *parts),
                          env=self.environment(D=self.folder, FULL=str(nproc), **(env or {})))

    def alone(self, *parts, code=0):
        """Runs it to its end without a launcher, where a process may have several Jobs."""
        self.runs += 1
        self.folder = self.path(f"run{self.runs}")
        os.mkdir(self.folder)
        job = self.start_program([self.python, "-B", self.script(HEAD, *parts)], env=self.environment(D=self.folder))
        self.assertEqual(job.wait(), code, job.text())
        return job

    def ended(self, *parts, code=0, **options):
        """Runs it to its end."""
        job = self.job(*parts, **options)
        self.finish(job, code, PATIENCE)
        return job

    def said(self, job, pattern):
        """What ranks have printed as `pattern`, without their prefix."""
        return re.findall(r"(?m)^\[\w+\]:(" + pattern + r")\n", job.out())

    def logs(self):
        """{pid: text}."""
        found = {}
        for name in sorted(os.listdir(self.folder)):
            if name.endswith(".log"):
                with open(os.path.join(self.folder, name), encoding="ascii") as file:
                    found[name[:-4]] = file.read()
        return found

    def assert_each_sample_once(self, length, shards, steps):
        self.assertEqual(sample_count.judge(self.logs(), length, shards, steps), [])

    def commits(self):
        """{pid: [step, ...]}"""
        found = collections.defaultdict(list)
        for pid, text in self.logs().items():
            found[pid] += [int(step) for step in re.findall(r"(?m)^commit \d+ \d+ (\d+)$", text)]
        return found
