"""ddprun under a real Slurm: slurmctld on one machine, slurmd on two others, munge, srun, sbatch and scancel.

The machines are network namespaces with host names of their own. Everything lives in the test's folder; the daemons are
found and ended by the mark in their environment as every other process of these tests.
"""

import os
import re
import shutil
import subprocess
import sys
import unittest

import ddprun_case
from ddprun_case import BIN, DDPRUN, DdprunCase, column, env_to, shell, skip_all, wait_until
from machines import Machines

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAMS = ["slurmctld", "slurmd", "munged", "srun", "sbatch", "scancel", "sinfo", "squeue"]
TOKEN = {"DDPRUN_TOKEN": "a token of the tests"}

CONF = """
ClusterName=ddprun
SlurmctldHost={m0}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
CredType=cred/munge
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool-%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd-%n.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
KillWait=5
SlurmdParameters=config_overrides
NodeName={m1} CPUs=8 State=UNKNOWN
NodeName={m2} CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""


def missing():
    for program in PROGRAMS:
        if not shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin"):
            return f"there is no {program} (packages slurmctld, slurmd, slurm-client and munge)"
    return Machines.missing()


class Slurm(DdprunCase):
    def setUp(self):
        super().setUp()
        os.chmod(self.dir, 0o755)
        self.machines = Machines(3, "10.79.0")
        self.machines.__enter__()
        self.addCleanup(self.machines.__exit__)
        self.addCleanup(lambda: [job.end() for job in self.jobs])
        self.munge()
        os.mkdir(self.path("state"))
        with open(self.path("slurm.conf"), "w", encoding="ascii") as f:
            f.write(CONF.format(dir=self.dir, m0="m0", m1="m1", m2="m2"))
        with open(self.path("cgroup.conf"), "w", encoding="ascii") as f:
            f.write("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        self.env = {"SLURM_CONF": self.path("slurm.conf"), "DDPRUN": DDPRUN}
        self.daemons = [self.on(0, "slurmctld", "-D"), self.on(1, "slurmd", "-D", "-N", "m1"),
                        self.on(2, "slurmd", "-D", "-N", "m2")]
        wait_until(lambda: self.ask("sinfo", "-h", "-o", "%D %t").split() == ["2", "idle"],
                   lambda: self.ask("sinfo") + self.logs())

    def munge(self):
        with open(self.path("munge.key"), "wb") as f:
            f.write(os.urandom(128))
        os.chmod(self.path("munge.key"), 0o400)
        file = lambda name: self.path("munge." + name)
        self.start_program(["munged", "--foreground", "--force", "--num-threads=2", "--socket=" + file("socket"),
                            "--key-file=" + file("key"), "--pid-file=" + file("pid"),
                            "--seed-file=" + file("seed"), "--log-file=" + file("log")])
        wait_until(lambda: os.path.exists(self.path("munge.socket")), "munged's socket")

    def on(self, machine, *argv, env=None):
        """A program on one machine, under that machine's host name."""
        script = f'hostname {self.machines.hosts[machine]} && exec "$@"'
        return self.start_program(["unshare", "--uts", "/bin/sh", "-c", script, "sh", *argv],
                                  netns=self.machines.names[machine], env={**self.env, **(env or {})})

    def ask(self, *argv):
        done = subprocess.run(["ip", "netns", "exec", self.machines.names[0], *argv], capture_output=True,
                              text=True, env={**ddprun_case.clean_environment(), **self.env}, timeout=60, check=False)
        return done.stdout + done.stderr

    def srun(self, *argv, env=None, nodes=2):
        return self.on(0, "srun", f"-N{nodes}", "--ntasks-per-node=1", *argv, env={**TOKEN, **(env or {})})

    def logs(self):
        said = [job.text() for job in self.jobs]
        for name in sorted(os.listdir(self.dir)):
            if name.endswith(".log"):
                with open(self.path(name), encoding="utf-8", errors="replace") as f:
                    said.append(f"--- {name}\n" + f.read()[-3000:])
        return "\n".join(said)

    def end_well(self, job, code=0):
        self.assertEqual(job.wait(60), code, job.text())
        wait_until(lambda: not self.ddpruns(), lambda: f"left: {self.ddpruns()}")

    def ddpruns(self):
        return [p for job in self.jobs for p in job.processes() if p.name.startswith("ddprun")]

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

    def test_the_batch_script(self):
        """deploy/slurm/ddprun.sbatch as it is, with a token that it makes."""
        output = self.path("batch.out")
        job = self.on(0, "sbatch", "--wait", "--nodes=2", "--output", output,
                      os.path.join(ROOT, "deploy/slurm/ddprun.sbatch"), "--nproc-per-node", "2",
                      *shell('echo "rank $RANK of $WORLD_SIZE"'))
        self.end_well(job)
        with open(output, encoding="utf-8") as f:
            said = f.read()
        self.assertEqual(sorted(re.findall(r"rank (\d) of 4", said)), ["0", "1", "2", "3"], said)

    def test_a_batch_script_that_forgot_srun_is_told(self):
        script = self.path("script")
        with open(script, "w", encoding="ascii") as f:
            f.write(f"#!/bin/sh\n{DDPRUN} true\n")
        output = self.path("batch.out")
        self.end_well(self.on(0, "sbatch", "--wait", "--nodes=2", "--output", output, script))
        with open(output, encoding="utf-8") as f:
            self.assertIn("this Slurm job has 2 nodes, and only this one is used", f.read())


if __name__ == "__main__":
    if missing():
        skip_all(missing())
    ddprun_case.main()
