"""What other users of a machine, and a run's own workers, get to see of a run: the workers' store is
for the run's own user and root, and no process of the run shows the token. Users are made up by number;
that needs root."""

import os
import pty
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

import ddprun_case
from ddprun_case import DDPRUN, DdprunCase, PASS_GATE, PATIENCE, clean_environment, env_to, free_port, shell, skip_all, \
    wait_until

OWNER, STRANGER = 54321, 54322
"localhost".encode("idna")  # Loaded while we may read it: another user may not come to where our Python is.
TOKEN = "a token that nobody else may see"
WAIT = shell(env_to() + PASS_GATE)

def is_served(host, port):
    """Whether the store there answers: VALIDATE and PING 77 of its protocol."""
    with socket.create_connection((host, int(port)), 30) as s:
        try:
            s.sendall(struct.pack("<BIBI", 0, 0x3c85f7ce, 13, 77))
            return s.recv(4) == struct.pack("<I", 77)
        except ConnectionError:
            return False


def is_readable(path):
    try:
        with open(path, "rb"):
            return True
    except (PermissionError, FileNotFoundError):  # Where /proc is mounted with hidepid=2 it is as if it were not there.
        return False


def may_read_memory(user, pid):
    """Whether that user may read the memory of a process, which is there."""
    readable = as_user(user, lambda: is_readable(f"/proc/{pid}/mem"))
    assert os.path.exists(f"/proc/{pid}"), f"process {pid} has ended"
    return readable


