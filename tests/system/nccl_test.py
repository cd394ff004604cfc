"""The backend nccl under ddprun, on fakes of CUDA and NCCL: what the agent knows reaches the ranks."""

import os
import re

import ddprun_case
from ddprun_case import BIN, DdprunCase

TESTS = os.path.join(os.path.dirname(BIN), "tests")
WORKER = os.path.join(TESTS, "nccl_worker")
FAKES = {"DDPRUN_CUDART_LIB": os.path.join(TESTS, "libfake_cudart.so"),
         "DDPRUN_NCCL_LIB": os.path.join(TESTS, "libfake_nccl.so"),
         "NCCL_HOSTID": "shared"}  # Two nodes on one machine have the same GPUs.
WAITED = r"rank {}: peer 1, waited (\d+) ms, kind 5: [^\n]*lost rank 1 on [^\n]*"


class Nccl(DdprunCase):
    def setUp(self):
        super().setUp()
        if not os.access(WORKER, os.X_OK):
            self.skipTest(f"{WORKER} was not built")

    def run_until_lost(self, how, *argv, code):
        job = self.start(*argv, WORKER, "20", how, env={**os.environ, **FAKES})
        self.finish(job, code)
        return job

    def told(self, job, by_agent, others):
        waited = []
        for rank in by_agent + others:
            word = "the agent says: rank 1 .*SIGKILL" if rank in by_agent else ""
            line = re.search(WAITED.format(rank) + word, job.out())
            self.assertTrue(line, job.text())
            waited.append(int(line[1]))
            self.assertRegex(job.out(), rf"sibling of rank {rank}: .*rank 1")
        self.report(f"the ranks were told after {max(waited)} ms")
        self.assertLess(max(waited), 10_000)  # NCCL alone, and Gloo here, would wait 10 minutes.

    def test_a_death_that_no_connection_shows_is_told_by_the_agent(self):
        self.told(self.run_until_lost("orphan", "--nproc-per-node", "3", code=137), [0, 2], [])

    def test_the_agents_of_other_nodes_tell_it_too(self):
        """Or, where that agent is late, those whose agent was not."""
        job = self.run_until_lost("orphan", "--local-nodes", "2", "--nproc-per-node", "2", code=137)
        self.told(job, [0], [2, 3])

    def test_the_next_round_joins_and_works(self):
        job = self.run_until_lost("die", "--nproc-per-node", "3", "--max-restarts", "1", code=0)
        self.told(job, [], [0, 2])
        for rank in range(3):
            self.assertRegex(job.out(), rf"rank {rank}: joined twice in \d+ ms, restart 1")


if __name__ == "__main__":
    ddprun_case.main()
