"""Samples that end every process which computes them. The worker is tests/process/worker_sdk/elastic_worker.cc: 8 steps
of 12 shards, each with two samples."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import ddprun_case
from ddprun_case import BIN, DdprunCase, SKIPPED

WORKER = os.path.join(os.path.dirname(BIN), "tests", "elastic_worker")
PIECE = r"step 3, shard 7: samples \d+, \d+"


class Poison(DdprunCase):
    def launch(self, poison, *argv, skip="no"):
        env = {"POISON": poison, "SKIP": skip, "STEPS": "8", "LIVES": "0", "LIFE": "0", "RESULT": self.path("result")}
        return self.start("--nproc-per-node", "4", "--max-restarts", "9", *argv, WORKER, env=env)

    def test_a_shard_that_has_ended_two_processes_ends_the_run_and_is_named(self):
        job = self.launch("3/7 crash")
        self.finish(job, 134)
        self.assertRegex(job.err(), rf"It computed {PIECE}\. The same has ended rank 2 \(local rank 2, pid \d+\) on \S+")
        self.assertNotIn("No restart was left", job.err())
        self.assertIn("(restart 1 of 9)", job.err())
        self.assertNotIn("(restart 2 of 9)", job.err())

    def test_an_exception_counts_as_well_as_a_crash_on_two_nodes(self):
        job = self.launch("3/7 throw", "--local-nodes", "2", "--nproc-per-node", "2")
        self.finish(job, 1)
        self.assertRegex(job.err(), rf"It computed {PIECE}\. The same has ended rank")

    def test_a_job_may_do_without_that_shard(self):
        job = self.launch("3/7 crash", skip="yes")
        self.finish(job)
        self.assertRegex(job.err(), rf"skipping {PIECE}, which has ended two processes; the other workers continue")
        self.assertNotIn("(restart 3 of 9)", job.err())
        with open(self.path("result"), encoding="utf-8") as f:
            self.assertIn("seen 1-2", f.read())  # Two epochs, and of these two samples one.

    def test_signals_from_outside_are_not_put_down_to_a_shard(self):
        job = self.launch("3/7 kill", "--max-restarts", "3")
        self.finish(job, 137)
        self.assertIn("No restart was left: 3 of 3 were used", job.err())
        self.assertNotIn("It computed", job.err())


if __name__ == "__main__":
    if not os.path.exists(WORKER):
        print(f"skipped: no {WORKER}")
        sys.exit(SKIPPED)
    ddprun_case.main()
