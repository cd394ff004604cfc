"""ddprun under mpirun: MPICH's, which takes every name of this machine for a node, and Open MPI's, on two machines."""

import os
import shutil
import unittest

import ddprun_case
from ddprun_case import DDPRUN, PACKAGE, STARTED_RANK, DdprunCase, column, env_to, free_port, shell, skip_all
from machines import Machines

MPIRUN = "mpirun.mpich"
OPEN_MPI = "mpirun.openmpi"
TOKEN = {"DDPRUN_TOKEN": "a token of the tests"}
# What mpirun starts writes into a file of the test: mpirun of MPICH loses what comes as it ends.
INTO_FILE = ["sh", "-c", 'exec "$@" >>"$SAID" 2>&1', "sh"]


def said(job):
    with open(job.said, encoding="utf-8", errors="replace") as f:
        return f.read()


class MpirunCase(DdprunCase):
    def start_by(self, mpirun, program, env):
        path = self.path(f"said{len(self.jobs)}")
        open(path, "w", encoding="ascii").close()
        job = self.start_program([*mpirun, *INTO_FILE, *program], env={**env, "SAID": path})
        job.said = path
        return job


class UnderHydra(MpirunCase):
    def mpirun(self, *argv, hosts="127.0.0.1,127.0.0.2,127.0.0.3"):
        count = str(hosts.count(",") + 1)
        return self.start_by([MPIRUN, "-launcher", "fork", "-hosts", hosts, "-ppn", "1", "-n", count], [DDPRUN, *argv],
                             TOKEN)

    def test_ranks_and_sizes_come_from_mpirun(self):
        job = self.mpirun("--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--nproc-per-node", "2", *shell(env_to()))
        self.finish(job)
        workers = self.wait_for_workers(6, jobs=[job])
        self.assertEqual(column(workers, "GROUP_RANK"), ["0", "0", "1", "1", "2", "2"])
        self.assertEqual(column(workers, "PMI_RANK"), ["0", "0", "1", "1", "2", "2"])

    def test_it_says_that_it_needs_an_endpoint(self):
        job = self.mpirun("true")
        self.assertNotEqual(job.wait(), 0)
        self.assertIn("MPICH's mpiexec started this run on 3 nodes and provides no endpoint", said(job))

    def test_several_a_node_are_refused(self):
        job = self.start_by([MPIRUN, "-n", "3"], [DDPRUN, "true"], TOKEN)
        self.assertNotEqual(job.wait(), 0)
        self.assertIn("mpiexec started 3 ddprun on one node", said(job))


class WithoutDdprun(MpirunCase):
    """Ranks that mpirun itself starts."""

    def started(self, *argv, env=None, code=0):
        job = self.start_by(argv, STARTED_RANK, {**PACKAGE, **(env or {})})
        self.assertEqual(job.wait() != 0, code != 0, job.text() + said(job))
        return job

    def meet(self, *argv, env=None):
        job = self.started(*argv, env=env)
        self.assertEqual(sorted(line.split(" on ")[0] for line in said(job).splitlines()),
                         [f"rank {r} of 3 local {r}" for r in range(3)], job.text())

    def test_ranks_of_mpich_meet(self):
        self.meet(MPIRUN, "-n", "3")
        self.meet(MPIRUN, "-n", "3", "sh", "-c", '"$@"; exit $?', "sh")  # A process in between.

    def test_two_jobs_of_mpich_at_once_do_not_meet_each_other(self):
        jobs = [self.start_by([MPIRUN, "-n", "2"], STARTED_RANK, PACKAGE) for _ in range(2)]
        for job in jobs:
            self.assertEqual(job.wait(), 0, job.text())
            self.assertEqual(sorted(line.split(" local")[0] for line in said(job).splitlines()),
                             ["rank 0 of 2", "rank 1 of 2"], job.text())

    def test_on_several_hosts_mpich_needs_the_place(self):
        hosts = [MPIRUN, "-launcher", "fork", "-hosts", "127.0.0.1,127.0.0.2", "-ppn", "1", "-n", "2"]
        self.assertIn("mpiexec started this program as rank 0 of 2, but does not name the host of rank 0: set "
                      "MASTER_ADDR to it", said(self.started(*hosts, code=1)))
        self.assertIn("gave the job no name: set MASTER_PORT, too",
                      said(self.started(*hosts, code=1, env={"MASTER_ADDR": "127.0.0.1"})))
        job = self.started(*hosts, env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())})
        self.assertEqual(said(job).count("of 2"), 2, job.text())

    @unittest.skipUnless(shutil.which(OPEN_MPI), "there is no mpirun.openmpi (package openmpi-bin)")
    def test_ranks_of_open_mpi_meet(self):
        self.meet(OPEN_MPI, "--allow-run-as-root", "--oversubscribe", "-n", "3")

    @unittest.skipUnless(shutil.which(OPEN_MPI), "there is no mpirun.openmpi (package openmpi-bin)")
    def test_ranks_of_a_launcher_win(self):
        job = self.started(OPEN_MPI, "--allow-run-as-root", "--oversubscribe", "-n", "2", DDPRUN, "--standalone",
                           "--nproc-per-node", "2")
        self.assertEqual(said(job).count(" of 2 local"), 4, job.text())


@unittest.skipUnless(shutil.which(OPEN_MPI), "there is no mpirun.openmpi (package openmpi-bin)")
@unittest.skipIf(Machines.missing(), Machines.missing())
class UnderOpenMpi(DdprunCase):
    """Its mpirun goes to the other machine by what it takes for ssh."""

    def setUp(self):
        super().setUp()
        self.machines = Machines(2)
        self.addCleanup(self.machines.__exit__)
        self.machines.__enter__()
        self.addCleanup(lambda: [job.end() for job in self.jobs])  # Before their network goes.
        cases = "".join(f"{host}) machine={name} ;;\n" for host, name in zip(self.machines.hosts, self.machines.names))
        with open(self.path("to"), "w", encoding="ascii") as f:
            f.write(f'#!/bin/sh\nhost=$1\nshift\ncase $host in\n{cases}esac\n'
                    'exec ip netns exec "$machine" unshare -u sh -c "hostname $host; $*"\n')
        os.chmod(self.path("to"), 0o755)

    def test_ranks_and_sizes_come_from_mpirun(self):
        mpirun = [OPEN_MPI, "--allow-run-as-root", "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", self.path("to"),
                  "--host", "m0:1,m1:1", "--map-by", "ppr:1:node", "-x", "DDPRUN_TOKEN"]
        there = ["unshare", "-u", "sh", "-c", 'hostname m0; exec "$@"', "m0"]
        job = self.start_program([*there, *mpirun, DDPRUN, "--rdzv-endpoint", "m0", "--nproc-per-node", "2",
                                  *shell(env_to())], netns=self.machines.names[0], env=TOKEN)
        self.finish(job)
        workers = self.wait_for_workers(4, jobs=[job])
        self.assertEqual(column(workers, "GROUP_RANK"), ["0", "0", "1", "1"])
        self.assertEqual(column(workers, "OMPI_COMM_WORLD_RANK"), ["0", "0", "1", "1"])


if __name__ == "__main__":
    if not shutil.which(MPIRUN):
        skip_all("there is no mpirun.mpich (package mpich)")
    ddprun_case.main()
