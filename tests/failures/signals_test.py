"""Signals to the launcher: every node ends, with the code that a shell would give, and nothing stays."""

import json
import os
import re
import signal
import socket
import subprocess
import time

import paths  # noqa: F401
import ddprun_case
from ddprun_case import DDPRUN, DdprunCase, PASS_GATE, env_to, shell, wait_until

WAIT = "exec sleep 600"
DEAF = "trap '' TERM INT; " + env_to() + "while :; do sleep 600; done"


# A worker whose helpers die of a SIGTERM; it needs them to save its state. The program that it has started ends by it.
SAVES_WITH_HELPERS = """
import multiprocessing, os, signal, subprocess

def answer(pipe):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number in iter(pipe.recv, None):
        pipe.send(number + 1)

if __name__ == "__main__":
    asked, ends = [], []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    for method in "fork", "spawn":
        context = multiprocessing.get_context(method)
        here, there = context.Pipe()
        context.Process(target=answer, args=(there,), daemon=True).start()
        ends.append(here)
    program = subprocess.Popen(["sleep", "600"])
    for end in ends:  # Both have begun.
        end.send(0)
        end.recv()
    print("ready", flush=True)
    code = program.wait()
    for end in ends:
        end.send(41)
    print("saved", asked, [end.recv() for end in ends], code, flush=True)
"""


