"""Signals to the launcher: every node ends, with the code that a shell would give, and nothing stays."""

import signal
import time

import ddprun_case
from ddprun_case import DdprunCase, PASS_GATE, env_to, shell

WAIT = "exec sleep 600"
DEAF = "trap '' TERM INT; " + env_to() + "while :; do sleep 600; done"


class Signals(DdprunCase):
    def end_by(self, number, code):
        job = self.start("--local-nodes", "2", "--nproc-per-node", "2", *shell(env_to() + WAIT))
        self.wait_for_workers(4, jobs=[job])
        asked = time.monotonic()
        job.signal(number)
        self.finish(job, code)
        took = time.monotonic() - asked
        self.report(f"{signal.Signals(number).name}: {took * 1000:.0f} ms to the end")
        self.assertLess(took, 5)
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

    def test_sigint_reaches_workers_as_sigint(self):
        script = "trap 'echo got INT; exit 0' INT; " + env_to() + "while :; do sleep 600 & wait; done"
        job = self.start(*shell(script))
        self.wait_for_workers(1, jobs=[job])
        job.signal(signal.SIGINT)
        self.finish(job, 130)
        self.assertIn("got INT", job.out())

    def test_a_second_sigint_kills_deaf_workers(self):
        job = self.start("--local-nodes", "2", "--nproc-per-node", "2", *shell(DEAF))
        self.wait_for_workers(4, jobs=[job])
        job.signal(signal.SIGINT)
        job.wait_for("SIGINT")
        self.assertFalse(job.ended())
        again = time.monotonic()
        job.signal(signal.SIGINT)
        self.finish(job, 130)
        self.report(f"{time.monotonic() - again:.2f} s after the second SIGINT")
        self.assertLess(time.monotonic() - again, 5)

    def test_deaf_workers_are_killed_after_the_shutdown_timeout(self):
        job = self.start("--local-nodes", "2", "--shutdown-timeout", "1", *shell(DEAF))
        self.wait_for_workers(2, jobs=[job])
        asked = time.monotonic()
        job.signal(signal.SIGTERM)
        self.finish(job, 143)
        self.assertGreaterEqual(time.monotonic() - asked, 0.9)
        self.assertLess(time.monotonic() - asked, 10)

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


if __name__ == "__main__":
    ddprun_case.main()
