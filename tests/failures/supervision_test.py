"""Workers that do not want to end, and signals that do not mean the end."""

import os
import signal
import subprocess
import time

import paths  # noqa: F401
import ddprun_case
from ddprun_case import DDPRUN, DdprunCase, PASS_GATE, PATIENCE, Process, env_to, shell, wait_until
from kill_combinations_test import WITHOUT_CGROUPS, can_unshare

WAIT = "while :; do sleep 600; done"

# Processes that fork faster than one can look, each in a session of its own. Its own limits: so many at a
# time by the pids controller, which the test must have, so many in all, and a minute.
BOMB = r"""
import mmap, os, signal, sys, time
started = mmap.mmap(-1, 8)
end = time.monotonic() + 60
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while time.monotonic() < end and int.from_bytes(started[:8], "little") < 100000:
    try:
        if os.fork() == 0:
            os.setsid()
            if os.fork() != 0:
                os._exit(0)
        started[:8] = (int.from_bytes(started[:8], "little") + 1).to_bytes(8, "little")
    except OSError:
        time.sleep(0.001)  # The limit.
    if os.path.exists(sys.argv[1]) is False:
        open(sys.argv[1], "w").close()
"""
PIDS_MAX = 150


class PidsCgroup:
    """A cgroup with a limit of its own on processes: of version 1 here, of version 2 elsewhere."""

    def __init__(self):
        self.path = None
        for root in ("/sys/fs/cgroup/pids", "/sys/fs/cgroup"):
            path = f"{root}/ddprun-test-{os.getpid()}"
            try:
                os.mkdir(path)
                with open(path + "/pids.max", "w", encoding="ascii") as f:
                    f.write(str(PIDS_MAX))
                self.path = path
                return
            except OSError:
                if os.path.isdir(path):
                    os.rmdir(path)

    def procs(self):
        with open(self.path + "/cgroup.procs", encoding="ascii") as f:
            return [int(line) for line in f]

    def prefix(self):
        """What a command line begins with to run in here."""
        return ["sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh"]

    def remove(self):
        for _ in range(400):
            for pid in self.procs():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            try:
                return os.rmdir(self.path)
            except OSError:
                time.sleep(0.02)


class ForkBomb(DdprunCase):
    def setUp(self):
        super().setUp()
        self.pids = PidsCgroup()
        if not self.pids.path:
            self.skipTest("there is no pids controller that we may use: too dangerous without")
        self.addCleanup(self.pids.remove)

    def explode(self, prefix=()):
        mark = self.path("exploded")
        # LeakSanitizer needs another process as ddprun ends, which the limit may refuse: then it exits with 1.
        env = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}
        job = self.start_program([*self.pids.prefix(), *prefix, DDPRUN, "--standalone",
                                  "--shutdown-timeout", "0.2", "python3", "-c", BOMB, mark], env=env)
        wait_until(lambda: os.path.exists(mark) and len(self.pids.procs()) > PIDS_MAX / 2,
                   lambda: f"an explosion in {self.pids.procs()}: {job.text()}")
        return job

    def ended(self, since):
        wait_until(lambda: not self.pids.procs(), lambda: f"the end of {self.pids.procs()}", 20)
        self.report(f"nothing left {(time.monotonic() - since) * 1000:.0f} ms later")

    def test_sigterm_ends_it(self):
        job = self.explode()
        since = time.monotonic()
        job.signal(signal.SIGTERM)
        self.assertEqual(job.wait(), 143, job.text())
        self.ended(since)

    def test_sigterm_ends_it_without_cgroups(self):
        if not can_unshare():
            self.skipTest("a mount namespace needs root")
        job = self.explode(WITHOUT_CGROUPS)
        since = time.monotonic()
        job.signal(signal.SIGTERM)
        self.assertEqual(job.wait(), 143, job.text())
        self.ended(since)

    def test_kill_9_of_the_launcher_ends_it(self):
        job = self.explode()
        since = time.monotonic()
        job.signal(signal.SIGKILL)
        self.ended(since)
        job.wait()

    def test_kill_9_of_the_agent_ends_it(self):
        job = self.explode()
        since = time.monotonic()
        os.kill(job.agents()[0].pid, signal.SIGKILL)
        self.assertEqual(job.wait(), 137)
        self.ended(since)


