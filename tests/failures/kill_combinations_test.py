"""kill -9 of launcher, agents and daemon in every combination, with a cgroup and without one: nothing stays.

Each worker has detached a setsid child, a daemonised one and a stopped one, all deaf to SIGTERM.
"""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import time
import unittest

import paths  # noqa: F401
import ddprun_case
import kill_test
from ddprun_case import DDPRUN, DdprunCase, PROMISED, env_to, send_signal, shell, wait_until
from kill_test import HARD_TO_KILL, OFFSPRING, WAIT

# As on a machine that gives us no cgroup tree of version 2.
WITHOUT_CGROUPS = ["unshare", "--mount", "--propagation", "private", "sh", "-c",
                   'grep -q cgroup2 /proc/mounts && { umount -l /sys/fs/cgroup/unified 2>/dev/null || '
                   'umount -l /sys/fs/cgroup; }; exec "$@"', "sh"]


def can_unshare():
    return bool(shutil.which("unshare")) and subprocess.run(
        [*WITHOUT_CGROUPS, "true"], capture_output=True, timeout=20, check=False).returncode == 0


class EveryCombination(DdprunCase):
    def started(self, prefix=()):
        job = self.start_program([*prefix, DDPRUN, "-v", "--local-nodes", "2", "--nproc-per-node", "2",
                                  *shell(HARD_TO_KILL + WAIT)])
        self.wait_for_workers(4, jobs=[job])
        wait_until(lambda: kill_test.NothingStays.offspring(job) == OFFSPRING * 4,
                   lambda: f"{OFFSPRING * 4} grandchildren: {job.processes()}")
        for name in os.listdir(self.dir):
            if name.startswith("env."):
                os.unlink(self.path(name))
        return job

    def kill_all_of(self, job, names, reverse):
        agents, daemon = job.agents(), job.daemon()
        self.assertEqual(len(agents), 2, job.processes())
        victims = {"launcher": [job], "agents": agents, "daemon": [daemon]}
        chosen = [v for name in names for v in victims[name]]
        since = time.monotonic()
        send_signal(reversed(chosen) if reverse else chosen, signal.SIGKILL)
        return since

    def every_combination(self, prefix=()):
        for size in (1, 2, 3):
            for names in itertools.combinations(("launcher", "agents", "daemon"), size):
                if names == ("daemon",):
                    continue  # The run goes on; see kill_test.
                for reverse in (False, True):
                    with self.subTest(names=names, reverse=reverse):
                        job = self.started(prefix)
                        since = self.kill_all_of(job, names, reverse)
                        took = self.assert_nothing_left(job, since=since)
                        self.report(f"{' + '.join(names)}: nothing left after {took * 1000:.0f} ms")
                        self.assertEqual(job.wait(), 137)
                        self.assert_no_folder_left()

    def test_with_what_this_machine_has(self):
        self.every_combination()
        folders = [folder for folder in map(self.cgroup.of, self.jobs) if folder]
        if folders:
            self.report("in a cgroup of its own")
            wait_until(lambda: not any(map(os.path.exists, folders)), lambda: f"the end of the cgroups {folders}")

    @unittest.skipUnless(can_unshare(), "a mount namespace needs root")
    def test_without_cgroups(self):
        job = self.started(WITHOUT_CGROUPS)
        self.assertIn("without a cgroup of its own: no cgroup tree of version 2", job.err())
        job.signal(signal.SIGKILL)
        job.wait()
        self.assert_nothing_left(job)
        self.every_combination(WITHOUT_CGROUPS)

    def test_a_stopped_agent_is_no_refuge(self):
        """The launcher dies while an agent stands still and so cannot see it: the keeper kills it."""
        job = self.started()
        for agent in job.agents():
            os.kill(agent.pid, signal.SIGSTOP)
        since = time.monotonic()
        job.signal(signal.SIGKILL)
        took = self.assert_nothing_left(job, since=since)
        self.report(f"nothing left after {took * 1000:.0f} ms")

    def test_a_stranger_with_a_similar_mark_is_spared(self):
        """Only what carries the job's whole mark is killed."""
        job = self.started()
        worker = next(p for p in job.processes() if p.argv[0] == "sleep")
        with open(f"/proc/{worker.pid}/environ", "rb") as f:
            mark = next(e for e in f.read().split(b"\0") if e.startswith(b"DDPRUN_JOB=")).decode()
        strangers = [subprocess.Popen(["sleep", "604"], env={"PATH": os.environ["PATH"], **env})
                     for env in ({"DDPRUN_JOB": mark.split("=")[1] + "0"}, {"X" + mark.split("=")[0]: "1"},
                                 {"OTHER": mark})]
        try:
            since = self.kill_all_of(job, ("launcher", "agents", "daemon"), False)
            self.assert_nothing_left(job, since=since)
            self.assertEqual([s.poll() for s in strangers], [None] * 3)
        finally:
            for stranger in strangers:
                stranger.kill()
                stranger.wait(30)

    def test_the_keeper_too(self):
        """More than is promised. Workers die with their agent; what they had detached has nobody left who
        could know of it, and is found in the job's cgroup, if there is one, by an operator."""
        job = self.started()
        left = self.cgroup.of(job)
        keepers = job.keepers()
        self.assertEqual(len(keepers), 1)
        agents = job.agents()
        workers = {p.pid for p in job.processes()
                   if p.ppid in [a.pid for a in agents] and p.argv[0] == "/bin/sh"}
        self.assertEqual(len(workers), 4)
        os.kill(job.pid, signal.SIGSTOP)  # Else it may start another keeper in time.
        send_signal([*keepers, *agents, job.daemon(), job], signal.SIGKILL)
        wait_until(lambda: not workers & {p.pid for p in job.processes()}, job.text, PROMISED)
        self.report(f"workers gone, detached processes left: {len(job.processes())}")
        for folder in self.folders_left():
            shutil.rmtree(folder)
        if left is None:
            return
        with open(os.path.join(left, "cgroup.kill"), "w", encoding="ascii") as f:
            f.write("1")
        self.assert_nothing_left(job)
        for folder, _, _ in os.walk(left, topdown=False):
            wait_until(lambda folder=folder: not os.path.exists(folder) or self.removed(folder),
                       f"{folder} to be empty")

    def test_a_killed_keeper_is_replaced_and_the_next_knows_the_same(self):
        job = self.started()
        for _ in range(2):
            (keeper,) = wait_until(job.keepers, job.text)
            send_signal([keeper], signal.SIGKILL)
            wait_until(lambda pid=keeper.pid: [k for k in job.keepers() if k.pid != pid], job.text)
        self.assertEqual(len(re.findall(r"warning: the keeper \(pid \d+\) was killed; starting another", job.err())), 2)
        for agent in job.agents():  # They cannot clean up.
            os.kill(agent.pid, signal.SIGSTOP)
        job.signal(signal.SIGKILL)
        self.assert_nothing_left(job)
        self.assertEqual(job.wait(), 137)
        self.assert_no_folder_left()

    @staticmethod
    def removed(folder):
        try:
            os.rmdir(folder)
            return True
        except OSError:
            return False


