"""Collectives of two ranks on each of two machines, which are network namespaces: shared memory inside, the wire between."""

import os

import ddprun_case
from ddprun_case import Network, TwoMachinesCase, skip_all, wait_until

WORKER = os.path.join(ddprun_case.BIN, "collectives_worker")


class CollectivesOfTwoMachines(TwoMachinesCase):
    def on_two_machines(self, script):
        """The namespaces share a host name, so each node's workers say where they are."""
        worker = ["--nproc-per-node", "2", "/bin/sh", "-c", f"export DDPRUN_HOST=node-$GROUP_RANK; {script}"]
        first = self.start("--nnodes", "2", *worker, netns=self.net.names[0])
        line = first.wait_for(r"run:\n\n  (.*\S)\n").group(1)
        second = self.start_program(["/bin/sh", "-c", f"exec env {line}"], netns=self.net.names[1])
        return first, second

    def test_the_hierarchical_backend_is_chosen_and_right(self):
        jobs = self.on_two_machines(f'exec "{WORKER}"')
        for job in jobs:
            self.finish(job)
        said = "".join(job.out() for job in jobs)
        for rank in range(4):
            self.assertIn(f"rank {rank} of 4 on cpu: right", said)

    def test_a_loss_that_ends_no_connection_ends_the_operations_of_the_others(self):
        """A cable is pulled, and operations have half an hour: what ends them is the agent's word."""
        begun = self.path("begun")
        first, _ = self.on_two_machines(f'exec "{WORKER}" {begun}')
        wait_until(lambda: all(os.path.exists(f"{begun}.{rank}") for rank in range(4)), "all ranks reduce")
        self.net.cut()
        for rank in (0, 1):
            first.wait_for(rf"rank {rank} on node-0: all_reduce .*: lost rank 2 on node-1 \(the agent reports: ")


if __name__ == "__main__":
    if Network.missing():
        skip_all(Network.missing())
    ddprun_case.main()
