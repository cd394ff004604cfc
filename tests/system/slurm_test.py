"""ddprun under a real Slurm: srun, sbatch and scancel; slurm_templates_test.py has the scripts of deploy/slurm."""

import os
import unittest

import ddprun_case
from ddprun_case import (BIN, DDPRUN, PACKAGE, STARTED_RANK, column, env_to, free_port, shell, skip_all,
                         wait_until)
from slurm_cluster import TOKEN, SlurmCase, missing


class Slurm(SlurmCase):
    def setUp(self):
        super().setUp()
        self.start_cluster()

    def test_srun_places_every_worker(self):
        job = self.srun(DDPRUN, "--nproc-per-node", "2", *shell(env_to()))
        self.end_well(job)
        workers = self.wait_for_workers(4, jobs=[job])
        self.assertEqual(column(workers, "RANK"), ["0", "1", "2", "3"])
        self.assertEqual(column(workers, "GROUP_RANK"), ["0", "0", "1", "1"])
        self.assertEqual(column(workers, "SLURMD_NODENAME"), ["m1", "m1", "m2", "m2"])
        self.assertEqual(set(column(workers, "MASTER_ADDR")), {"10.79.0.2"})
        self.assertEqual(set(column(workers, "TORCHELASTIC_RUN_ID")), {f"slurm-{workers[0]['SLURM_JOB_ID']}.0"})
        self.assertTrue(all("DDPRUN_TOKEN" not in worker for worker in workers))
        self.assertNotIn("DDPRUN_TOKEN=", job.err(), "there is nothing to paste")

    @unittest.skipUnless(os.path.exists(os.path.join(BIN, "train")), "train was not built: there is no libtorch")
    def test_the_main_job(self):
        """Training on two machines, over their network."""
        job = self.srun(DDPRUN, "--nproc-per-node", "2", "train", "--epochs", "1", "--max-steps", "20",
                        "--check-weights", env={"DDPRUN_SOCKET_IFNAME": "wire", "OMP_NUM_THREADS": "1"})
        self.end_well(job)
        self.assertRegex(job.out(), r"weights equal on 4 ranks, hash \w+")

    def test_the_exit_code_is_the_workers_own(self):
        job = self.srun("--kill-on-bad-exit=0", DDPRUN, *shell('[ "$RANK" = 1 ] && exit 7; exec sleep 600'))
        self.end_well(job, 7)
        self.assertRegex(job.err(), r"rank 1 .*m2|m2.*rank 1")

    def test_scancel_ends_everything(self):
        job = self.srun(DDPRUN, "--nproc-per-node", "2", *shell(env_to() + "exec sleep 600"))
        self.wait_for_workers(4, jobs=[job])
        number = self.ask("squeue", "-h", "-o", "%i").strip()
        self.ask("scancel", number)
        self.assertNotEqual(job.wait(60), 0, job.text())
        wait_until(lambda: not [p for p in job.processes() if p.name in ("sleep", "ddprun")],
                   lambda: f"left: {job.processes()}")

    def test_without_a_token_each_node_says_what_to_do(self):
        job = self.srun(DDPRUN, "true", env={"DDPRUN_TOKEN": ""})
        self.end_well(job, 2)
        self.assertIn("export DDPRUN_TOKEN=$(openssl rand -hex 16)", job.err())

    def test_several_tasks_a_node_are_refused(self):
        job = self.on(0, "srun", "-N2", "--ntasks-per-node=2", DDPRUN, "true", env=TOKEN)
        self.end_well(job, 2)
        self.assertIn("srun started 2 ddprun on one node", job.err())

    def test_flags_win_over_slurm(self):
        job = self.srun(DDPRUN, "--standalone", *shell('echo "world $WORLD_SIZE"'))
        self.end_well(job)
        self.assertEqual(job.out().count("world 1"), 2, job.text())

    def test_a_batch_script_that_forgot_srun_is_told(self):
        script = self.path("script")
        with open(script, "w", encoding="ascii") as f:
            f.write(f"#!/bin/sh\n{DDPRUN} true\n")
        output = self.path("batch.out")
        self.end_well(self.on(0, "sbatch", "--wait", "--nodes=2", "--output", output, script))
        with open(output, encoding="utf-8") as f:
            self.assertIn("this Slurm job has 2 nodes, and only this one is used", f.read())

    def started(self, *argv, env=None):
        """What ranks print that are started without ddprun, in their order."""
        job = self.on(0, *argv, env={**PACKAGE, **(env or {})})
        self.assertEqual(job.wait(60), 0, job.text())
        return sorted(line for line in job.out().splitlines() if line.startswith("rank"))

    def test_ranks_that_srun_starts_without_ddprun_meet(self):
        self.assertEqual(self.started("srun", "-N2", "--ntasks-per-node=2", *STARTED_RANK),
                         [f"rank {r} of 4 local {r % 2} on m{1 + r // 2}: sum 6" for r in range(4)])
        self.assertEqual(self.started("srun", "-N2", "-n3", "--distribution=cyclic", *STARTED_RANK),
                         ["rank 0 of 3 local 0 on m1: sum 3", "rank 1 of 3 local 0 on m2: sum 3",
                          "rank 2 of 3 local 1 on m1: sum 3"])
        self.assertEqual(self.started("srun", "-N1", "-n2", *STARTED_RANK, env={"MASTER_PORT": str(free_port())}),
                         ["rank 0 of 2 local 0 on m1: sum 1", "rank 1 of 2 local 1 on m1: sum 1"])

    def test_what_is_no_step_of_several_tasks_is_alone(self):
        self.assertEqual(self.started("salloc", "--quiet", "-N2", "-n4", *STARTED_RANK),
                         ["rank 0 of 1 local 0 on m0: sum 0"])
        shell_of_one = ["srun", "-N1", "-n1", "--pty", *STARTED_RANK]
        self.assertEqual(self.started("salloc", "--quiet", "-N2", "-n4", *shell_of_one),
                         ["rank 0 of 1 local 0 on m1: sum 0"])
        script, output = self.path("alone"), self.path("alone.out")
        with open(script, "w", encoding="ascii") as f:
            f.write("#!/bin/sh\nexec " + " ".join(STARTED_RANK) + "\n")
        self.started("sbatch", "--wait", "--nodes=2", "--ntasks=4", "--output", output, script)
        with open(output, encoding="utf-8") as f:
            self.assertEqual(f.read(), "rank 0 of 1 local 0 on m1: sum 0\n")

    def test_a_first_task_on_another_node_is_refused(self):
        hosts = self.path("hosts")
        with open(hosts, "w", encoding="ascii") as f:
            f.write("m2\nm1\n")
        job = self.on(0, "srun", "-N2", "-n2", "--distribution=arbitrary", "--kill-on-bad-exit=1", *STARTED_RANK,
                      env={**PACKAGE, "SLURM_HOSTFILE": hosts})
        self.assertNotEqual(job.wait(60), 0, job.text())
        self.assertIn("does not name the host of rank 0: set MASTER_ADDR to it", job.text())
        self.assertNotIn("of 1", job.out())


if __name__ == "__main__":
    if missing():
        skip_all(missing())
    ddprun_case.main()