class Signals(DdprunCase):
    def end_by(self, number, code):
        job = self.start("--local-nodes", "2", "--nproc-per-node", "2", *shell(env_to() + WAIT))
        self.wait_for_workers(4, jobs=[job])
        asked = time.monotonic()
        job.signal(number)
        self.finish(job, code)
        took = time.monotonic() - asked
        self.report(f"{signal.Signals(number).name}: {took * 1000:.0f} ms to the end")
        self.assertNotIn("killed by SIGKILL", job.err())

    def test_sigterm(self):
        self.end_by(signal.SIGTERM, 143)

    def test_sigint(self):
        self.end_by(signal.SIGINT, 130)

    def test_sighup(self):
        self.end_by(signal.SIGHUP, 129)

    def test_sigquit(self):
        self.end_by(signal.SIGQUIT, 131)

    def test_sigterm_while_waiting_for_nodes(self):
        job = self.start("--nnodes", "2", "--local-addr", "127.0.0.1", "true")
        job.wait_for("waiting for nodes")
        job.signal(signal.SIGTERM)
        self.finish(job, 143)

    def test_sigterm_at_any_moment_of_the_start(self):
        """Before, while and after everything is forked: never a hang, never an orphan, never a success."""
        codes = []
        for step in range(12):
            job = self.start("--local-nodes", "2", "--nproc-per-node", "2", *shell(WAIT))
            ddprun_case.wait_until(lambda: time.monotonic() >= job.started + 0.003 * step, "the moment")
            job.signal(signal.SIGTERM)
            codes.append(job.wait())
            self.assert_nothing_left(job)
        self.assertEqual(set(codes), {143}, codes)

    def test_sigterm_at_any_moment_of_the_start_of_process_1(self):
        """The kernel throws away what process 1 of a container neither blocks nor handles."""
        for step in range(24):
            job = self.first_process("--local-nodes", "2", *shell(WAIT))
            one = self.process_1(job)
            began = time.monotonic()
            wait_until(lambda: time.monotonic() >= began + 0.002 * step, "the moment")
            os.kill(one, signal.SIGTERM)
            self.assertEqual(job.wait(), 143, job.text())
            self.assert_nothing_left(job)

    def test_sigterm_while_a_name_is_looked_up(self):
        """By a name server that never answers, as process 1 and not."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
            try:
                server.bind(("127.0.0.53", 53))
            except OSError as error:
                self.skipTest(f"a name server of our own: {error}")
            with open(self.path("resolv.conf"), "w", encoding="ascii") as f:
                f.write("nameserver 127.0.0.53\n")
            with open(self.path("nsswitch.conf"), "w", encoding="ascii") as f:
                f.write("hosts: dns\n")
            server.settimeout(ddprun_case.PATIENCE)
            for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
                for is_first in (False, True):
                    with self.subTest(signal=number.name, is_first=is_first):
                        job = self.first_process("--nnodes", "2", "--rdzv-endpoint", "node-0.example:29400", "true",
                                                 env={"DDPRUN_TOKEN": "a token of the tests"}, is_first=is_first,
                                                 mounts=[("resolv.conf", "/etc/resolv.conf"),
                                                         ("nsswitch.conf", "/etc/nsswitch.conf")])
                        server.recv(512)  # It asks, and waits.
                        os.kill(self.process_1(job) if is_first else job.pid, number)
                        self.assertEqual(job.wait(), code, job.text())
                        self.assert_nothing_left(job)

    def first_process(self, *argv, env=None, is_first=True, mounts=()):
        if os.geteuid() != 0:
            self.skipTest("namespaces need root")
        mount = "".join(f'mount --bind "$D/{name}" {path} && ' for name, path in mounts)
        own = ["unshare", "-m", "sh", "-c", mount + 'exec "$@"', "sh"] if mounts else []
        pid = ["unshare", "-pf", "--mount-proc", "--kill-child"] if is_first else []
        return self.start_program([*own, *pid, DDPRUN, *argv], env=env)

    def process_1(self, job):
        """As we see it, once its first instruction has run: before, the kernel still loads it."""
        def holds(pid):
            with open(f"/proc/{pid}/status", encoding="ascii") as f:
                masks = re.findall(r"Sig(?:Blk|Cgt):\s*(\w+)", f.read())
            return any(int(mask, 16) >> (signal.SIGTERM - 1) & 1 for mask in masks)

        def found():
            for process in job.processes():
                if process.name == "ddprun" and process.ppid == job.pid and holds(process.pid):
                    return process.pid
            return None
        return wait_until(found, job.text)

    def test_what_is_known_at_a_signal_is_on_record_before_the_grace_ends(self):
        """The machine that sends it may kill everything before the workers have ended."""
        path = self.path("why.json")
        gate = self.gate()
        job = self.start("--error-file", path, *shell("trap '" + PASS_GATE + "exit 0' TERM; " + env_to() +
                                                      "while :; do sleep 600 & wait; done"))
        self.wait_for_workers(1, jobs=[job])
        job.signal(signal.SIGTERM)
        wait_until(lambda: os.path.exists(path), job.text)
        with open(path, encoding="utf-8") as f:
            verdict = json.load(f)
        self.assertEqual((verdict["kind"], verdict["exit_code"]), ("interrupted", 143))
        self.assertIn("interrupted by SIGTERM", verdict["text"])
        wait_until(lambda: "is stopping: interrupted by SIGTERM" in self.history(), self.history)
        gate.open()
        self.finish(job, 143)
        with open(path, encoding="utf-8") as f:
            self.assertNotEqual(json.load(f)["text"], verdict["text"])

    def history(self):
        environment = {**ddprun_case.clean_environment(), "XDG_STATE_HOME": self.path("state")}
        done = subprocess.run([os.path.join(ddprun_case.BIN, "ddprunctl"), "history"], env=environment,
                              capture_output=True, text=True, timeout=ddprun_case.PATIENCE, check=False)
        return done.stdout

    def test_workers_may_say_goodbye(self):
        """SIGTERM reaches the workers as SIGTERM, they have their time, and what they say is heard."""
        script = ("trap 'echo saved by $RANK; exit 0' TERM; " + env_to() +
                  "while :; do sleep 600 & wait; done")
        job = self.start("--local-nodes", "2", *shell(script))
        self.wait_for_workers(2, jobs=[job])
        job.signal(signal.SIGTERM)
        self.finish(job, 143)
        self.assertEqual(sorted(line.split(":")[1] for line in job.out().splitlines()),
                         ["saved by 0", "saved by 1"], job.text())

    def test_a_worker_that_saves_keeps_the_processes_that_compute_for_it(self):
        """A DataLoader's processes die of a SIGTERM, forked or spawned; the program that a script runs gets it."""
        with open(self.path("saves.py"), "w", encoding="ascii") as f:
            f.write(SAVES_WITH_HELPERS)
        job = self.start("--nproc-per-node", "2", self.path("saves.py"))
        wait_until(lambda: job.out().count("ready") == 2, job.text)
        job.signal(signal.SIGTERM)
        self.finish(job, 143)
        self.assertEqual([line.split(":")[1] for line in job.out().splitlines()][2:],
                         ["saved [1] [42, 42] -15"] * 2, job.text())

    def test_sigint_reaches_workers_as_sigint(self):
        script = "trap 'echo got INT; exit 0' INT; " + env_to() + "while :; do sleep 600 & wait; done"
        job = self.start(*shell(script))
        self.wait_for_workers(1, jobs=[job])
        job.signal(signal.SIGINT)
        self.finish(job, 130)
        self.assertIn("got INT", job.out())

    def twice(self, *argv):
        """timeout(1) sends SIGTERM to ddprun and to ddprun's group; batch systems send theirs to every process."""
        gate = self.gate()
        script = (f"trap 'touch $D/asked.$RANK; {PASS_GATE} echo saved by $RANK; exit 0' TERM INT; " + env_to() +
                  "while :; do sleep 600 & wait; done")
        job = self.start(*argv, "--shutdown-timeout", "600", *shell(script))
        self.wait_for_workers(2, jobs=[job])
        job.signal(signal.SIGTERM)
        wait_until(lambda: all(os.path.exists(self.path(f"asked.{r}")) for r in (0, 1)), job.text)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            for process in [job, *job.agents()]:
                os.kill(process.pid, number)
        sent = time.monotonic()
        wait_until(lambda: time.monotonic() > sent + 0.5, "the signals to be heard")
        self.assertFalse(job.ended(), job.text())
        gate.open()
        self.finish(job, 143)
        self.assertEqual(job.out().count("saved by"), 2, job.text())

    def test_a_signal_that_comes_twice_leaves_workers_their_grace(self):
        self.twice("--nproc-per-node", "2")

    def test_a_signal_that_comes_twice_to_two_nodes_leaves_workers_their_grace(self):
        self.twice("--local-nodes", "2")

    def test_timeout_leaves_workers_their_grace(self):
        script = ("trap 'sleep 1; echo saved by $RANK; exit 0' TERM; " + env_to() + "while :; do sleep 600 & wait; done")
        job = self.start_program(["timeout", "8", DDPRUN, "--nproc-per-node", "2", "--shutdown-timeout", "600",
                                  *shell(script)])
        self.wait_for_workers(2, jobs=[job])
        self.finish(job, 124)
        self.assertEqual(job.out().count("saved by"), 2, job.text())

    def test_deaf_workers_are_killed_after_the_shutdown_timeout(self):
        job = self.start("--local-nodes", "2", "--shutdown-timeout", "1", *shell(DEAF))
        self.wait_for_workers(2, jobs=[job])
        asked = time.monotonic()
        job.signal(signal.SIGTERM)
        self.finish(job, 143)
        self.assertGreaterEqual(time.monotonic() - asked, 0.9)
        self.assertLess(time.monotonic() - asked, 25)  # The grace would be 30 s without the flag.

    def test_sigterm_to_one_of_two_nodes_ends_the_other_with_a_reason(self):
        for which in (0, 1):
            with self.subTest(signalled="host" if which == 0 else "joiner"):
                prefix = f"env{which}"
                nodes = self.two_nodes(worker=shell(env_to(prefix) + WAIT))
                self.wait_for_workers(2, prefix, nodes)
                nodes[which].signal(signal.SIGTERM)
                self.finish(nodes[which], 143)
                self.finish(nodes[1 - which], 143)
                self.assertRegex(nodes[1 - which].err(), "left: interrupted by SIGTERM")

    def test_a_notice_is_not_lost_if_the_batch_system_has_sent_it_to_the_agent_too(self):
        """The agent has not read the one when the other comes, as on a busy machine."""
        job = self.start("--standalone", "--preempt-signal", "SIGUSR1", *shell(env_to() + "trap 'exit 0' TERM; " + WAIT))
        self.wait_for_workers(1, jobs=[job])
        agent = job.agents()[0].pid
        os.kill(agent, signal.SIGSTOP)
        os.kill(agent, signal.SIGUSR1)
        job.signal(signal.SIGUSR1)


        def both_wait():
            with open(f"/proc/{agent}/status", encoding="ascii") as f:
                waiting = int(re.search(r"ShdPnd:\t(\w+)", f.read())[1], 16)
            return waiting >> signal.SIGUSR1 - 1 & 1 and waiting >> signal.SIGRTMIN + 5 - 1 & 1

        wait_until(both_wait, job.text)
        os.kill(agent, signal.SIGCONT)
        self.finish(job, 75)

    def test_usr1_is_passed_on_to_the_workers(self):
        gate = self.gate()
        script = "trap 'echo checkpoint' USR1; " + env_to() + "while [ -p \"$D/gate\" ]; do sleep 0.05; done"
        job = self.start("--local-nodes", "2", *shell(script))
        self.wait_for_workers(2, jobs=[job])
        job.signal(signal.SIGUSR1)
        ddprun_case.wait_until(lambda: job.out().count("checkpoint") == 2, job.text)
        gate.open()
        self.finish(job)

    def test_only_the_signals_named_are_handled(self):
        job = self.start("--signals-to-handle", "SIGTERM", *shell(env_to() + WAIT))
        self.wait_for_workers(1, jobs=[job])
        job.signal(signal.SIGTERM)
        self.finish(job, 143)


