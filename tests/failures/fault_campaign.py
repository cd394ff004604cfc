"""The fault campaign: each kind of fault of fault_kinds.py, at a random rank, again and again; then the
verdict's JSON is asked which rank failed and how. Prints a confusion matrix. As a test (no arguments)
each kind once; docs/testing.md has the result of `--repetitions 10`.

    DDPRUN_BIN=build/dev/bin python3 -B tests/failures/fault_campaign.py [--repetitions N] [--seed N] [--only TEXT]
"""

import argparse
import collections
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

import paths  # noqa: F401
import ddprun_case
import fault_kinds
from ddprun_case import DDPRUN, Job, Network, free_port, wait_until

NODES, PER_NODE = 2, 2
BACKENDS = ("shm", "gloo")
LIMIT = 180.0  # Four imports of PyTorch take a minute on a busy machine.
WALL_CLOCK_AHEAD = ["faketime", "-m", "--exclude-monotonic", "-f", "+3s"]


class MemoryCgroup:
    """A child of our own memory cgroup with little memory, or why there is none."""

    def __init__(self):
        self.path, self.missing = None, ""
        try:
            with open("/proc/self/cgroup", encoding="ascii") as f:
                lines = [line.strip().split(":", 2) for line in f]
            v1 = [path for _, controllers, path in lines if "memory" in controllers.split(",")]
            if v1:
                self._make("/sys/fs/cgroup/memory" + v1[0], "memory.limit_in_bytes")
            else:
                self._make("/sys/fs/cgroup" + [path for n, _, path in lines if n == "0"][0], "memory.max")
        except (OSError, IndexError) as error:
            self.missing = f"no memory cgroup can be made: {error}"

    def _make(self, parent, limit):
        path = os.path.join(parent, f"ddprun-test-{os.getpid()}")
        os.mkdir(path)
        self.path = path
        with open(os.path.join(path, limit), "w", encoding="ascii") as f:
            f.write(str(64 << 20))

    def remove(self):
        if self.path:
            wait_until(lambda: self._gone(), "the cgroup to be empty")

    def _gone(self):
        try:
            os.rmdir(self.path)
        except OSError:
            return False
        return True


class FullDisk:
    """A path on a small tmpfs that is filled by whoever writes to it; /dev/full without root."""

    def __init__(self, folder):
        self.mount = os.path.join(folder, "disk")
        os.mkdir(self.mount)
        command = ["mount", "-t", "tmpfs", "-o", "size=256k", "ddprun-test", self.mount]
        self.mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, timeout=20).returncode == 0
        self.path = os.path.join(self.mount, "checkpoint") if self.mounted else "/dev/full"

    def remove(self):
        if self.mounted:
            subprocess.run(["umount", "-l", self.mount], timeout=20)


def wall_clock_cannot_be_skewed():
    """Why not, or "". What a sanitizer is built into wants its own library to be loaded first."""
    if not shutil.which("faketime"):
        return "there is no faketime"
    there = subprocess.run([*WALL_CLOCK_AHEAD, "date", "+%s"], capture_output=True, text=True, timeout=20, check=True).stdout
    if float(there) - time.time() < 1.5:
        return "faketime does not move it"
    return "a sanitizer does not stand faketime's library" if ddprun_case.is_sanitized() else ""


