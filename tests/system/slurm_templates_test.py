"""The scripts of deploy/slurm, submitted as they are written to a real Slurm. scancel --signal stands for the time limit, the
end of all processes of a node for the loss of its power."""

import glob
import os
import re
import shutil
import signal
import subprocess
import unittest

import ddprun_case
from ddprun_case import BIN, DDPRUN, env_to, shell, skip_all, wait_until
from slurm_cluster import FREEZER, ROOT, SlurmCase, missing

TEMPLATES = os.path.join(ROOT, "deploy", "slurm")
WHOLE_NODES = "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
SPOT = """PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=spot Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF"""
WITH_SERVICE = """PartitionName=spot Nodes=m[1-2] Default=YES MaxTime=INFINITE State=UP
PartitionName=service Nodes=m3 MaxTime=INFINITE State=UP"""
LOSES_NODES = "SlurmdTimeout=10\n" + WHOLE_NODES
ELASTIC = os.path.join(BIN, "elastic")
needs_elastic = unittest.skipUnless(os.path.exists(ELASTIC), "elastic was not built: there is no libtorch")

needs_freezer = unittest.skipUnless(os.access(FREEZER, os.W_OK), f"Slurm's proctrack/cgroup needs {FREEZER}")

# Counts a step every 50 ms. SIGTERM makes it save the number; the next start continues from there.
COUNTS = """
step=$(cat "$D/step.$RANK" 2>/dev/null || echo 0)
trap 'echo $step > "$D/step.$RANK"; exit 0' TERM
echo "rank $RANK of $WORLD_SIZE begins at step $step"
while [ $step -lt ${STEPS:-100000} ]; do step=$((step + 1)); sleep 0.05; done
"""


def processors(mask):
    """The numbers of a list such as 0-3,8."""
    ends = [part.split("-") for part in mask.split(",")]
    return {number for first, *last in ends for number in range(int(first), int(last[0] if last else first) + 1)}


class TemplateCase(SlurmCase):
    def submit(self, template, *argv, options=(), env=None):
        """The number of the job; the file that job_said() reads is its output."""
        number = len(self.jobs)
        job = self.on(0, "sbatch", "--parsable", "--output", self.path("job-%j"), *options,
                      os.path.join(TEMPLATES, template), *argv, env={"HOME": self.dir, **(env or {})})
        self.assertEqual(job.wait(), 0, job.text())
        self.assertEqual(len(self.jobs), number + 1)
        return job.out().strip()

    def said(self, number):
        try:
            with open(self.path(f"job-{number}"), encoding="utf-8", errors="replace") as f:
                return f.read()
        except FileNotFoundError:
            return ""

    def field(self, number, name):
        found = re.search(rf"(?<!\w){name}=(\S+)", self.ask("scontrol", "show", "job", number))
        return found.group(1) if found else ""

    def wait_for(self, number, pattern, patience=60):
        return wait_until(lambda: re.search(pattern, self.said(number)),
                          lambda: f"{pattern!r} in job {number}:\n{self.said(number)}\n" +
                          self.ask("scontrol", "show", "job", number) + self.logs(), patience)

    def wait_for_state(self, number, *states, patience=60):
        wait_until(lambda: self.field(number, "JobState") in states,
                   lambda: f"job {number} to be {states}:\n{self.said(number)}\n" +
                   self.ask("scontrol", "show", "job", number) + self.logs(), patience)

    def start_again(self, number):
        """Once it was requeued: before the two minutes that Slurm waits, but not in the second of its end, when slurmd
        still refuses the job's credential."""
        self.wait_for_state(number, "PENDING")
        self.ask("scontrol", "update", f"JobId={number}", "StartTime=now+3")
        self.wait_for_state(number, "RUNNING")

    def complete(self, number):
        self.wait_for_state(number, "COMPLETED")
        wait_until(lambda: not self.ddpruns(), lambda: f"left: {self.ddpruns()}")

    def cancel(self, number):
        """Who cancels a job wants it gone, and not queued again."""
        self.ask("scancel", number)
        self.wait_for_state(number, "CANCELLED")
        wait_until(lambda: "completing" not in self.ask("sinfo", "-h", "-o", "%T"), lambda: self.ask("sinfo") + self.logs())
        self.assertEqual(self.field(number, "JobState"), "CANCELLED")

    def remove_folders(self):
        """Of ddprun on nodes that lost their power, or whose time to end was over."""
        wait_until(lambda: not self.ddpruns(), lambda: f"left: {self.ddpruns()}")
        for folder in self.folders_left():
            shutil.rmtree(folder)