# A terminal: what comes through the fifo is typed, what is printed goes to standard output.
TERMINAL = """
import os, pty, select, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[2], sys.argv[2:])
keys = os.open(sys.argv[1], os.O_RDWR)
while True:
    try:
        for fd in select.select([terminal, keys], [], [])[0]:
            os.write(1 if fd == terminal else terminal, os.read(fd, 65536))
    except OSError:
        break
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
sys.exit(code if code >= 0 else 128 - code)
"""


class AtATerminal(DdprunCase):
    def start_typing(self, *argv):
        os.mkfifo(self.path("keys"))
        job = self.start_program(["python3", "-c", TERMINAL, self.path("keys"), DDPRUN, *argv])
        self.keys = os.open(self.path("keys"), os.O_RDWR)
        self.addCleanup(os.close, self.keys)
        return job

    def type(self, keys):
        os.write(self.keys, keys)

    def second_ctrl_c(self, *argv, workers):
        job = self.start_typing(*argv, "--shutdown-timeout", "600", *shell(DEAF))
        self.wait_for_workers(workers, jobs=[job])
        self.type(b"\x03")
        wait_until(lambda: "SIGINT" in job.out(), job.text)
        self.assertFalse(job.ended())
        return job

    def test_a_second_ctrl_c_kills_deaf_workers(self):
        job = self.second_ctrl_c("--local-nodes", "2", "--nproc-per-node", "2", workers=4)
        self.type(b"\x03")
        self.finish(job, 130)

    def error_file_after_a_second_ctrl_c(self, *argv, workers):
        """The agent, which would have written it, is killed; the launcher does it."""
        job = self.second_ctrl_c("--error-file", self.path("verdict.json"), *argv, workers=workers)
        self.type(b"\x03")
        self.finish(job, 130)
        with open(self.path("verdict.json"), encoding="utf-8") as f:
            verdict = json.load(f)
        self.assertEqual((verdict["kind"], verdict["exit_code"]), ("interrupted", 130))
        self.assertIn("interrupted again", verdict["text"])

    def test_after_a_second_ctrl_c_the_error_file_says_that_the_run_was_interrupted(self):
        self.error_file_after_a_second_ctrl_c(workers=1)

    def test_after_a_second_ctrl_c_several_nodes_of_a_machine_write_one_error_file(self):
        self.error_file_after_a_second_ctrl_c("--local-nodes", "2", workers=2)

    def test_a_second_ctrl_c_is_passed_on_to_other_hosts(self):
        job = self.second_ctrl_c("--hosts", "localhost", "--nproc-per-node", "2", workers=2)
        self.type(b"\x03")
        self.finish(job, 130)

    def test_a_second_ctrl_c_is_passed_on_to_hosts_that_a_script_lists(self):
        with open(self.path("hosts.sh"), "w", encoding="ascii") as script:
            script.write("#!/bin/sh\necho localhost\n")
        os.chmod(self.path("hosts.sh"), 0o755)
        job = self.second_ctrl_c("--host-discovery", self.path("hosts.sh"), "--nnodes", "1:2", "--nproc-per-node", "2",
                                 workers=2)
        self.type(b"\x03")
        self.finish(job, 130)

    def test_after_the_first_it_says_who_is_waited_for_and_how_long(self):
        """Ranks that have ended are not named any more."""
        script = ("[ $RANK = 1 ] && trap 'exit 0' INT || trap '' INT; " + env_to() +
                  "while :; do sleep 600 & wait; done")
        job = self.start_typing("--nproc-per-node", "4", "--shutdown-timeout", "600", *shell(script))
        self.wait_for_workers(4, jobs=[job])
        self.type(b"\x03")
        wait_until(lambda: re.search(r"waiting for ranks 0, 2-3 to end \(Ctrl-C again kills them\); 5\d\d s left",
                                     job.out()), job.text)
        self.type(b"\x03")
        self.finish(job, 130)


if __name__ == "__main__":
    ddprun_case.main()
