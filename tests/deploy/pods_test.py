"""The Jobs of deploy/kubernetes as pods: they meet, and survive the end of each pod, also that of pod 0, whose replacement has
another address. The test stands in for the Job controller: it starts the replacement."""

import os
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
import ddprun_case
from ddprun_case import DdprunCase, skip_all, wait_until

try:
    import pods
except ImportError:
    pods = None  # Without PyYAML.

ENDLESS = 10**9  # Steps.


class PodsCase(DdprunCase):
    def pods(self, folder, machines=8, nodes=None):
        made = pods.Pods(self, folder, machines, nodes)
        self.addCleanup(made.__exit__)
        made.__enter__()
        return made

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

    def test_a_pod_that_is_killed_is_replaced(self):
        """Each pod once, pod 0 with the daemon too: the others stay, and compute with its replacement."""
        made = self.pods("job")
        jobs = self.all_of(made)
        self.wait_for(jobs, "of 4 at step")
        for index in (1, 2, 3, 0):
            others = [job for i, job in enumerate(jobs) if i != index]
            said = [len(job.out()) for job in others]
            began = time.monotonic()
            made.signal(jobs[index], "KILL")
            self.assertEqual(jobs[index].wait(), 137, jobs[index].text())
            jobs[index] = made.start(index, ENDLESS)
            self.wait_for([jobs[index]], "of 4 at step")
            for job, since in zip(others, said):
                self.after(job, "of 4 at step", since)
                self.assertFalse(job.ended(), job.text())
            self.report(f"all run again {time.monotonic() - began:.1f} s after SIGKILL of pod {index}")


    def test_one_failure_among_sixteen_pods_is_one_failure_of_the_job(self):
        """The other pods stay, so that only one index uses an attempt of its backoffLimitPerIndex."""
        made = self.pods("job", machines=17, nodes=16)
        jobs = self.all_of(made)
        self.wait_for(jobs, "of 16 at step")
        said = [len(job.out()) for job in jobs]
        began = time.monotonic()
        made.signal(jobs[7], "KILL")
        self.assertEqual(jobs[7].wait(), 137, jobs[7].text())
        jobs[7] = made.start(7, ENDLESS)
        self.wait_for([jobs[7]], "of 16 at step")
        for index, job in enumerate(jobs):
            if index != 7:
                self.after(job, "of 16 at step", said[index])
        self.assertEqual([index for index, job in enumerate(jobs) if job.ended()], [])
        self.report(f"sixteen run again {time.monotonic() - began:.1f} s after SIGKILL of one")


    def test_a_worker_that_takes_more_memory_than_its_pod_has_is_started_again_there(self):
        made = self.pods("job")
        made.memory, made.more = 256 << 20, {"HUNGRY": "2"}
        jobs = self.all_of(made)
        self.wait_for(jobs, "of 4 at step 0: sum 4")
        said = [len(job.out()) for job in jobs]
        for job, since in zip(jobs, said):
            self.after(job, "of 4 at step", since)
        self.assertRegex(jobs[2].err(), r"rank \d \(pid \d+\) was killed by signal 9 \(SIGKILL\): the kernel's out-of-memory killer")
        self.assertEqual([index for index, job in enumerate(jobs) if job.ended()], [])


class Elastic(PodsCase):
    def test_a_pod_that_is_evicted_leaves_and_its_replacement_joins(self):
        made = self.pods("elastic")
        jobs = self.all_of(made)
        self.wait_for(jobs, "of 4 at step")
        for index in (1, 2, 3, 0):
            others = [job for i, job in enumerate(jobs) if i != index]
            said = [len(job.out()) for job in others]
            began = time.monotonic()
            made.signal(jobs[index], "TERM")
            for job, since in zip(others, said):
                self.after(job, "of 3 at step", since)
            alone = time.monotonic() - began
            self.assertEqual(jobs[index].wait(), 75, jobs[index].text())
            ended = time.monotonic() - began
            jobs[index] = made.start(index, ENDLESS)
            for job, since in zip(others, said):
                self.after(job, "of 4 at step", since)
                self.assertFalse(job.ended(), job.text())
            self.report(f"eviction of pod {index}: the others compute after {alone:.1f} s, it has ended after {ended:.1f} s, "
                        f"all again after {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    if pods is None:
        skip_all("there is no PyYAML (package python3-yaml)")
    why_not = pods.missing()
    if why_not:
        skip_all(why_not)
    ddprun_case.main()
