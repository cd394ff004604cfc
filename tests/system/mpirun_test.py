"""ddprun under mpirun: one a "node", of which Hydra takes every name that it is given."""

import shutil

import ddprun_case
from ddprun_case import DDPRUN, DdprunCase, column, env_to, free_port, shell, skip_all

MPIRUN = "mpirun.mpich"
TOKEN = {"DDPRUN_TOKEN": "a token of the tests"}


class UnderHydra(DdprunCase):
    def mpirun(self, *argv, hosts="127.0.0.1,127.0.0.2,127.0.0.3"):
        return self.start_program([MPIRUN, "-launcher", "fork", "-hosts", hosts, "-ppn", "1", "-n",
                                   str(hosts.count(",") + 1), DDPRUN, *argv], env=TOKEN)

    def test_ranks_and_sizes_come_from_mpirun(self):
        job = self.mpirun("--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--nproc-per-node", "2", *shell(env_to()))
        self.finish(job)
        workers = self.wait_for_workers(6, jobs=[job])
        self.assertEqual(column(workers, "GROUP_RANK"), ["0", "0", "1", "1", "2", "2"])
        self.assertEqual(column(workers, "PMI_RANK"), ["0", "0", "1", "1", "2", "2"])

    def test_it_says_that_it_needs_an_endpoint(self):
        job = self.mpirun("true")
        self.assertNotEqual(job.wait(), 0)
        self.assertIn("MPICH's mpiexec started this run on 3 nodes and does not say where they can meet", job.err())

    def test_several_a_node_are_refused(self):
        job = self.start_program([MPIRUN, "-n", "3", DDPRUN, "true"], env=TOKEN)
        self.assertNotEqual(job.wait(), 0)
        self.assertIn("mpiexec started 3 ddprun on one node", job.err())


if __name__ == "__main__":
    if not shutil.which(MPIRUN):
        skip_all("there is no mpirun.mpich (package mpich)")
    ddprun_case.main()
