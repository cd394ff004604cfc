#!/usr/bin/env python3
"""A worker of several is killed: how long until the others go on, until all are back, and how many steps it costs.

    bench/elastic.py [--build build/dev] [--rounds 5] [--ranks 8] [--state-mb 64] [--step-ms 50]
                     [--spares 1] [--deaths-every 10 --seconds 60] [--torch-python PYTHON] [--only NAME]

Contestants, one node, the same steps: ddprun with a Job (bench_elastic_worker job), without and with spares, ddprun whose workers restart from a
checkpoint, torchrun the same (--monitor_interval 0.1, its fastest useful one), and torchft, a replica group a rank, where
PYTHON has it. Checkpoints are of every tenth step, in a folder of memory; torchft's processes are started again by this
script at once, and its time-outs are as short as they may be without ending steps that are merely slow.

  on     from SIGKILL to the first new step that all ranks of its world have committed
  full   from SIGKILL to the first such step of the full size
  useful with --seconds: a random rank dies every --deaths-every seconds; steps made, of those that as long a time without
         deaths would have made

For the Job, tests/failures/sample_count.py must find each sample in exactly one committed step of each epoch.
"""
import argparse
import collections
import glob
import itertools
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from side_by_side import HERE, PYTHON, ROOT, add_build_option, free_port, has_module, has_torch, spread

sys.path.insert(0, os.path.join(ROOT, "tests", "failures"))
import sample_count  # noqa: E402

PATIENCE = 180.0  # Seconds for anything; a start of eight interpreters takes a while.
Stamp = collections.namedtuple("Stamp", "ns rank world step pid")


def read_stamps(folder):
    stamps = []
    for path in glob.glob(os.path.join(folder, "*.stamps")):
        with open(path, encoding="ascii") as f:
            lines = f.read().split("\n")[:-1]
        pid = int(os.path.basename(path).split(".")[0])
        for line in lines:
            rank, world, step, ns = map(int, line.split())
            stamps.append(Stamp(ns, rank, world, step, pid))
    return sorted(stamps)


def complete_steps(stamps):
    """[(when the last of its ranks committed it, step, world)], in the order of time."""
    ranks, done = collections.defaultdict(set), []
    for stamp in stamps:
        of_step = ranks[stamp.step, stamp.world]
        if stamp.rank not in of_step:
            of_step.add(stamp.rank)
            if len(of_step) == stamp.world:
                done.append((stamp.ns, stamp.step, stamp.world))
    return done


def wait_for(contestant, condition, what):
    until = time.monotonic() + PATIENCE
    while True:
        if contestant.jobs[0].poll() is not None:
            raise SystemExit(f"its launcher has ended: {contestant.words()}")
        value = condition()
        if value:
            return value
        if time.monotonic() > until:
            raise SystemExit(f"not within {PATIENCE:g} s: {what}; {contestant.words()}")
        time.sleep(0.02)


class Contestant:
    """A run of some kind. What a worker writes is in `folder`."""
    restarts = 1_000_000

    def __init__(self, options):
        self.options = options
        self.folder = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.env = dict(os.environ, STAMPS=self.folder, STATE_MB=str(options.state_mb), STEP_MS=str(options.step_ms),
                        CHECKPOINT_EVERY="10", OMP_NUM_THREADS="1", TORCHFT_TIMEOUT="5")
        self.log = open(os.path.join(self.folder, "log"), "w", encoding="utf-8")
        self.jobs = []
        self.begin()

    def start(self, argv, **more):
        job = subprocess.Popen(argv, env={**self.env, **more}, stdout=self.log, stderr=self.log, start_new_session=True)
        self.jobs.append(job)
        return job

    def begin(self):
        raise NotImplementedError

    def killed(self, pid):
        """After a worker was: for who has no launcher."""

    def has_spares(self):
        """All that it is to have."""
        return True

    def problem(self):
        return ""

    def words(self):
        with open(os.path.join(self.folder, "log"), encoding="utf-8", errors="replace") as f:
            return f.read()[-2000:]

    def end(self):
        for job in self.jobs:
            job.terminate()
        for job in self.jobs:
            try:
                job.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
        self.log.close()
        problem = self.problem()
        words = self.words()
        shutil.rmtree(self.folder)
        if problem:
            raise SystemExit(f"{problem}\n{words}")


