"""Workers that are alive but stuck: who it is, where, and what is done about it."""

import json
import os
import signal
import time

import paths  # noqa: F401
import ddprun_case
from ddprun_case import BIN, DdprunCase, env_to, shell, wait_until

WORKER = os.path.join(os.path.dirname(BIN), "tests", "stall_worker")
TIMES = ["--stall-timeout", "0.4"]  # The first of a kind may take ten times that.


class Stall(DdprunCase):
    def setUp(self):
        super().setUp()
        if not os.access(WORKER, os.X_OK):
            self.skipTest(f"{WORKER} was not built")

    def stuck(self, how, *argv):
        return self.start("--nproc-per-node", "3", *TIMES, *argv, WORKER, "1", how)

    def named(self, how, pattern, state):
        job = self.stuck(how)
        job.wait_for(r"rank 1 \(local rank 1, pid \d+\) " + pattern + "[^\n]*" + state)
        self.assertNotRegex(job.err(), r"rank [02] \(local rank")
        self.assertFalse(job.ended())
        for worker in job.processes():
            if worker.state == "T":
                os.kill(worker.pid, signal.SIGCONT)
        job.signal(signal.SIGTERM)
        self.finish(job, 143)

    def test_an_endless_loop(self):
        self.named("loop", "has made no progress since collective #20", "it is computing")

    def test_a_collective_that_is_never_entered(self):
        self.named("never", "has made no progress since collective #20", "it sleeps")

    def test_a_phase_that_does_not_end(self):
        self.named("evaluate", "has been in evaluate", "it sleeps")

    def test_a_stopped_worker(self):
        self.named("stop", "has made no progress since collective #20", "it is stopped")

    def test_one_that_only_touches_the_file(self):
        """Four touches and then none. Whatever can open a file can report."""
        script = (env_to() + 'for i in 1 2 3 4; do touch "$DDPRUN_PROGRESS"; sleep 0.1; done; '
                  'exec sleep 600')
        job = self.start(*TIMES, *shell(script))
        job.wait_for(r"rank 0 \(local rank 0, pid \d+\) has made no progress")
        job.signal(signal.SIGTERM)
        self.finish(job, 143)

    def test_kill_makes_it_the_cause_of_the_failure(self):
        for how, code in (("loop", 134), ("stop", 137)):
            with self.subTest(how):
                job = self.stuck(how, "--on-stall", "kill", "--error-file", self.path("error.json"))
                self.finish(job, code)
                why = r"ddprun ended it because it was stuck: it has made no progress since collective #20 for "
                self.assertRegex(job.err(), r"rank 1 \(local rank 1, pid \d+\) on \S+ failed first: it was killed by signal "
                                            rf"{code - 128} \(SIG\w+\): {why}")
                with open(self.path("error.json"), encoding="utf-8") as f:
                    verdict = json.load(f)
                first = verdict["first_cause"]
                self.assertEqual((first["rank"], first["fault"], first["stopped_by_ddprun"]), (1, "stuck", True))
                self.assertRegex(first["evidence"], why)
                self.assertNotIn("ddprun ended it", first["last_words"])
                self.assertRegex(verdict["advice"], "debugger")

    def test_kill_and_restart(self):
        job = self.stuck("never", "--on-stall", "kill", "--max-restarts", "1")
        self.finish(job, 134)
        self.assertIn("1 of 1", job.err())

    def test_off_gives_no_page(self):
        job = self.run_ddprun("--on-stall", "off", *shell(env_to()))
        self.assertNotIn("DDPRUN_PROGRESS", self.wait_for_workers(1, jobs=[job])[0])

    def test_nobody_is_stuck(self):
        job = self.stuck("none")
        self.finish(job)
        self.assertNotIn("progress", job.err())

    def test_workers_that_never_report_are_left_alone(self):
        """Most programs know nothing of it."""
        gate = self.gate()
        job = self.start(*TIMES, "--on-stall", "kill", *shell(env_to() + ddprun_case.PASS_GATE))
        self.wait_for_workers(1, jobs=[job])
        looks = time.monotonic()
        wait_until(lambda: time.monotonic() > looks + 2, "many looks")
        gate.open()
        self.finish(job)
        self.assertNotIn("progress", job.err())


if __name__ == "__main__":
    ddprun_case.main()
