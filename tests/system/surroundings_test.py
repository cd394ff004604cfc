"""Odd surroundings: what a parent ignored or blocked, limits that are too low, folders that are full, read-only or missing."""

import json
import os
import re
import shutil
import signal
import subprocess

import ddprun_case
from ddprun_case import BIN, DDPRUN, DdprunCase, env_to, is_sanitized, shell, wait_until

WAIT = "exec sleep 600"

# Runs its arguments with the signals of the first two ignored and blocked, as a careless parent would.
CARELESS = """
import os, signal, sys
for number in eval(sys.argv[1]):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_SETMASK, eval(sys.argv[2]))
os.execv(sys.argv[3], sys.argv[3:])
"""


def careless(ignored=(), blocked=()):
    return ["python3", "-c", CARELESS, str(list(map(int, ignored))), str(list(map(int, blocked)))]


def limited(*limits):
    """sh's words for limits, soft and hard at once: limited("-n 64")."""
    return ["sh", "-c", "".join(f"ulimit {limit} && " for limit in limits) + 'exec "$@"', "sh"]


# Runs its other arguments without the system call whose number is the first, as an old container's seccomp profile would.
WITHOUT_CALL = """
import errno, os, sys
sys.path.insert(0, sys.argv[1])
import old_kernel
if not old_kernel.refuse(int(sys.argv[2]), errno.EPERM):
    sys.exit(77)
os.execv(sys.argv[3], sys.argv[3:])
"""


class CarelessParents(DdprunCase):
    def start_under(self, prefix, *argv, **options):
        return self.start_program([*prefix, DDPRUN, *argv], **options)

    def test_sigchld_may_be_ignored(self):
        """The kernel would reap our children, and nobody would ever learn how they ended."""
        prefix = careless(ignored=[signal.SIGCHLD])
        for argv in (["--standalone"], ["--local-nodes", "2"]):
            for code in (0, 7):
                with self.subTest(argv=argv, code=code):
                    self.finish(self.start_under(prefix, *argv, *shell(f"exit {code}")), code)

    def test_sigchld_may_be_ignored_and_sigterm_is_heard(self):
        job = self.start_under(careless(ignored=[signal.SIGCHLD]), *shell(env_to() + WAIT))
        self.wait_for_workers(1, jobs=[job])
        job.signal(signal.SIGTERM)
        self.finish(job, 143)

    def test_signals_may_be_blocked(self):
        job = self.start_under(careless(blocked=set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}),
                               "--local-nodes", "2", *shell(env_to() + WAIT))
        self.wait_for_workers(2, jobs=[job])
        job.signal(signal.SIGTERM)
        self.finish(job, 143)

    def test_a_background_job_of_a_script_is_interrupted(self):
        """A shell without job control ignores SIGINT and SIGQUIT for what it starts with &."""
        for number, code in ((signal.SIGINT, 130), (signal.SIGQUIT, 131)):
            with self.subTest(signal=number.name):
                prefix = f"env{code}"
                job = self.start_under(careless(ignored=[signal.SIGINT, signal.SIGQUIT]),
                                       *shell(env_to(prefix) + WAIT))
                self.wait_for_workers(1, prefix, [job])
                job.signal(number)
                self.finish(job, code)

    def test_under_nohup_a_hang_up_is_ignored_and_workers_begin_with_defaults(self):
        job = self.start_under(careless(ignored=[signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD]),
                               *shell("grep -E '^Sig(Ign|Blk)' /proc/self/status; " + env_to() + WAIT))
        self.wait_for_workers(1, jobs=[job])
        job.signal(signal.SIGHUP)
        job.signal(signal.SIGTERM)
        self.finish(job, 143)
        self.assertNotIn("SIGHUP", job.err())
        self.assertEqual(re.findall(r"Sig(\w+):\s*(\w+)", job.out()), [("Blk", "0" * 16), ("Ign", "0" * 16)])