def as_user(user, question):
    """What question() is to a process of that user."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            os._exit(0 if question() else 1)
        finally:
            os._exit(2)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1), code
    return code == 0


class SecurityCase(DdprunCase):
    def setUp(self):
        super().setUp()
        os.chown(self.dir, OWNER, OWNER)

    def start_as_owner(self, *argv, env=None):
        return self.start_program(["setpriv", f"--reuid={OWNER}", f"--regid={OWNER}", "--clear-groups", DDPRUN,
                                   *map(str, argv)], env=env)

    def check_store(self, admitted, job):
        seen = self.wait_for_workers(1, jobs=[job])[0]
        where = seen["MASTER_ADDR"], seen["MASTER_PORT"]
        self.assertEqual({user for user in (STRANGER, OWNER, 0) if as_user(user, lambda: is_served(*where))}, admitted)


class Store(SecurityCase):
    def test_the_workers_store_is_for_the_runs_own_user_and_root(self):
        gate = self.gate()
        os.chmod(self.path("gate"), 0o666)
        job = self.start_as_owner("--standalone", *WAIT)
        self.check_store({OWNER, 0}, job)
        self.assertIn("another user's process", job.wait_for("refused .*").group())
        gate.open()
        self.finish(job)

    def test_a_run_of_several_nodes_has_no_other_rule(self):
        gate = self.gate()
        os.chmod(self.path("gate"), 0o666)
        job = self.start_as_owner("--local-nodes", "2", *WAIT)
        self.wait_for_workers(2, jobs=[job])
        self.check_store_of_two(job)
        gate.open()
        self.finish(job)

    def check_store_of_two(self, job):
        seen = self.wait_for_workers(2, jobs=[job])[0]
        where = seen["MASTER_ADDR"], seen["MASTER_PORT"]
        self.assertFalse(as_user(STRANGER, lambda: is_served(*where)))
        self.assertTrue(as_user(OWNER, lambda: is_served(*where)))

    def test_it_can_be_opened_for_all_users(self):
        gate = self.gate()
        os.chmod(self.path("gate"), 0o666)
        job = self.start_as_owner("--standalone", "--rdzv-conf", "store_users=any", *WAIT)
        self.check_store({STRANGER, OWNER, 0}, job)
        gate.open()
        self.finish(job)


class Token(SecurityCase):
    def everybody(self, jobs, names=frozenset({"ddprun", "ddprun-rendezvo", "keeper", "sh"})):
        """Once all are there, and the commands that a worker's shell ran have gone."""
        found = []

        def settled():
            found[:] = [process for job in jobs for process in job.processes()]
            return {process.name for process in found} == names

        wait_until(settled, lambda: f"of ddprun's processes and the workers only, but {found}")
        return found

    def start_two(self, gate_name="gate"):
        """A host, which has a daemon, and another node; both got the token by their environment."""
        self.gate(gate_name)
        os.chmod(self.path(gate_name), 0o666)
        common = ["--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
        return [self.start_as_owner(*common, "--rdzv-conf", f"is_host={host}", *WAIT, env={"DDPRUN_TOKEN": TOKEN})
                for host in (1, 0)]

    def test_no_process_of_the_run_shows_it_in_its_environment(self):
        jobs = self.start_two()
        self.wait_for_workers(2, jobs=jobs)
        for process in self.everybody(jobs):
            with open(f"/proc/{process.pid}/environ", "rb") as f:
                self.assertNotIn(TOKEN.encode(), f.read(), process)
            self.assertNotIn(TOKEN, " ".join(process.argv))

    def test_workers_may_not_read_the_memory_of_those_who_know_it(self):
        jobs = self.start_two()
        self.wait_for_workers(2, jobs=jobs)
        for process in self.everybody(jobs):
            self.assertEqual(may_read_memory(OWNER, process.pid), process.name == "sh", process)

    def test_a_run_without_a_token_can_be_debugged_by_its_user(self):
        self.gate()
        os.chmod(self.path("gate"), 0o666)
        job = self.start_as_owner("--standalone", *WAIT)
        self.wait_for_workers(1, jobs=[job])
        for process in self.everybody([job], {"ddprun", "keeper", "sh"}):
            self.assertTrue(may_read_memory(OWNER, process.pid), process)

    def test_a_run_that_needs_none_hides_the_one_it_was_given(self):
        self.gate()
        os.chmod(self.path("gate"), 0o666)
        job = self.start_as_owner("--standalone", *WAIT, env={"DDPRUN_TOKEN": TOKEN})
        self.wait_for_workers(1, jobs=[job])
        self.assertFalse(may_read_memory(OWNER, job.pid))

    def test_what_hides_its_memory_is_found_by_the_keeper_all_the_same(self):
        jobs = self.start_two()
        self.wait_for_workers(2, jobs=jobs)
        host = jobs[0]
        for process in (*host.agents(), host.daemon()):
            os.kill(process.pid, signal.SIGSTOP)
        host.signal(signal.SIGKILL)
        self.assert_nothing_left(host, since=time.monotonic())

    def test_ddprun_rendezvous_and_ddprunctl_forget_theirs(self):
        port = free_port()
        env = {"DDPRUN_TOKEN": TOKEN}
        daemon = self.start_program([DDPRUN + "-rendezvous", "--port", str(port)], env=env)
        daemon.wait_for("listening on")
        with open(f"/proc/{daemon.pid}/environ", "rb") as f:
            self.assertNotIn(TOKEN.encode(), f.read())
        asked = subprocess.run([DDPRUN + "ctl", "-e", f"127.0.0.1:{port}", "status"], env={**clean_environment(), **env},
                               capture_output=True, text=True, timeout=60)
        self.assertEqual(asked.returncode, 0, asked.stderr)


class HiddenProcesses(DdprunCase):
    def test_the_same_holds_where_proc_shows_a_user_no_others_processes(self):
        """As on many clusters: hidepid=2."""
        hidden = ["unshare", "-m", "sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && exec "$@"', "sh"]
        if subprocess.run([*hidden, "true"], capture_output=True, timeout=60, check=False).returncode != 0:
            self.skipTest("no /proc can be mounted")
        done = subprocess.run([*hidden, sys.executable, "-B", __file__, "Store", "Token"], capture_output=True, text=True,
                              timeout=8 * PATIENCE, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Terminal(DdprunCase):
    SAYS = r"printf '\033[31mred\nmore\n'; printf '\033]0;owned\007words\r\n' >&2; exit 3"

    def test_a_verdict_gives_no_orders_and_its_file_is_faithful(self):
        verdict = self.path("verdict.json")
        shown = self.run_ddprun("--standalone", *shell(self.SAYS), code=3)
        self.assertIn("\x1b]0;owned\x07words", shown.err())  # The worker's own line is its business.
        # A verdict quotes what has not just been shown.
        job = self.run_ddprun("--standalone", "-r", "3", "--error-file", verdict, *shell(self.SAYS), code=3)
        quoted = job.err().split("Its last words:")[1]
        self.assertIn("words", quoted)
        self.assertNotIn("\x1b", quoted)
        self.assertNotIn("owned", quoted)
        with open(verdict, encoding="utf-8") as f:
            self.assertIn("\\u001b]0;owned\\u0007words", f.read())

    def test_a_line_leaves_a_terminal_without_its_colour_and_a_file_as_it_is(self):
        master, slave = pty.openpty()
        with os.fdopen(master, "rb", buffering=0) as terminal:
            ddprun = subprocess.Popen([DDPRUN, "--standalone", *shell(self.SAYS)], stdin=subprocess.DEVNULL,
                                      stdout=slave, stderr=subprocess.DEVNULL, env=clean_environment())
            os.close(slave)
            shown = b""
            try:
                while part := terminal.read(4096):
                    shown += part
            except OSError:
                pass  # How a terminal says that nobody writes to it any more.
            self.assertEqual(ddprun.wait(60), 3)
        self.assertIn(b"\x1b[31mred\x1b[0m\r\n", shown)
        self.assertIn(b"]:more\r\n", shown)
        job = self.run_ddprun("--standalone", *shell(self.SAYS), code=3)
        self.assertIn("\x1b[31mred\n", job.out())


if __name__ == "__main__":
    if os.geteuid() != 0:
        skip_all("other users are played by root")
    if not shutil.which("setpriv"):
        skip_all("there is no setpriv (package util-linux)")
    ddprun_case.main()
