"""The Jobs of deploy/kubernetes as pods: they meet, and survive the end of each pod, also that of pod 0, whose replacement has
another address. A stand-in for the Job controller (job_controller.py) says which pods are started, replaced and ended."""

import os
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
import ddprun_case
from ddprun_case import DdprunCase, skip_all, wait_until
from job_controller import JobController, Start

try:
    import pods
except ImportError:
    pods = None  # Without PyYAML.

ENDLESS = 10**9  # Steps.


class Controlled:
    """A Job's pods and its controller."""

    def __init__(self, made, epochs):
        self.made, self.epochs, self.jobs, self.codes = made, epochs, {}, []
        self.controller = JobController(made.job)
        self.act(self.controller.reconcile())

    def act(self, actions):
        for action in actions:
            if isinstance(action, Start):
                self.jobs[action.index] = self.made.start(action.index, self.epochs)
            else:
                self.made.signal(self.jobs[action.index], "TERM", may_be_gone=True)

    def pods(self):
        return [self.jobs[index] for index in sorted(self.jobs)]

    def text(self):
        return f"{self.controller.__dict__}\n" + "\n".join(job.text() for job in self.pods())

    def look(self):
        """At pods that have ended."""
        for index in sorted(self.controller.active):
            if self.jobs[index].ended():
                self.codes.append(self.jobs[index].wait())
                self.act(self.controller.ended(index, self.codes[-1]))

    def until(self, condition, patience=120):
        def looked():
            self.look()
            return condition()
        wait_until(looked, self.text, patience)


class PodsCase(DdprunCase):
    def pods(self, folder, machines=8, nodes=None):
        made = pods.Pods(self, folder, machines, nodes)
        self.addCleanup(made.__exit__)
        made.__enter__()
        return made

    def controlled(self, made, epochs=ENDLESS):
        cluster = Controlled(made, epochs)
        cluster.until(lambda: all(f"of {len(cluster.jobs)} at step" in job.out() for job in cluster.pods()))
        return cluster

    def all_of(self, made, epochs=ENDLESS):
        return [made.start(index, epochs) for index in range(made.count)]

    def wait_for(self, jobs, text, patience=120):
        for job in jobs:
            wait_until(lambda: text in job.out() or job.ended(), lambda: f"{text!r} in " + "\n".join(other.text() for other in jobs), patience)
            self.assertIn(text, job.out(), job.text())

    def after(self, job, text, since, patience=120):
        """Something that a pod says after its first `since` characters."""
        wait_until(lambda: text in job.out()[since:], lambda: f"{text!r} after {since} characters of {job.text()}", patience)