class Limits(DdprunCase):
    def verdict(self, job):
        with open(self.path("verdict.json"), encoding="utf-8") as f:
            return json.load(f)

    def test_too_few_descriptors_are_named_with_the_limit_and_what_is_needed(self):
        if ddprun_case.is_sanitized():
            self.skipTest("UBSan needs a descriptor to look at an object, and calls it broken without")
        job = self.start_program([*limited("-n 64"), DDPRUN, "--nproc-per-node", "64",
                                  "--error-file", self.path("verdict.json"), "true"])
        self.finish(job, 1)
        self.assertRegex(job.err(), r"ulimit -n is 64")
        self.assertRegex(job.err(), r"about 5 a worker")
        self.assertNotIn("pid 0", job.err())
        self.assertNotIn("its path", job.err())
        self.assertEqual(self.verdict(job)["first_cause"]["fault"], "no_descriptors")

    def test_the_soft_limit_is_raised_for_ddprun_and_not_for_workers(self):
        job = self.start_program([*limited("-Sn 40"), DDPRUN, "--nproc-per-node", "16",
                                  *shell("echo limit $(ulimit -Sn)")])
        self.finish(job)
        self.assertEqual(job.out().count("limit 40"), 16, job.text())

    def test_nodes_that_hosts_starts_on_this_machine_do_not_get_the_raised_limit(self):
        """Two names of this machine, so that neither needs ssh."""
        job = self.start_program([*limited("-Sn 40"), DDPRUN, "--hosts", "127.0.0.1,127.0.0.2",
                                  "--nproc-per-node", "2", *shell("echo limit $(ulimit -Sn)")])
        self.finish(job)
        self.assertEqual(job.out().count("limit 40"), 4, job.text())

    def as_somebody(self):
        """A user of our own, who has no other process."""
        if os.geteuid() != 0:
            self.skipTest("another user's limit on processes needs root")
        uid = 600_000_000 + os.getpid()
        os.chmod(self.dir, 0o777)
        return ["setpriv", f"--reuid={uid}", "--regid=65534", "--clear-groups"]

    def test_too_few_processes_are_named_with_the_limit(self):
        """Wherever it is that they are missing: for a worker, the agent or a thread."""
        seen = set()
        for processes in range(1, 9):
            with self.subTest(processes=processes):
                job = self.start_program([*self.as_somebody(), *limited(f"-p {processes}"), DDPRUN, "-r", "3",
                                          "--log-dir", self.path(f"logs{processes}"), "--nproc-per-node", "8",
                                          "--error-file", self.path("verdict.json"), *shell(WAIT)])
                self.finish(job, 1)
                self.assertRegex(job.err(), rf"ulimit -u is {processes}\b")
                self.assertNotIn("pid 0", job.err())
                if "failed first" in job.err() or "could not be started" in job.err():
                    seen.add(self.verdict(job)["first_cause"]["fault"])
        self.assertEqual(seen, {"no_processes"})

    def test_files_may_not_grow(self):
        for blocks, nodes in ((0, 1), (1, 1), (8, 1), (64, 2)):  # A daemon's journal needs some.
            if blocks == 0 and ddprun_case.is_sanitized():
                continue  # A sanitizer writes files of its own before main().
            with self.subTest(blocks=blocks):
                job = self.start_program([*limited(f"-f {blocks}"), DDPRUN, "--local-nodes", str(nodes), "true"])
                self.finish(job)

    def test_workers_have_the_default_of_sigxfsz(self):
        job = self.run_ddprun(*shell("grep SigIgn /proc/self/status"))
        self.assertIn("SigIgn:\t" + "0" * 16, job.out())


class StandardOutput(DdprunCase):
    """What ddprun's programs print themselves arrives, or they say that it does not, and fail."""

    PRINT = (["ddprun", "--help"], ["ddprun", "--print-completion", "bash"], ["ddprun", "--dry-run", "true"],
             ["ddprun", "doctor", "--json"], ["ddprunctl", "--version"], ["ddprunctl", "report", "long"],
             ["ddprunctl", "history", "--json"], ["ddprunctl", "logs", "long"], ["ddprunctl", "top", "--json"],
             ["ddprun-rendezvous", "--help"])

    def each(self, redirection):
        """(argv, exit code, standard error) of each, with its standard output redirected by a shell."""
        self.run_ddprun("--rdzv-id", "long", *shell("seq 2000"))
        for program, *argv in self.PRINT:
            with self.subTest(program=program, argv=argv):
                job = self.start_program(["bash", "-c", f'"$@" {redirection}', "bash", os.path.join(BIN, program), *argv])
                yield program, job.wait(), job.err()

    def test_a_full_disk_is_said_once_and_fails(self):
        for program, code, err in self.each(">/dev/full"):
            self.assertEqual(err, f"{program}: error: cannot write standard output: No space left on device\n")
            self.assertNotEqual(code, 0)

    def test_a_closed_one_is_said_too(self):
        for program, code, err in self.each(">&-"):
            self.assertEqual(err, f"{program}: error: cannot write standard output: Bad file descriptor\n")
            self.assertNotEqual(code, 0)

    def test_a_reader_that_has_enough_is_no_failure(self):
        for _, _, err in self.each("| true"):
            self.assertEqual(err, "")

    def test_a_run_keeps_the_exit_code_of_its_workers_and_lines_go_nowhere_else(self):
        for redirection, reason in ((">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")):
            with self.subTest(redirection=redirection):
                job = self.start_program(["bash", "-c", f'exec "$@" {redirection}', "bash", DDPRUN, "--report",
                                          *shell("echo hello")])
                self.finish(job)
                self.assertIn(f"writing workers' lines to standard output: {reason}", job.err())
                self.assertIn(f"the report is lost: cannot write standard output: {reason}", job.err())