class Templates(TemplateCase):
    def test_each_template_places_every_worker(self):
        self.start_cluster(more=WHOLE_NODES)
        for template, nodes in (("ddprun", 2), ("spot", 2), ("elastic", 2), ("one-node", 1)):
            with self.subTest(template=template):
                elastic = ["--nnodes", "2"] if template == "elastic" else []
                number = self.submit(template + ".sbatch", *elastic, "--nproc-per-node", "2",
                                     *shell('echo "rank $RANK of $WORLD_SIZE on $SLURMD_NODENAME, token ${DDPRUN_TOKEN:-hidden}"'))
                self.complete(number)
                said = re.findall(r"rank (\d) of (\d) on (m\d), token hidden", self.said(number))
                self.assertEqual(sorted(said), [(str(r), str(2 * nodes), f"m{1 + r // 2}") for r in range(2 * nodes)],
                                 self.said(number))
        self.assertEqual(glob.glob(self.path(".ddprun-runs/*")), [], "the token of a run outlives the run")

    def test_workers_get_the_processors_that_were_asked_for(self):
        """By what the kernel has as the mask of each worker. Two on one processor get a warning."""
        count = min(os.cpu_count(), 4)
        if count < 2:
            raise unittest.SkipTest("this machine has one processor")
        self.start_cluster(cpus=count, task="affinity", more=WHOLE_NODES)
        masks = shell('echo "rank $RANK: $(grep Cpus_allowed_list /proc/self/status)"')
        for template, options, expected in (("ddprun", [], count), ("spot", [], count), ("one-node", [f"--cpus-per-task={count}"], count),
                                            ("one-node", ["--cpus-per-task=1"], 1)):
            with self.subTest(template=template, options=options):
                number = self.submit(template + ".sbatch", "--nproc-per-node", "2", *masks, options=options)
                self.complete(number)
                found = sorted(re.findall(r"rank (\d): Cpus_allowed_list:\s*(\S+)", self.said(number)))
                self.report(f"{template} {' '.join(options)}: " + ", ".join(f"rank {rank} on {mask}" for rank, mask in found))
                self.assertEqual([int(rank) for rank, _ in found], list(range(2 if template == "one-node" else 4)), self.said(number))
                self.assertEqual({len(processors(mask)) for _, mask in found}, {expected}, self.said(number))
                self.assertEqual("2 workers on 1 processor: Slurm gave this task 1" in self.said(number), expected == 1, self.said(number))

    def test_tasks_of_an_array_are_runs_of_their_own(self):
        """Four at once on two nodes."""
        self.start_cluster(more=WHOLE_NODES)
        script = env_to() + 'until [ $(ls "$D" | grep -c "^env[.]") -ge 8 ]; do sleep 0.05; done'
        number = self.submit("one-node.sbatch", "--nproc-per-node", "2", *shell(script),
                             options=["--array=0-3", "--cpus-per-task=2"])
        workers = self.wait_for_workers(8, jobs=self.jobs)
        wait_until(lambda: not self.ask("squeue", "-h", "-j", number).strip(), lambda: self.ask("squeue") + self.logs())
        tasks = {}
        for worker in workers:
            tasks.setdefault(worker["SLURM_ARRAY_TASK_ID"], []).append((worker["RANK"], worker["WORLD_SIZE"]))
        self.assertEqual(tasks, {str(task): [("0", "2"), ("1", "2")] for task in range(4)})
        self.assertEqual(len({worker["TORCHELASTIC_RUN_ID"] for worker in workers}), 4)

    def is_requeued_and_goes_on(self, more):
        self.start_cluster(proctrack="cgroup", more=more)
        number = self.submit("spot.sbatch", *shell(COUNTS), env={"STEPS": "120"})
        self.wait_for(number, r"(?s)(begins at step 0.*){2}")
        self.ask("scancel", "--signal=USR1", number)
        self.start_again(number)
        begins = self.wait_for(number, r"(?s)begins at step 0.*begins at step ([1-9]\d*)")  # One file, not written over.
        self.assertLess(int(begins.group(1)), 120)
        self.complete(number)
        self.assertEqual(self.field(number, "Restarts"), "1")

    @needs_freezer
    def test_a_job_that_is_told_of_its_end_is_requeued_by_the_script(self):
        self.is_requeued_and_goes_on(WHOLE_NODES)

    @needs_freezer
    def test_a_job_that_is_told_of_its_end_is_requeued_once_where_slurm_does_it_too(self):
        self.is_requeued_and_goes_on("RequeueExit=75\n" + WHOLE_NODES)

    @needs_freezer
    def test_a_job_that_makes_room_for_another_goes_on_after_it(self):
        """A partition with GraceTime sends SIGTERM."""
        self.start_cluster(proctrack="cgroup", more=SPOT)
        number = self.submit("spot.sbatch", *shell(COUNTS), options=["--partition=spot"])
        self.wait_for(number, r"(?s)(begins at step 0.*){2}")
        urgent = self.submit("ddprun.sbatch", *shell("echo urgent"), options=["--partition=urgent"])
        self.complete(urgent)
        self.start_again(number)
        self.wait_for(number, r"(?s)(begins at step [1-9].*){2}")
        self.cancel(number)

    @needs_elastic
    def test_an_elastic_run_survives_the_loss_of_a_node(self):
        self.start_cluster(power=True, more=LOSES_NODES)
        number = self.submit("ddprun.sbatch", "--nnodes", "1:2", "--max-restarts", "9", ELASTIC, "100000")
        self.wait_for(number, "2 ranks")
        self.lose_power("m2")
        self.wait_for(number, r"1 ranks")
        # Slurm notices the loss after SlurmdTimeout, and would then end the job.
        wait_until(lambda: "down" in self.ask("sinfo", "-h", "-n", "m2", "-o", "%t"), lambda: self.ask("sinfo"), 90)
        said = len(self.said(number))
        wait_until(lambda: len(self.said(number)) > said, lambda: self.said(number)[-1000:] + self.logs())
        self.assertEqual((self.field(number, "JobState"), self.field(number, "Restarts")), ("RUNNING", "0"))
        self.cancel(number)
        self.remove_folders()

    @needs_elastic
    @needs_freezer
    def test_a_second_job_joins_a_run_and_leaves_it(self):
        self.start_cluster(proctrack="cgroup", more=WHOLE_NODES)
        flags = ["--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=1", "--max-restarts", "9", ELASTIC, "100000"]
        first = self.submit("elastic.sbatch", *flags, options=["--nodes=1"])
        self.wait_for(first, "1 ranks")
        second = self.submit("elastic.sbatch", *flags, options=["--nodes=1"], env={"JOIN": first})
        self.wait_for(first, "2 ranks")
        self.ask("scancel", "--signal=USR1", second)
        self.wait_for_state(second, "PENDING")
        self.wait_for(first, r"(?s)2 ranks.*1 ranks")
        self.start_again(second)
        self.wait_for(first, r"(?s)2 ranks.*1 ranks.*2 ranks")
        self.cancel(second)
        self.cancel(first)
        self.assertEqual(glob.glob(self.path(".ddprun-runs/*")), [], "the token of a run outlives the run")

    def test_a_job_that_would_join_a_run_that_has_ended_says_so(self):
        self.start_cluster(more=WHOLE_NODES)
        number = self.submit("elastic.sbatch", "--nnodes", "1:2", "true", options=["--nodes=1"], env={"JOIN": "4711"})
        self.complete(number)
        self.assertIn("job 4711 has ended: there is no run to join", self.said(number))


