"""The pipeline example: a model split over two ranks trains as one process with all of it does."""

import os
import re
import sys

import ddprun_case
from ddprun_case import BIN, DdprunCase, skip_all

ONE_THREAD = {"OMP_NUM_THREADS": "1"}


class Pipeline(DdprunCase):
    def test_two_stages_equal_one_process(self):
        for launch in (["--nproc-per-node", "2"], ["--local-nodes", "2"]):
            job = self.run_ddprun(*launch, os.path.join(BIN, "pipeline"), env=ONE_THREAD)
            first, last, worst = re.search(r"loss (\S+) to (\S+); one process alone differs by (\S+)", job.out()).groups()
            self.assertLess(float(worst), 1e-4)
            self.assertLess(float(last), float(first))

    def test_another_number_of_ranks_is_told(self):
        job = self.run_ddprun("--nproc-per-node", "3", os.path.join(BIN, "pipeline"), code=2, env=ONE_THREAD)
        self.assertIn("has two stages", job.err())


if __name__ == "__main__":
    if not os.access(os.path.join(BIN, "pipeline"), os.X_OK):
        skip_all("pipeline was not built")
    sys.exit(ddprun_case.main())