class DdprunJob(Contestant):
    how = "job"
    spares = 0

    def begin(self):
        build = self.options.build
        self.start([os.path.join(build, "bin", "ddprun"), "--standalone", "--nproc-per-node", str(self.options.ranks),
                    "--max-restarts", str(self.restarts), "--spares", str(self.spares), os.path.join(build, "bin", "bench_elastic_worker"), self.how])

    def has_spares(self):
        pids = [os.path.basename(path).split(".")[0] for path in glob.glob(os.path.join(self.folder, "*.samples"))]
        return sum(os.path.exists(f"/proc/{pid}") for pid in pids) == self.options.ranks + self.spares

    def problem(self):
        logs = {}
        for path in glob.glob(os.path.join(self.folder, "*.samples")):
            with open(path, encoding="ascii") as f:
                logs[path] = f.read()
        steps = {int(line.split()[3]) for text in logs.values() for line in text.split("\n")[:-1] if line[0] == "c"}
        wrong = sample_count.judge(logs, 1000, 16, max(steps, default=-1) + 1)
        return "; ".join(wrong[:5])


class DdprunSpares(DdprunJob):
    def begin(self):
        self.spares = self.options.spares
        super().begin()


class DdprunCheckpoints(DdprunJob):
    how = "checkpoints"

    def has_spares(self):
        return True

    def problem(self):
        return ""


class Torchrun(Contestant):
    def begin(self):
        self.start([self.options.torch_python, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc_per_node",
                    str(self.options.ranks), "--max_restarts", str(self.restarts), "--monitor_interval", "0.1",
                    "--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{free_port()}", "--rdzv_id", "bench",
                    "-r", "9:1", "-t", "9:1",  # Debian's 1.13 fails without.
                    os.path.join(HERE, "programs", "elastic_torch.py"), "checkpoints"])


class Torchft(Contestant):
    def begin(self):
        port = free_port()
        self.env["TORCHFT_LIGHTHOUSE"] = f"http://127.0.0.1:{port}"
        self.start([os.path.join(os.path.dirname(self.options.torch_python), "torchft_lighthouse"), "--bind",
                    f"127.0.0.1:{port}", "--min_replicas", "1", "--join_timeout_ms", "1000", "--quorum_tick_ms", "10",
                    "--heartbeat_timeout_ms", "2000"])
        self.replicas = {}
        for replica in range(self.options.ranks):
            self.start_replica(str(replica))

    def start_replica(self, replica):
        job = self.start([self.options.torch_python, os.path.join(HERE, "programs", "elastic_torch.py"), "torchft"], REPLICA=replica)
        self.replicas[job.pid] = replica

    def killed(self, pid):
        self.start_replica(self.replicas[pid])


def live_workers(contestant, stamps):
    """{pid: its last stamp} of those that have committed one of the last steps."""
    last = {stamp.pid: stamp for stamp in stamps}
    newest = max((stamp.step for stamp in stamps), default=0)
    return {pid: stamp for pid, stamp in last.items()
            if stamp.step >= newest - 3 and os.path.exists(f"/proc/{pid}")
            and stamp.world == contestant.options.ranks}


def wait_until_full(contestant):
    """Until all ranks are there and have made some steps."""
    def full():
        stamps = read_stamps(contestant.folder)
        recent = [stamp for stamp in stamps if stamp.world == contestant.options.ranks][-10 * contestant.options.ranks:]
        steady = len(recent) == 10 * contestant.options.ranks and recent[0].ns == min(
            stamp.ns for stamp in stamps[-10 * contestant.options.ranks:])
        return steady and len(live_workers(contestant, stamps)) == contestant.options.ranks and stamps
    wait_for(contestant, contestant.has_spares, "the spares")
    time.sleep(0.5)  # The last of them opens its link.
    return wait_for(contestant, full, f"{contestant.options.ranks} ranks in step")