class Submitted(TemplateCase):
    """`ddprun slurm`, which fills the same scripts in."""

    def slurm(self, *argv, code=0, env=None, cwd=None):
        job = self.on(0, DDPRUN, "slurm", *argv, env={"HOME": self.dir, **(env or {})}, cwd=cwd)
        self.assertEqual(job.wait(), code, job.text())
        return job

    def numbers(self, job):
        found = re.findall(r"(?m)^Submitted batch job (\d+)$", job.out())
        self.assertTrue(found, job.text())
        return found

    def test_every_form_places_its_workers(self):
        self.start_cluster(more=WHOLE_NODES)
        program = ["--nproc-per-node", "2", *shell('echo "rank $RANK of $WORLD_SIZE on $SLURMD_NODENAME in $PWD"')]
        for options, nodes in ((["--cpus-per-task=2"], 1), (["--nodes", "2"], 2), (["--nodes=2", "--requeue"], 2),
                               (["-N", "2-2"], 2), (["--exclusive"], 1)):
            with self.subTest(options=options):
                [number] = self.numbers(self.slurm("--output", self.path("job-%j"), *options, "--", *program))
                self.complete(number)
                said = re.findall(r"rank (\d) of (\d) on (m\d)", self.said(number))
                self.assertEqual(len(said), 2 * nodes, self.said(number))
                self.assertEqual({size for _, size, _ in said}, {str(2 * nodes)})
                self.assertEqual(len({node for _, _, node in said}), nodes)

    @needs_elastic
    @needs_freezer
    def test_a_range_of_nodes_is_a_run_that_jobs_join_and_leave(self):
        self.start_cluster(nodes=3, proctrack="cgroup", more=WHOLE_NODES)
        submitted = self.slurm("--output", self.path("job-%j"), "--nodes", "1:2", "--", "--max-restarts", "9",
                               "--rdzv-conf", "last_call_timeout=1", ELASTIC, "100000")
        first, second = self.numbers(submitted)
        self.assertIn(f"ddprun slurm --join {first}", submitted.err())
        self.wait_for(first, r"2 ranks")
        self.ask("scancel", "--signal=USR1", second)
        self.wait_for_state(second, "PENDING")
        self.wait_for(first, r"(?s)2 ranks.*1 ranks")
        [third] = self.numbers(self.slurm("--output", self.path("job-%j"), "--join", first))
        self.wait_for(first, r"(?s)2 ranks.*1 ranks.*2 ranks")
        for number in (second, third, first):
            self.cancel(number)
        self.assertEqual(glob.glob(self.path(".ddprun-runs/*")), [], "the token of a run outlives the run")

    @needs_freezer
    def test_all_nodes_of_a_run_come_and_go_around_a_daemon_in_a_job_of_its_own(self):
        self.start_cluster(nodes=3, proctrack="cgroup", more=WITH_SERVICE)
        submitted = self.slurm("--output", self.path("job-%j"), "--partition=spot", "--daemon-on", "service", "--nodes", "1:2",
                               "--", "--max-restarts", "9", "--rdzv-conf", "last_call_timeout=1", *shell(COUNTS))
        daemon, first, second = self.numbers(submitted)
        self.assertIn(f"ddprun slurm --join {daemon}", submitted.err())
        for number in (first, second):
            self.wait_for(number, r"of 2 begins at step")
        self.ask("scancel", "--signal=USR1", first)  # Its node would have had the daemon.
        self.wait_for_state(first, "PENDING")
        self.wait_for(second, r"rank 0 of 1 begins at step [1-9]")
        self.start_again(first)
        for number in (first, second):
            self.wait_for(number, r"(?s)of 2 begins at step.*of 2 begins at step [1-9]")
        for number in (first, second):
            self.ask("scancel", number)
        self.wait_for_state(daemon, "COMPLETED")
        self.assertEqual(glob.glob(self.path(".ddprun-runs/*")), [], "the token of a run outlives the run")
        self.remove_folders()

    @needs_freezer
    def test_all_nodes_of_a_run_come_and_go_around_a_daemon_on_the_host_that_submits(self):
        """m0, as a login node: it runs no job. Its shell and terminal may go."""
        self.start_cluster(nodes=2, proctrack="cgroup", more=WHOLE_NODES)
        env = {"PAUSE": "1", "RUNS": self.path("runs")}
        submitted = self.slurm("--output", self.path("job-%j"), "--daemon-on", "this-host", "--nodes", "1:2", "--",
                               "--max-restarts", "9", "--rdzv-conf", "last_call_timeout=1", *shell(COUNTS), env=env, cwd=self.dir)
        first, second = self.numbers(submitted)
        [run] = re.findall(r"ddprun slurm --join (m0-[0-9a-f]{6})\n", submitted.err())
        for number in (first, second):
            self.wait_for(number, r"of 2 begins at step")
        self.ask("scancel", "--signal=USR1", first)
        self.wait_for_state(first, "PENDING")
        self.wait_for(second, r"rank 0 of 1 begins at step [1-9]")
        [daemon] = [p for p in self.ddpruns() if p.name.startswith("ddprun-rendezvo")]
        os.kill(daemon.pid, signal.SIGKILL)  # The script starts another, which reads the journal.
        self.start_again(first)
        for number in (first, second):
            self.wait_for(number, r"(?s)of 2 begins at step.*of 2 begins at step [1-9]")
        [third] = self.numbers(self.slurm("--output", self.path("job-%j"), "--join", run, env=env))
        for number in (first, second, third):
            self.ask("scancel", number)
        wait_until(lambda: not os.listdir(self.path("runs")), lambda: "the end of the daemon:\n" + self.daemon_said(run))
        self.remove_folders()
        self.assertIn("there is no run", self.slurm("--join", run, env=env, code=1).err())

    def daemon_said(self, run):
        with open(self.path(f"ddprun-daemon-{run}.out"), encoding="utf-8") as f:
            return f.read()

    def test_a_daemon_here_ends_with_a_run_that_is_refused_and_one_that_cannot_start_is_an_error(self):
        self.start_cluster(more=WHOLE_NODES)
        env = {"PAUSE": "1", "RUNS": self.path("runs")}
        refused = self.slurm("--daemon-on", "this-host", "--partition=nope", "--nodes", "2", "--", "true", env=env, cwd=self.dir,
                             code=1)
        self.assertIn("`sinfo -s` lists the partitions", refused.err())
        wait_until(lambda: not os.listdir(self.path("runs")), "the end of the daemon")
        failed = self.slurm("--daemon-on", "this-host", "--nodes", "2", "--", "true", code=1, cwd=self.dir,
                            env={**env, "DDPRUN": "/bin/true"})
        self.assertRegex(failed.err(), r"the daemon did not start on this host: see ddprun-daemon-m0-[0-9a-f]{6}\.out")
        wait_until(lambda: not os.listdir(self.path("runs")), "the folder of a run that never was to go")
        self.assertNotIn("Submitted", failed.out())

    def test_what_sbatch_refuses_is_explained(self):
        self.start_cluster(more=WHOLE_NODES)
        refused = self.slurm("--partition=nope", "--", "true", code=1).err()
        self.assertRegex(refused, r"sbatch refused the job: .*nvalid partition.*: `sinfo -s` lists the partitions")
        self.assertIn("no node has such GPUs", self.slurm("--gres=gpu:99", "--", "true", code=1).err())
        self.assertIn("ddprun's own options go behind --", self.slurm("--nproc-per-node=2", "--", "true", code=1).err())
        self.assertNotIn("Submitted", self.slurm("--test-only", "--", "true").out())
        dry = self.slurm("--dry-run", "--nodes=2", "--", *shell("echo rank $RANK of $WORLD_SIZE")).out()
        script = self.path("my.sbatch")
        with open(script, "w", encoding="ascii") as f:
            f.write(dry)
        job = self.on(0, "sbatch", "--parsable", "--output", self.path("job-%j"), script, env={"HOME": self.dir})
        self.assertEqual(job.wait(), 0, job.text())
        self.complete(job.out().strip())
        self.assertIn("rank 1 of 2", self.said(job.out().strip()))