class Folders(DdprunCase):
    def mounted(self, options):
        folder = self.path("mounted")
        os.mkdir(folder)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder],
                              capture_output=True, text=True, timeout=20, check=False)
        if done.returncode != 0:
            self.skipTest(f"mount: {done.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", folder], timeout=20, check=False)
        return folder

    def test_a_missing_temporary_folder_is_no_reason_not_to_start(self):
        job = self.run_ddprun("--local-nodes", "2", *shell("echo $TORCHELASTIC_ERROR_FILE"),
                              env={"TMPDIR": "/nonexistent", "XDG_RUNTIME_DIR": ""})
        self.assertEqual(job.out().count("/tmp/ddprun"), 2, job.text())

    def test_a_read_only_temporary_folder_is_no_reason_not_to_start(self):
        folder = self.mounted("ro")
        for argv in ([], ["-r", "3"], ["--report"], ["--local-nodes", "2"]):
            with self.subTest(argv=argv):
                job = self.run_ddprun(*argv, "true", env={"TMPDIR": folder, "XDG_RUNTIME_DIR": folder})
                self.remove_logs_elsewhere(job)

    def remove_logs_elsewhere(self, job):
        """Logs that were asked for stay, in /tmp where TMPDIR cannot be used. True if it was so."""
        elsewhere = re.search("output goes to (/tmp/ddprun_[^/]+)/", job.err())
        if elsewhere:
            shutil.rmtree(elsewhere[1])
        return bool(elsewhere)

    def test_without_any_temporary_folder_there_are_no_error_files(self):
        if os.geteuid() != 0:
            self.skipTest("a mount namespace needs root")
        job = self.start_program([*self.read_only("/tmp", "/dev/shm"), DDPRUN,
                                  *shell("echo file=$TORCHELASTIC_ERROR_FILE.")],
                                 cwd="/", env={"TMPDIR": "/tmp", "XDG_RUNTIME_DIR": "/tmp"})
        self.finish(job)
        self.assertIn("file=.", job.out())
        self.assertEqual(len(re.findall("warning: .*error files", job.err())), 1, job.text())

    def read_only(self, *folders):
        # Not hidden by another file system: the programs may lie below it.
        hide = "".join(f"mount --rbind {f} {f} && mount -o remount,bind,ro {f} && " for f in folders)
        return ["unshare", "-m", "sh", "-c", hide + 'exec "$@"', "sh"]

    def test_a_run_that_hosts_starts_with_memory_alone_or_with_nothing(self):
        """As in a pod whose root is read-only: the journal of the daemon is in memory then, or nowhere."""
        if os.geteuid() != 0:
            self.skipTest("a mount namespace needs root")
        for folders, says in ((["/tmp"], "temporary files are in /dev/shm instead"),
                              (["/tmp", "/dev/shm"], "keeps no journal")):
            with self.subTest(folders=folders):
                job = self.start_program([*self.read_only(*folders), DDPRUN, "--local-nodes", "2",
                                          "--report", *shell("echo it runs")],
                                         cwd="/", env={"TMPDIR": "/tmp", "XDG_RUNTIME_DIR": ""})
                self.finish(job)
                self.assertEqual(job.out().count("it runs"), 2, job.text())
                self.assertIn(says, job.err())

    def test_a_loopback_interface_that_is_down_is_said(self):
        """Ranks that communicate would wait for minutes without a word; others need no network."""
        if os.geteuid() != 0:
            self.skipTest("a network namespace needs root")
        job = self.start_program(["unshare", "-n", DDPRUN, "--nproc-per-node", "2", *shell("echo it runs")])
        self.finish(job)
        self.assertEqual(job.out().count("it runs"), 2, job.text())
        self.assertEqual(job.err().count("127.0.0.1 cannot be reached"), 1, job.text())
        self.assertIn("ip link set lo up", job.err())

    def without_call(self, number, *argv):
        here = os.path.dirname(os.path.abspath(__file__))
        job = self.start_program(["python3", "-c", WITHOUT_CALL, here, number, DDPRUN, *argv])
        if job.wait() == ddprun_case.SKIPPED:
            self.skipTest("this kernel has no seccomp filters")
        return job

    def test_a_system_call_that_a_container_refuses_is_named(self):
        signalfd = {"x86_64": "289", "aarch64": "74"}.get(os.uname().machine)
        if is_sanitized() or signalfd is None:
            self.skipTest("a sanitizer needs what is refused here, or the number is not known")
        job = self.without_call(signalfd, *shell("echo it runs"))
        self.assertEqual(job.wait(), 1, job.text())
        self.assertRegex(job.err(), r"signalfd is refused: Linux [\d.]+ is needed, or a container's seccomp profile")
        self.assertNotIn("bug", job.err())

    def test_what_old_kernels_and_containers_lack_is_not_needed(self):
        """One at a time; all at once: the tests that run with DDPRUN_TEST_OLD_KERNEL."""
        # The one that fails does so once the other has printed, too.
        worker = shell(f"echo it runs; cd {self.dir}; : >$1.$RANK; until [ -e $1.0 ] && [ -e $1.1 ]; do sleep 0.02; done; exit $RANK")
        for call, number in (("pidfd_send_signal", "424"), ("pidfd_open", "434"), ("clone3", "435"), ("close_range", "436")):
            with self.subTest(call=call):
                job = self.without_call(number, "--local-nodes", "2", *worker, "sh", call)
                self.finish(job, 1)
                self.assertEqual(job.out().count("it runs"), 2, job.text())
                self.assertNotIn("refused", job.err())

    def test_a_missing_dev_null_is_named(self):
        if os.geteuid() != 0:
            self.skipTest("a mount namespace needs root")
        bare = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /dev && exec "$@"', "sh"]
        job = self.start_program([*bare, DDPRUN, "--stdin", "none", "true"], cwd="/")
        self.finish(job, 127)
        self.assertIn("/dev/null", job.err())
        self.assertNotIn("check its path", job.err())

    def test_an_environment_that_is_too_big_is_named(self):
        """Ours fits; with the worker's own variables it does not."""
        script = """
import os, sys
def filled(size):
    e = dict(os.environ)
    size -= sum(len(k) + len(v) + 10 for k, v in e.items())
    for i in range(size // 100_000 + 1):
        e[f"BIG{i:02}"] = "x" * max(min(size, 100_000) - 20, 0)
        size -= 100_000
    return e
def fits(size):
    pid = os.fork()
    if pid == 0:
        try:
            os.execve(sys.argv[1], [sys.argv[1], "--version", *sys.argv[2:]], filled(size))
        except OSError:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 99
low, high = 100_000, 8_000_000
while high - low > 64:
    middle = (low + high) // 2
    low, high = (middle, high) if fits(middle) else (low, middle)
os.execve(sys.argv[1], sys.argv[1:], filled(low - 128))
"""
        job = self.start_program([*limited("-s 4096"), "python3", "-c", script, DDPRUN, "--nproc-per-node", "1", "true"])
        self.finish(job, 127)
        self.assertRegex(job.err(), r"Argument list too long")
        self.assertRegex(job.err(), r"the environment has \d+ bytes")
        self.assertNotIn("check its path", job.err())

    def test_a_full_disk_stops_no_worker_from_starting(self):
        """Neither without inodes, where no file can be made, nor without room."""
        folder = self.mounted("size=64k,nr_inodes=6")
        for i in range(8):
            try:
                with open(f"{folder}/{i}", "wb") as f:
                    f.write(b"x" * 65536)
            except OSError:
                pass
        for argv in (["-r", "3"], ["-t", "3"], ["-r", "3", "--log-dir", folder + "/logs"], []):
            with self.subTest(argv=argv):
                job = self.run_ddprun("--nproc-per-node", "4", *argv, *shell("echo it runs"),
                                      env={"TMPDIR": folder, "XDG_RUNTIME_DIR": folder})
                there_is_room_in_tmp = self.remove_logs_elsewhere(job)
                if not there_is_room_in_tmp or "-t" in argv:
                    self.assertEqual(job.out().count("it runs"), 4, job.text())
                self.assertLessEqual(job.err().count("warning"), 2, job.text())

    def test_a_disk_that_fills_up_between_two_rounds_stops_no_restart(self):
        folder = self.mounted("nr_inodes=40")
        script = ('if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then '
                  'i=0; while : > "$FULL/$i"; do i=$((i+1)); done 2> /dev/null; exit 3; fi; echo it runs')
        job = self.run_ddprun("--max-restarts", "1", "--nproc-per-node", "2", "-r", "3", "--log-dir",
                              folder + "/logs", *shell(script), env={"FULL": folder})
        self.assertEqual(job.out().count("it runs"), 2, job.text())
        self.assertEqual(len(re.findall(r"warning: .*No space left", job.err())), 1, job.text())


if __name__ == "__main__":
    ddprun_case.main()
