"""A real Slurm for tests: slurmctld on one machine, slurmd on the others, munge, srun, sbatch and scancel.

The machines are network namespaces with host names of their own. Everything lives in the test's folder; the daemons are
found and ended by the mark in their environment as every other process of these tests.
"""

import os
import shutil
import signal
import subprocess

import ddprun_case
from ddprun_case import DDPRUN, DdprunCase, wait_until
from machines import Machines

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAMS = ["slurmctld", "slurmd", "munged", "srun", "sbatch", "scancel", "sinfo", "squeue"]
TOKEN = {"DDPRUN_TOKEN": "a token of the tests"}
FREEZER = "/sys/fs/cgroup/freezer"
ONE_PARTITION = "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8"

CONF = """
ClusterName=ddprun
SlurmctldHost=m0
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
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/{task}
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
KillWait=5
SlurmdParameters=config_overrides
NodeName=m[1-{nodes}] CPUs={cpus} State=UNKNOWN
{more}
"""


def missing():
    for program in PROGRAMS:
        if not shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin"):
            return f"there is no {program} (packages slurmctld, slurmd, slurm-client and munge)"
    return Machines.missing()


class SlurmCase(DdprunCase):
    def start_cluster(self, nodes=2, cpus=8, task="none", proctrack="linuxproc", power=False, more=ONE_PARTITION):
        """m0 with slurmctld, m1 and so on with slurmd; `more` has the partitions, one setting a line.

        With proctrack "cgroup", as on most clusters, scancel --signal reaches the tasks only, otherwise all processes.
        With `power` a node can lose it, and has process numbers of its own.
        """
        os.chmod(self.dir, 0o755)
        self.machines = Machines(nodes + 1, "10.79.0")
        self.machines.__enter__()
        self.addCleanup(self.machines.__exit__)
        self.addCleanup(lambda: [job.end() for job in self.jobs])
        self.munge()
        os.mkdir(self.path("state"))
        with open(self.path("slurm.conf"), "w", encoding="ascii") as f:
            f.write(CONF.format(dir=self.dir, nodes=nodes, cpus=cpus, task=task, proctrack=proctrack,
                                more=more))
        with open(self.path("cgroup.conf"), "w", encoding="ascii") as f:
            f.write(f"CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nCgroupMountpoint={self.path('cgroup')}\n")
        self.env = {"SLURM_CONF": self.path("slurm.conf"), "DDPRUN": DDPRUN}
        self.on(0, "slurmctld", "-D")
        self.nodes = {f"m{i}": self.node(i, proctrack == "cgroup", power) for i in range(1, nodes + 1)}
        wait_until(lambda: self.ask("sinfo", "-h", "-o", "%D %t").split()[:2] == [str(nodes), "idle"],
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

    def on(self, machine, *argv, env=None, cwd=None):
        """A program on one machine, under that machine's host name."""
        script = f'hostname {self.machines.hosts[machine]} && exec "$@"'
        return self.start_program(["unshare", "--uts", "/bin/sh", "-c", script, "sh", *argv],
                                  netns=self.machines.names[machine], env={**self.env, **(env or {})}, cwd=cwd)

    def node(self, machine, in_cgroup, power):
        """A slurmd; `in_cgroup`: which sees its own part of the freezer's tree only; `power`: all that it starts ends with it."""
        enter, mount = "", ""
        apart = ["--pid", "--fork", "--kill-child", "--mount-proc"] if power else []
        if in_cgroup:
            group = f"{FREEZER}/ddprun-tests-{os.getpid()}-m{machine}"
            os.makedirs(group, exist_ok=True)
            self.addCleanup(self.remove_cgroup, group)
            enter = f"echo $$ > {group}/cgroup.procs && "
            tree = self.path("cgroup") + "/freezer"
            os.makedirs(tree, exist_ok=True)
            mount = f"mount -t cgroup -o freezer cgroup {tree} && "
            apart += ["--cgroup", "--mount"]
        host = self.machines.hosts[machine]
        script = f'hostname {host} && {mount}exec slurmd -D -N {host}'
        argv = ["ip", "netns", "exec", self.machines.names[machine], "unshare", "--uts", *apart, "/bin/sh", "-c", script]
        return self.start_program(["/bin/sh", "-c", enter + 'exec "$@"', "sh", *argv], env=self.env)

    def remove_cgroup(self, group):
        """Once all jobs were ended, of whose processes the kernel may still be rid."""
        for job in self.jobs:
            job.end()
        for folder, _, _ in os.walk(group, topdown=False):
            wait_until(lambda: not self.in_cgroup(folder), f"{folder} to be empty")
            os.rmdir(folder)

    @staticmethod
    def in_cgroup(folder):
        with open(folder + "/cgroup.procs", encoding="ascii") as f:
            return f.read()

    def lose_power(self, node):
        """Ends all processes of a node at once, its slurmd too."""
        self.nodes[node].signal(signal.SIGKILL)

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
