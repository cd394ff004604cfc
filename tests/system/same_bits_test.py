"""The example trainer elastic under ddprun: the weights after some steps do not depend on the number of ranks."""

import os
import re
import sys

import ddprun_case
from ddprun_case import BIN, DdprunCase, skip_all

STEPS = "25"


class SameBits(DdprunCase):
    def trained(self, *launch, **options):
        """(the lines of losses, the hash) of one run."""
        out = self.run_ddprun(*launch, os.path.join(BIN, "elastic"), STEPS, **options).out()
        losses = re.findall(r"step (\d+), \d+ ranks: loss (\S+)", out)
        hashes = re.findall(rf"{STEPS} steps: hash (\w{{16}})$", out, re.M)
        self.assertEqual([len(losses), len(hashes)], [2, 1], out)
        return losses, hashes[0]

    def test_one_two_and_three_ranks_train_the_same_weights(self):
        alone = self.trained("--standalone", "--nproc-per-node", "1")
        for ranks in ("2", "3"):
            self.assertEqual(self.trained("--standalone", "--nproc-per-node", ranks), alone)

    def test_the_transport_changes_nothing(self):
        self.assertEqual(self.trained("--local-nodes", "2", "--nproc-per-node", "2"),
                         self.trained("--standalone", "--nproc-per-node", "3", env={"DDPRUN_BACKEND": "gloo"}))


if __name__ == "__main__":
    if not os.path.exists(os.path.join(BIN, "elastic")):
        skip_all("there is no elastic: it needs libtorch and zlib")
    sys.exit(ddprun_case.main())