class Text(unittest.TestCase):
    """What no Slurm is needed for."""

    def test_the_lines_for_containers_run_ddprun_in_them(self):
        """Uncommented, with a srun that prints its arguments."""
        stand_ins = {"srun": 'printf "<%s>" "$@"', "openssl": "echo 0123", "squeue": "echo 7"}
        for script in sorted(glob.glob(os.path.join(TEMPLATES, "*.sbatch"))):
            if script.endswith("daemon.sbatch"):
                continue
            for line, words in (("--container-image=", "<--container-image=/shared/train.sqsh>"),
                                ("apptainer", "<apptainer><exec><--nv></shared/train.sif>")):
                with self.subTest(script=script, line=line):
                    said = self.run_with(script, line, stand_ins)
                    self.assertIn(words, said)
                    self.assertLess(said.index(words), said.index("<ddprun>"))
                    self.assertTrue(said.endswith("<train.py><--epochs><3 4>"), said)

    def run_with(self, script, line, stand_ins):
        with open(script, encoding="utf-8") as f:
            text, count = re.subn(rf"(?m)^#(launch\+=\({line})", r"\1", f.read())
        self.assertEqual(count, 1, text)
        folder = self.enterContext(ddprun_case.tempfile.TemporaryDirectory())
        for name, body in stand_ins.items():
            with open(os.path.join(folder, name), "w", encoding="ascii") as f:
                f.write(f"#!/bin/sh\n{body}\n")
            os.chmod(os.path.join(folder, name), 0o755)
        env = {"PATH": folder + ":/usr/bin:/bin", "HOME": folder, "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "m1"}
        done = subprocess.run(["bash", "-c", text, "script", "train.py", "--epochs", "3 4"], env=env, capture_output=True,
                              text=True, timeout=20, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_what_all_templates_share_is_equal(self):
        texts = {}
        for script in sorted(glob.glob(os.path.join(TEMPLATES, "*.sbatch"))):
            with open(script, encoding="utf-8") as f:
                texts[os.path.basename(script)] = f.read()
        self.assertEqual(set(texts), {"daemon.sbatch", "ddprun.sbatch", "elastic.sbatch", "one-node.sbatch", "spot.sbatch"})
        for name, text in texts.items():
            with self.subTest(name=name):
                self.assertIn("#SBATCH --open-mode=append", text)
                if name == "daemon.sbatch":  # It starts no workers.
                    continue
                self.assertIn("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK", text)
                if name != "one-node.sbatch":
                    self.assertIn("#SBATCH --no-kill", text)
                    self.assertIn("(srun --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0)", text)
                if name in ("spot.sbatch", "elastic.sbatch"):
                    self.assertIn("#SBATCH --requeue", text)
                    self.assertIn("#SBATCH --signal=USR1@120", text)

    def test_without_sbatch_the_remedy_is_named(self):
        done = subprocess.run([DDPRUN, "slurm", "--nodes", "2", "--", "true"], env={"PATH": "/nonexistent"},
                              capture_output=True, text=True, timeout=20, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("starting sbatch: ", done.stderr)
        self.assertIn("--dry-run", done.stderr)


if __name__ == "__main__":
    if missing():
        skip_all(missing())
    ddprun_case.main()
