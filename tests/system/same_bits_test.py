"""The example trainer elastic under ddprun: the weights after some steps do not depend on the number of ranks."""

import os
import re
import signal
import subprocess
import sys

import ddprun_case
from ddprun_case import BIN, DdprunCase, skip_all, wait_until

ELASTIC = os.path.join(BIN, "elastic")
STEPS = "25"


def hashes(job):
    return re.findall(rf"{STEPS} steps: hash (\w{{16}})$", job.out(), re.M)


class SameBits(DdprunCase):
    def trained(self, *launch, **options):
        """(the lines of losses, the hash) of one run."""
        job = self.run_ddprun(*launch, ELASTIC, STEPS, **options)
        losses = re.findall(r"step (\d+), \d+ ranks: loss (\S+)", job.out())
        self.assertEqual([len(losses), len(hashes(job))], [2, 1], job.text())
        return losses, hashes(job)[0]

    def test_one_two_and_three_ranks_train_the_same_weights(self):
        alone = self.trained("--standalone", "--nproc-per-node", "1")
        for ranks in ("2", "3"):
            self.assertEqual(self.trained("--standalone", "--nproc-per-node", ranks), alone)

    def test_the_transport_changes_nothing(self):
        self.assertEqual(self.trained("--local-nodes", "2", "--nproc-per-node", "2"),
                         self.trained("--standalone", "--nproc-per-node", "3", env={"DDPRUN_BACKEND": "gloo"}))

    def test_a_run_that_goes_on_from_a_checkpoint_changes_nothing(self):
        _, quiet = self.trained("--standalone", "--nproc-per-node", "1")
        folder = self.path("checkpoints")
        for ranks, steps in ("2", "20"), ("3", STEPS):
            job = self.run_ddprun("--standalone", "--nproc-per-node", ranks, ELASTIC, steps, "-", folder)
        self.assertNotIn("step 0,", job.out())
        self.assertEqual(hashes(job), [quiet])

    def test_an_argument_that_is_no_number_explains_the_arguments(self):
        for argument, code in (("--help", 0), ("-h", 0), ("many", 2)):
            done = subprocess.run([ELASTIC, argument], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, code, done)
            self.assertIn("usage: elastic [STEPS]", done.stdout if code == 0 else done.stderr)

    def test_a_worker_that_dies_changes_nothing(self):
        """Whether the others continue or all begin again."""
        _, quiet = self.trained("--standalone", "--nproc-per-node", "2")
        job = self.start("--standalone", "--nproc-per-node", "3", "--max-restarts", "1", ELASTIC, STEPS)
        wait_until(lambda: "step 0, 3 ranks" in job.out() or job.ended(), job.text)
        workers = [p.pid for p in job.processes() if os.path.basename(p.argv[0]) == "elastic"]
        os.kill(workers[1], signal.SIGKILL)
        self.finish(job)
        self.assertIn("was killed by signal 9", job.err())
        self.assertEqual(hashes(job), [quiet])


if __name__ == "__main__":
    if not os.path.exists(ELASTIC):
        skip_all("there is no elastic: it needs libtorch and zlib")
    sys.exit(ddprun_case.main())
