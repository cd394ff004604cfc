"""Processes that stand still, as by SIGSTOP, in a freezer, on a paused or swapping machine: nobody is lost by that."""

import os
import signal
import time

import paths  # noqa: F401
import ddprun_case
from ddprun_case import DdprunCase, PASS_GATE, env_to, shell, wait_until

# Longer than an agent waits for an answer (2 s), and by far longer than the daemon waits for a beat.
STANDSTILL = 2.6
CONF = ("--rdzv-conf", "heartbeat_timeout=0.3,join_timeout=20")


class Standstill(DdprunCase):
    def launch(self, worker, *argv):
        job = self.start("--local-nodes", "2", *CONF, *argv, *shell(worker))
        self.wait_for_workers(2, jobs=[job])
        return job

    def stand_still(self, pids, meanwhile=lambda: None):
        begun = time.monotonic()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            meanwhile()
            wait_until(lambda: time.monotonic() > begun + STANDSTILL, "the standstill to pass")
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def test_no_standstill_restarts_anybody(self):
        gate = self.gate()
        job = self.launch(env_to() + PASS_GATE, "--max-restarts", "3")
        daemon, agents = job.daemon().pid, [agent.pid for agent in job.agents()]
        for what, pids in (("the daemon", [daemon]), ("one agent", agents[1:]), ("all agents", agents),
                           ("all", [job.pid, daemon, *agents])):
            with self.subTest(what):
                self.stand_still(pids)
        gate.open()
        self.finish(job)
        self.assertEqual(len(self.arrivals()), 2, job.text())
        self.assertNotIn("lost", job.err().replace("lost the rendezvous daemon", ""))
        # Nor has an agent left the daemon for a silence that was its own, or one of a host that answers.
        self.assertNotRegex(job.err(), r"has not answered within \d+ ms(?!, but its host does)")

    def test_a_death_in_a_standstill_is_not_forgotten(self):
        job = self.launch(env_to() + "exec sleep 600")
        victim = int(min(self.arrivals()).rsplit(".", 1)[1])  # The shell, or what it has become.
        self.stand_still([job.daemon().pid], lambda: os.kill(victim, signal.SIGKILL))
        self.finish(job, 137)
        self.assertEqual(len(self.arrivals()), 2, job.text())


if __name__ == "__main__":
    ddprun_case.main()