class Job(PodsCase):
    def test_they_meet_compute_and_end(self):
        made = self.pods("job")
        jobs = self.all_of(made, epochs=1000)
        self.wait_for(jobs, "of 4 at step 0: sum 4")
        health = made.execute(jobs[1], *made.job["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["exec"]["command"])
        # The profile of RuntimeDefault is in force, and no capability is left.
        status = made.execute(jobs[1], "/bin/grep", "-E", "^(Seccomp|CapBnd):", "/proc/1/status").stdout.split()
        self.assertEqual(status, ["CapBnd:", "0" * 16, "Seccomp:", "2" if os.path.exists(pods.SECCOMP) else "0"])
        self.assertEqual((health.returncode, health.stdout.split(",")[0]), (0, "run train: running"), health.stderr)
        for job in jobs:
            self.assertEqual(job.wait(), 0, job.text())
            self.assertIn("done at 1000", job.out())

    def test_ranks_of_a_pod_share_the_64_mb_that_containers_have(self):
        """Without the manifest's volume on /dev/shm."""
        made = self.pods("job")
        container = made.job["spec"]["template"]["spec"]["containers"][0]
        container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["mountPath"] != "/dev/shm"]
        made.more = {"PET_NPROC_PER_NODE": "2"}
        jobs = self.all_of(made, epochs=100)
        self.wait_for(jobs, "of 8 at step 0: sum 8")
        size = made.execute(jobs[0], "/bin/df", "--output=size", "--block-size=1M", "/dev/shm").stdout.split()
        self.assertEqual(size[-1], "64")
        for job in jobs:
            self.assertEqual(job.wait(), 0, job.text())

    def test_a_pod_that_is_killed_is_replaced(self):
        """Each pod once, pod 0 with the daemon too: the others stay, and compute with its replacement."""
        made = self.pods("job")
        cluster = self.controlled(made)
        for index in (1, 2, 3, 0):
            others = [job for i, job in enumerate(cluster.pods()) if i != index]
            said = [len(job.out()) for job in others]
            began = time.monotonic()
            killed = cluster.jobs[index]
            made.signal(killed, "KILL")
            cluster.until(lambda: killed is not cluster.jobs[index])
            self.wait_for([cluster.jobs[index]], "of 4 at step")
            for job, since in zip(others, said):
                self.after(job, "of 4 at step", since)
            self.report(f"all run again {time.monotonic() - began:.1f} s after SIGKILL of pod {index}")
        cluster.look()
        self.assertEqual((cluster.codes, cluster.controller.failures), ([137] * 4, {0: 1, 1: 1, 2: 1, 3: 1}))

    def test_one_failure_among_sixteen_pods_is_one_failure_of_the_job(self):
        """The other pods stay, so that only one index uses an attempt of its backoffLimitPerIndex."""
        made = self.pods("job", machines=17, nodes=16)
        cluster = self.controlled(made)
        said = [len(job.out()) for job in cluster.pods()]
        began = time.monotonic()
        killed = cluster.jobs[7]
        made.signal(killed, "KILL")
        cluster.until(lambda: killed is not cluster.jobs[7])
        self.wait_for([cluster.jobs[7]], "of 16 at step")
        for index, job in enumerate(cluster.pods()):
            if index != 7:
                self.after(job, "of 16 at step", said[index])
        took = time.monotonic() - began
        cluster.look()
        self.assertEqual((cluster.controller.failures, cluster.controller.ignored), ({7: 1}, 0), cluster.text())
        self.report(f"sixteen run again {took:.1f} s after SIGKILL of one")

    def test_a_run_that_fails_costs_each_index_one_of_its_own_attempts(self):
        made = self.pods("job")
        made.more = {"FAILS": "2"}
        cluster = self.controlled(made, epochs=200)
        made.more = {}  # In the pods that replace these.
        cluster.until(lambda: cluster.controller.condition)
        self.assertEqual(cluster.controller.condition, ("Complete", ""), cluster.text())
        self.assertEqual((cluster.codes, cluster.controller.failures), ([7] * 4 + [0] * 4, {0: 1, 1: 1, 2: 1, 3: 1}), cluster.text())

    def test_a_program_that_is_not_there_fails_the_job_at_once(self):
        made = self.pods("job")
        container = made.job["spec"]["template"]["spec"]["containers"][0]
        container["command"] = [word.replace("train.py", "absent.py") for word in container["command"]]
        cluster = Controlled(made, 1)
        cluster.until(lambda: cluster.controller.condition and not cluster.controller.active)
        self.assertEqual(cluster.controller.condition, ("Failed", "PodFailurePolicy"), cluster.text())
        self.assertEqual((made.started, cluster.controller.failures), (4, {}), cluster.text())
        self.assertIn("absent.py", cluster.text())

    def test_a_worker_that_takes_more_memory_than_its_pod_has_is_started_again_there(self):
        made = self.pods("job")
        made.memory, made.more = 256 << 20, {"HUNGRY": "2"}
        jobs = self.all_of(made)
        self.wait_for(jobs, "of 4 at step 0: sum 4")
        said = [len(job.out()) for job in jobs]
        wait_until(lambda: "was killed by signal 9" in jobs[2].err(), jobs[2].text)
        began = time.monotonic()
        for job, since in zip(jobs, said):
            self.after(job, "of 4 at step", since)
        self.report(f"all run again {time.monotonic() - began:.1f} s after the kernel has killed a worker for memory")
        self.assertRegex(jobs[2].err(), r"rank \d \(pid \d+\) was killed by signal 9 \(SIGKILL\): the kernel's out-of-memory killer")
        self.assertEqual([index for index, job in enumerate(jobs) if job.ended()], [])

    def test_a_queue_suspends_the_job_and_starts_it_again(self):
        """As Kueue does: all pods are told to end, which counts as no failure."""
        made = self.pods("kueue")
        cluster = Controlled(made, ENDLESS)
        self.assertEqual(cluster.jobs, {})
        for _ in range(2):
            cluster.act(cluster.controller.suspend(False))
            cluster.until(lambda: all("of 4 at step" in job.out() for job in cluster.pods()))
            began = time.monotonic()
            cluster.act(cluster.controller.suspend(True))
            cluster.until(lambda: not cluster.controller.active)
            self.report(f"all pods have ended {time.monotonic() - began:.1f} s after the Job was suspended")
        self.assertEqual((cluster.codes, cluster.controller.failures), ([75] * 8, {}), cluster.text())


class Elastic(PodsCase):
    def test_a_pod_that_is_evicted_leaves_and_its_replacement_joins(self):
        made = self.pods("elastic")
        cluster = self.controlled(made)
        for index in (1, 2, 3, 0):
            others = [job for i, job in enumerate(cluster.pods()) if i != index]
            said = [len(job.out()) for job in others]
            evicted, began = cluster.jobs[index], time.monotonic()
            made.signal(evicted, "TERM")
            for job, since in zip(others, said):
                self.after(job, "of 3 at step", since)
            alone = time.monotonic() - began
            wait_until(evicted.ended, evicted.text, 120)
            ended = time.monotonic() - began
            cluster.look()
            for job, since in zip(others, said):
                self.after(job, "of 4 at step", since)
            self.report(f"eviction of pod {index}: the others compute after {alone:.1f} s, it has ended after {ended:.1f} s, "
                        f"all again after {time.monotonic() - began:.1f} s")
        cluster.look()
        self.assertEqual((cluster.codes, cluster.controller.failures), ([75] * 4, {}), cluster.text())

    def test_pods_come_and_go_with_the_parallelism_of_the_job(self):
        made = self.pods("elastic")
        cluster = self.controlled(made)
        stay = [cluster.jobs[0], cluster.jobs[1]]
        for parallelism in (2, 4, 3, 4):
            said = [len(job.out()) for job in stay]
            began = time.monotonic()
            cluster.act(cluster.controller.scale(parallelism))
            cluster.until(lambda: all(f"of {parallelism} at step" in job.out()[since:] for job, since in zip(stay, said)))
            self.report(f"parallelism {parallelism}: after {time.monotonic() - began:.1f} s")
            cluster.until(lambda: len(cluster.controller.active) == parallelism)
        self.assertEqual((cluster.codes, cluster.controller.failures), ([75] * 3, {}), cluster.text())


if __name__ == "__main__":
    if pods is None:
        skip_all("there is no PyYAML (package python3-yaml)")
    why_not = pods.missing()
    if why_not:
        skip_all(why_not)
    ddprun_case.main()