@unittest.skipUnless(os.geteuid() == 0, "to make a setuid program needs root")
class SetuidWorkers(DdprunCase):
    """Started by somebody who is not root, without a cgroup. The kernel clears the death signal of a setuid
    program, and nobody but root may read its environment."""

    SCRIPT = "setsid sleep 602 & (sleep 603 &) ; exec sleep 601"

    def started(self):
        if os.statvfs(self.dir).f_flag & os.ST_NOSUID:
            self.skipTest(f"{self.dir} is mounted nosuid")
        os.chmod(self.dir, 0o755)
        shutil.copy("/bin/sh", self.path("setuid_sh"))
        os.chmod(self.path("setuid_sh"), 0o4755)
        uid = 610_000_000 + os.getpid()
        job = self.start_program(["setpriv", f"--reuid={uid}", "--regid=65534", "--clear-groups", DDPRUN, "-v",
                                  "--local-nodes", "2", "--nproc-per-node", "2",
                                  self.path("setuid_sh"), "-p", "-c", self.SCRIPT])
        wait_until(lambda: self.sleepers(job) == 12, lambda: f"12 sleepers: {job.processes()}\n{job.text()}")
        for process in job.processes():
            if process.argv[0] == "sleep":
                with open(f"/proc/{process.pid}/status", encoding="ascii") as f:
                    self.assertRegex(f.read(), rf"Uid:\s{uid}\s0\s")
        return job

    @staticmethod
    def sleepers(job):
        return sum(p.argv[0] == "sleep" for p in job.processes())

    def test_every_combination(self):
        for size in (1, 2, 3):
            for names in itertools.combinations(("launcher", "agents", "keeper"), size):
                if names in (("keeper",), ("launcher", "agents", "keeper")):
                    continue  # Replaced; and what cannot be won.
                with self.subTest(names=names):
                    job = self.started()
                    victims = {"launcher": [job], "agents": job.agents(), "keeper": job.keepers()}
                    self.assertEqual([len(v) for v in victims.values()], [1, 2, 1])
                    chosen = [v for name in names for v in victims[name]]
                    for victim in chosen:  # So that none has the time to clean up after another.
                        os.kill(victim.pid, signal.SIGSTOP)
                    since = time.monotonic()
                    send_signal(chosen, signal.SIGKILL)
                    took = self.assert_nothing_left(job, since=since)
                    self.report(f"{' + '.join(names)}: nothing left after {took * 1000:.0f} ms")
                    self.assertEqual(job.wait(), 137)
                    self.assert_no_folder_left()


class AgentKilled(DdprunCase):
    def test_the_launcher_writes_the_verdict_and_removes_the_folder(self):
        job = self.start("--error-file", self.path("verdict.json"), *shell(env_to() + WAIT))
        self.wait_for_workers(1, jobs=[job])
        (agent,) = job.agents()
        self.assertTrue(self.folders_left())
        send_signal([agent], signal.SIGKILL)
        self.finish(job, 137)
        with open(self.path("verdict.json"), encoding="utf-8") as f:
            verdict = json.load(f)
        self.assertEqual((verdict["kind"], verdict["exit_code"]), ("agent_killed", 137))
        self.assertIn(f"the agent (pid {agent.pid}) was killed by SIGKILL", verdict["text"])


if __name__ == "__main__":
    ddprun_case.main()