class UninterruptibleSleep(DdprunCase):
    """A worker that writes to a frozen file system: nothing ends it before that thaws."""

    def setUp(self):
        super().setUp()
        self.mount, image = self.path("frozen"), self.path("image")
        os.mkdir(self.mount)
        with open(image, "wb") as f:
            f.truncate(32 << 20)
        self.run_or_skip("mkfs.ext4", "-q", image)
        self.run_or_skip("mount", "-o", "loop", image, self.mount)
        self.addCleanup(subprocess.run, ["umount", "-l", self.mount], timeout=20, check=False)
        self.run_or_skip("fsfreeze", "-f", self.mount)
        self.addCleanup(self.thaw)

    def run_or_skip(self, *command):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        except FileNotFoundError as error:
            self.skipTest(str(error))
        if done.returncode != 0:
            self.skipTest(f"{command[0]}: {done.stderr.strip()}")

    def thaw(self):
        subprocess.run(["fsfreeze", "-u", self.mount], capture_output=True, timeout=20, check=False)

    def test_it_is_named_and_left_behind_and_the_other_rank_is_blamed(self):
        gate, pid_file = self.gate(), self.path("pid")
        job = self.start("--nproc-per-node", "2", "--shutdown-timeout", "0.5", *shell(
            f"if [ $RANK = 0 ]; then echo $$ > {pid_file}; echo > {self.mount}/checkpoint; fi; {PASS_GATE} exit 3"))
        wait_until(lambda: os.path.exists(pid_file) and os.path.getsize(pid_file) > 0, job.text)
        with open(pid_file, encoding="ascii") as f:
            pid = int(f.read())
        wait_until(lambda: Process(pid).state == "D", job.text)
        gate.open()
        self.assertEqual(job.wait(PATIENCE), 3, job.text())
        self.assertRegex(job.err(), f"survives SIGKILL: local rank 0, pid {pid} .*uninterruptible sleep")
        self.assertRegex(job.err(), "rank 1 .* failed first: it exited with 3")
        self.assertEqual(Process(pid).state, "D")
        self.thaw()
        self.assert_nothing_left(job)


class Pausing(DdprunCase):
    def states(self, pids):
        return {Process(pid).state for pid in pids}

    def test_ctrl_z_stops_workers_and_launcher_and_fg_goes_on(self):
        """Agents keep beating: with a silence limit of 2 s nobody is lost in a pause of 4 s."""
        gate = self.gate()
        job = self.start("--local-nodes", "2", "--rdzv-conf", "heartbeat_timeout=2",
                         *shell(env_to() + "echo $$ > $D/pid.$RANK; " + PASS_GATE))
        self.wait_for_workers(2, jobs=[job])
        wait_until(lambda: all(os.path.exists(self.path(f"pid.{r}")) for r in (0, 1)), job.text)
        workers = []
        for rank in (0, 1):
            with open(self.path(f"pid.{rank}"), encoding="ascii") as f:
                workers.append(int(f.read()))
        job.signal(signal.SIGTSTP)
        wait_until(lambda: self.states([*workers, job.pid]) == {"T"}, lambda: str(job.processes()))
        paused = time.monotonic()
        wait_until(lambda: time.monotonic() > paused + 4, "a pause")
        self.assertEqual(self.states([*workers, job.pid]), {"T"})
        job.signal(signal.SIGCONT)
        wait_until(lambda: "T" not in self.states([*workers, job.pid]), lambda: str(job.processes()))
        gate.open()
        self.finish(job)
        self.assertNotIn("lost", job.err())

    def test_a_handled_user_signal_comes_once_and_ends_the_run(self):
        script = ("trap 'echo got it; n=1' USR1; " + env_to() +
                  "while [ -z \"$n\" ]; do sleep 0.02; done; sleep 0.3; exit 0")
        job = self.start("--signals-to-handle", "SIGTERM,SIGUSR1", *shell(script))
        self.wait_for_workers(1, jobs=[job])
        job.signal(signal.SIGUSR1)
        self.finish(job, 128 + signal.SIGUSR1)
        self.assertEqual(job.out().count("got it"), 1, job.text())

    def test_any_signal_may_be_one_to_handle(self):
        job = self.start("--signals-to-handle", "SIGALRM", *shell(env_to() + WAIT))
        self.wait_for_workers(1, jobs=[job])
        job.signal(signal.SIGALRM)
        self.finish(job, 128 + signal.SIGALRM)


class Detached(DdprunCase):
    def test_a_worker_that_forks_away_is_reaped_with_the_run(self):
        """It ends well at once; what it detached, deaf and in a session of its own, goes with the run."""
        job = self.start("--standalone", *shell("setsid sh -c 'trap \"\" TERM HUP INT; sleep 605' & exit 0"))
        self.finish(job)

    def test_what_it_detached_lives_as_long_as_its_siblings(self):
        gate = self.gate()
        script = ("[ $RANK = 0 ] && { setsid sleep 606 & exit 0; }; " + env_to() + PASS_GATE)
        job = self.start("--standalone", "--nproc-per-node", "2", *shell(script))
        self.wait_for_workers(1, jobs=[job])
        wait_until(lambda: [p for p in job.processes() if p.argv == ["sleep", "606"]], job.text)
        gate.open()
        self.finish(job)


if __name__ == "__main__":
    ddprun_case.main()