class Campaign:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.folder = tempfile.mkdtemp(prefix="ddprun-faults-")
        self.cgroup, self.disk = MemoryCgroup(), FullDisk(self.folder)
        cannot_name = "" if os.geteuid() == 0 else "host names need root"
        self.no_wall_clock = wall_clock_cannot_be_skewed()
        self.kinds = [*fault_kinds.sdk_kinds(), *fault_kinds.python_kinds(self.folder),
                      *fault_kinds.start_kinds(self.folder),
                      *fault_kinds.host_kinds(cannot_name, Network.missing() or "")]
        for kind in self.kinds:
            if kind.env.get("FAULT") == "oom_kill" and not self.cgroup.path:
                kind.missing = self.cgroup.missing

    def close(self):
        self.cgroup.remove()
        self.disk.remove()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, kind):
        """(what the verdict says, what is true) of one run."""
        culprits = sorted(self.random.sample(range(NODES * PER_NODE), kind.culprits))
        scene = tempfile.mkdtemp(dir=self.folder)
        env = {"CULPRITS": ",".join(map(str, culprits)), "PEERS": "lockstep" if kind.lockstep else "wait", "D": scene, "OP_SECONDS": "60",
               "DDPRUN_BACKEND": self.random.choice(BACKENDS), "FULL_DISK": self.disk.path,
               "CGROUP_PROCS": f"{self.cgroup.path}/cgroup.procs", **kind.env}
        if env.get("SLURM_JOB_END_TIME") == "now":
            env["SLURM_JOB_END_TIME"] = str(int(time.time()))
        run = {"local": self._local, "hosts": self._hosts, "wire": self._wire}[kind.where]
        try:
            code, said, text = run(kind, scene, env)
        finally:
            shutil.rmtree(scene, ignore_errors=True)
            if self.disk.mounted and os.path.exists(self.disk.path):
                os.unlink(self.disk.path)
        return Outcome(kind, culprits, code, said, text)

    @staticmethod
    def _argv(kind, scene, name, *more):
        return [DDPRUN, *more, "--nproc-per-node", str(PER_NODE), "--shutdown-timeout", str(kind.shutdown),
                "--rdzv-conf", "join_timeout=30", "--error-file", os.path.join(scene, name)]

    def _local(self, kind, scene, env):
        argv = self._argv(kind, scene, "a", "--local-nodes", str(NODES)) + kind.worker
        return self._ends([Job(argv, scene, env)], scene)

    def _hosts(self, kind, scene, env):
        """Two commands with host names of their own; the second one's clock may be elsewhere."""
        common = ["--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
        env = {**env, "DDPRUN_TOKEN": "a token of the tests", "DDPRUN_BACKEND": "gloo", "DDPRUN_SOCKET_IFNAME": "lo"}
        jobs = []
        for name, host in (("a", "1"), ("b", "0")):
            argv = self._argv(kind, scene, name, *common) + ["--node-rank", "0" if name == "a" else "1"]
            conf = f"is_host={host}" + (",join_timeout=2" if kind.disturb == "kill agent" else "")
            argv[argv.index("join_timeout=30")] = conf
            elsewhere = name == "b" and kind.disturb == "skew clock"
            skew = ["--time", "--monotonic", "3", "--boottime", "3"] if elsewhere else []
            wall = WALL_CLOCK_AHEAD if elsewhere and not self.no_wall_clock else []
            script = f'hostname node{name}; exec "$@"'
            jobs.append(Job(["unshare", "--uts", *skew, "sh", "-c", script, "sh", *wall, *argv, *kind.worker], scene, env))
        if kind.disturb == "kill agent":
            self._wait_for_sleepers(jobs)
            victim = [p for p in jobs[1].processes() if p.ppid == jobs[1].pid and p.name.startswith("ddprun")]
            os.kill(victim[0].pid, 9)
        return self._ends(jobs, scene)

    def _wire(self, kind, scene, env):
        env = {**env, "DDPRUN_TOKEN": "a token of the tests"}
        with Network() as net:
            common = ["--nnodes", "2", "--rdzv-endpoint", f"{net.addresses[0]}:29400"]
            jobs = []
            for name, space in zip("ab", net.names):
                argv = self._argv(kind, scene, name, *common)
                argv[argv.index("join_timeout=30")] = f"join_timeout=3,is_host={int(name == 'a')},close_timeout=2"
                script = f'hostname node{name}; exec "$@"'
                jobs.append(Job(["ip", "netns", "exec", space, "unshare", "--uts", "sh", "-c", script, "sh", *argv,
                                 *kind.worker], scene, env))
            self._wait_for_sleepers(jobs)
            net.cut()
            return self._ends(jobs, scene)

    @staticmethod
    def _wait_for_sleepers(jobs):
        def all_there():
            return all(sum(p.argv[0] == "/bin/sleep" for p in job.processes()) == PER_NODE for job in jobs)

        wait_until(all_there, lambda: "workers\n" + "\n".join(job.text() for job in jobs))

    @staticmethod
    def _ends(jobs, scene):
        """The first command's exit code, verdict and words; what is left of the others is ended."""
        try:
            code = jobs[0].wait(LIMIT)
            if jobs[-1].argv.count(WALL_CLOCK_AHEAD[0]):
                jobs[-1].wait(LIMIT)  # A faketime that is killed leaves its shared memory behind.
            path = os.path.join(scene, "a")
            verdict = {}
            if os.path.exists(path):
                with open(path, encoding="utf-8") as f:
                    verdict = json.load(f)
            return code, verdict, "\n".join(job.text() for job in jobs)
        finally:
            for job in jobs:
                job.end()


def adds_up(ledger):
    """Every second of every place is in one class; a microsecond may be lost in each."""
    if not ledger or ledger["places"] < 1 or ledger["wall_s"] <= 0:
        return False
    parts = ledger["parts_s"].values()
    return min(parts) >= 0 and abs(sum(parts) - ledger["places"] * ledger["wall_s"]) < 1e-4


class Outcome:
    def __init__(self, kind, culprits, code, verdict, text):
        self.kind, self.culprits, self.code, self.verdict, self.text = kind, culprits, code, verdict, text
        first = verdict.get("first_cause") or {}
        lost = verdict.get("kind") == "node_lost"
        self.said = "node_lost" if lost else first.get("fault", verdict.get("kind", "no verdict"))
        self.rank = first.get("rank")
        if lost:
            blamed = re.findall(r"(node\w) (?:was silent|closed its connection)", verdict["text"])
            self.right_rank = blamed == ["nodeb"]
        else:
            self.right_rank = self.rank is not None and (kind.any_rank or self.rank in culprits)
        self.accused_innocent = not self.right_rank and (self.rank is not None or lost)
        says = re.search(kind.says, verdict.get("text", ""), re.DOTALL) and "network" not in verdict.get("advice", "")
        self.right_class = self.said == kind.fault and bool(says)
        self.right_code = code == kind.code if kind.code is not None else code != 0
        self.right_ledger = adds_up(verdict.get("ledger"))

    def right(self):
        return self.right_rank and self.right_class and self.right_code and self.right_ledger

    def complaint(self):
        return (f"{self.kind.name}: rank(s) {self.culprits} should be '{self.kind.fault}' with code {self.kind.code}; said "
                f"rank {self.rank} '{self.said}' with code {self.code}\n{json.dumps(self.verdict, indent=1)}\n{self.text}")


def confusion_matrix(outcomes):
    table = collections.Counter((o.kind.fault, o.said) for o in outcomes)
    lines = ["| was | said | runs |", "|--|--|--|"]
    for (was, said), count in sorted(table.items(), key=lambda entry: (entry[0][0], -entry[1])):
        lines.append(f"| {was} | {said if said == was else '**' + said + '**'} | {count} |")
    return "\n".join(lines)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--only", default="")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    if not os.access(fault_kinds.WORKER, os.X_OK) or not os.access(DDPRUN, os.X_OK):
        ddprun_case.skip_all("DDPRUN_BIN names no build with its tests")
    campaign = Campaign(arguments.seed)
    began = time.monotonic()
    kinds = [kind for kind in campaign.kinds if arguments.only in kind.name]
    for kind in kinds:
        if kind.missing:
            print(f"skipped {kind.name}: {kind.missing}")
    if campaign.no_wall_clock:
        print(f"the wall clock is the same on all nodes: {campaign.no_wall_clock}")
    try:
        outcomes = []
        for repetition in range(arguments.repetitions):
            if repetition > 0:
                print(f"{repetition} of {arguments.repetitions} repetitions, {len(outcomes)} runs, {time.monotonic() - began:.0f} s", flush=True)
            for kind in [k for k in kinds if not k.missing]:
                outcomes.append(campaign.run(kind))
                if not outcomes[-1].right():
                    print("WRONG " + outcomes[-1].complaint(), flush=True)
    finally:
        campaign.close()
    count = lambda what: sum(map(what, outcomes))
    print(confusion_matrix(outcomes))
    print(f"{len({o.kind.name for o in outcomes})} kinds, {len(outcomes)} runs, seed {arguments.seed}, "
          f"{time.monotonic() - began:.0f} s: right rank {count(lambda o: o.right_rank)}, right class "
          f"{count(lambda o: o.right_class)}, right exit code {count(lambda o: o.right_code)}, "
          f"innocents accused {count(lambda o: o.accused_innocent)}, ledgers that add up {count(lambda o: o.right_ledger)}")
    sys.exit(0 if outcomes and all(o.right() for o in outcomes) else 1)


if __name__ == "__main__":
    main()