def kill_one(contestant, rng):
    """(when, the last step before it)"""
    stamps = read_stamps(contestant.folder)
    pid = rng.choice(sorted(live_workers(contestant, stamps)))
    time.sleep(rng.uniform(0, contestant.options.step_ms / 1000))
    when = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    contestant.killed(pid)
    last = max((stamp.step for stamp in read_stamps(contestant.folder) if stamp.ns <= when), default=-1)
    return when, last


def one_death(contestant, rng):
    """Seconds until the others go on, and until all are back."""
    wait_until_full(contestant)
    when, last = kill_one(contestant, rng)

    def after():
        done = [step for step in complete_steps(read_stamps(contestant.folder)) if step[0] > when and step[1] > last]
        full = [step for step in done if step[2] == contestant.options.ranks]
        return full and (done[0][0], full[0][0])
    on, full = wait_for(contestant, after, "a step of all ranks after the death")
    return (on - when) / 1e9, (full - when) / 1e9


def useful_steps(contestant, rng):
    """The share of steps that were made although a rank died every so often."""
    before = [ns for ns, _, _ in complete_steps(wait_until_full(contestant))]
    interval = statistics.median(b - a for a, b in itertools.pairwise(before[-11:]))
    begun = time.monotonic_ns()
    first = max(step for ns, step, _ in complete_steps(read_stamps(contestant.folder)) if ns <= begun)
    end = time.monotonic() + contestant.options.seconds
    deaths = 0
    while time.monotonic() < end:
        stamps = read_stamps(contestant.folder)
        if live_workers(contestant, stamps):
            kill_one(contestant, rng)
            deaths += 1
        time.sleep(max(0.0, min(contestant.options.deaths_every, end - time.monotonic())))
    over = time.monotonic_ns()
    made = max(step for ns, step, _ in complete_steps(read_stamps(contestant.folder)) if ns <= over) - first
    return made / ((over - begun) / interval), deaths


def run_with(kind, options, body):
    contestant = kind(options)
    try:
        return body(contestant)
    finally:
        contestant.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_build_option(parser, "bin/ddprun", "bin/bench_elastic_worker")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--state-mb", type=int, default=64)
    parser.add_argument("--step-ms", type=int, default=50)
    parser.add_argument("--deaths-every", type=float, default=10)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--torch-python", default=PYTHON)
    parser.add_argument("--only", help="contestants whose name contains this")
    parser.add_argument("--spares", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    kinds = {"ddprun, Job": DdprunJob, "ddprun, Job, spares": DdprunSpares, "ddprun, checkpoints": DdprunCheckpoints}
    if has_torch("torchrun", options.torch_python):
        kinds["torchrun, checkpoints"] = Torchrun
    if has_module("torchft", "torchft", options.torch_python, "pip install torchft-nightly"):
        kinds["torchft"] = Torchft
    kinds = {name: kind for name, kind in kinds.items() if (options.only or "") in name}
    rng = random.Random(options.seed)
    deaths = {name: [] for name in kinds}
    for _ in range(options.rounds):
        for name, kind in kinds.items():
            deaths[name].append(run_with(kind, options, lambda contestant: one_death(contestant, rng)))
            print(f"  {name}: on after {deaths[name][-1][0]:.3f} s, full after {deaths[name][-1][1]:.3f} s", flush=True)
    if options.rounds:
        print(f"{options.ranks} ranks, {options.state_mb} MB of state, steps of {options.step_ms} ms and more, "
              f"{options.rounds} rounds; seconds, median [min-max]\n{'':<24}{'on':>24}{'full':>24}")
    for name, times in deaths.items():
        if times:
            print(f"{name:<24}{spread([on for on, _ in times]):>24}{spread([full for _, full in times]):>24}")
    if options.seconds:
        for name, kind in kinds.items():
            share, number = run_with(kind, options, lambda contestant: useful_steps(contestant, rng))
            print(f"{name:<24} {number} deaths in {options.seconds:g} s: {100 * share:.1f} % useful steps", flush=True)


if __name__ == "__main__":
    main()
