#!/usr/bin/env python3
"""Jobs on a real Slurm are pre-empted again and again, and each time the script queues them anew.

    DDPRUN_BIN=build/dev/bin tests/failures/slurm_campaign.py [--times 50] [--seed S]

  one   Two jobs of one node are one run, around a daemon in a job of its own (`ddprun slurm --daemon-on`). One of them, chosen at
        random, gets the signal of its end after a random time; the other goes on, and the first comes back. Each sample must be in one
        committed step, and the hash at the end that of an undisturbed run.
  all   A job of two nodes (spot.sbatch) with plain workers that save where they are on SIGTERM, at a random time.
        Each step must have been done once, and the number that all steps make must be that of an undisturbed run.

A node that did not exit with 75 is not queued again, which ends the campaign. By hand only: its length depends on --times.
"""
import argparse
import os
import random
import statistics
import sys
import time

import paths  # noqa: F401
import campaign_logs
import ddprun_case
from campaign_logs import Workers
from ddprun_case import BIN, DDPRUN, shell, wait_until
from slurm_cluster import missing
from slurm_templates_test import WHOLE_NODES, WITH_SERVICE, Submitted

SOON = "SchedulerParameters=sched_interval=1,batch_sched_delay=0\n"  # A job begins at the second that it names.
WORKER = os.path.join(os.path.dirname(BIN), "tests", "campaign_worker")

# One line for each step, as it is done; a number that depends on all of them.
PLAIN = """
read step number 2>/dev/null < "$D/state.$RANK" || { step=0; number=1; }
trap 'is_ending=1' TERM
echo "rank $RANK begins at step $step"
until [ "$is_ending" ] || [ -e "$D/stop" ]; do
    echo "$step" >> "$D/did.$RANK"
    number=$(((number * 31 + step) % 1000003)); step=$((step + 1))
    sleep 0.05 & wait $!
done
echo "$step $number" > "$D/state.$RANK"
"""


class Campaign(Submitted):
    times, seed = 2, 1

    def preempted(self, number):
        """Seconds from the signal until the job is queued again."""
        began = time.monotonic()
        self.ask("scancel", "--signal=USR1", number)
        self.wait_for_state(number, "PENDING")
        return time.monotonic() - began

    def wait_for_starts(self, job, count):
        """Of both ranks."""
        wait_until(lambda: self.said(job).count(" begins at step ") == 2 * count, lambda: self.said(job)[-2000:] + self.logs(), 60)

    def report(self, what, seconds):
        print(f"{what}: {len(seconds)} pre-emptions, queued again after {statistics.median(seconds):.2f} s "
              f"[{min(seconds):.2f}-{max(seconds):.2f}]", flush=True)

    def test_one(self):
        chance, seconds = random.Random(self.seed), []
        self.start_cluster(nodes=3, proctrack="cgroup", more=SOON + WITH_SERVICE)
        os.mkdir(self.path("logs"))
        self.env |= {"LOGS": self.path("logs"), "STEP_MS": "20", "STOP": self.path("stop"), "DDPRUN_BACKEND": "cpu"}
        submitted = self.slurm("--output", self.path("job-%j"), "--partition=spot", "--daemon-on", "service", "--nodes", "1:2", "--",
                               "--max-restarts", "9", "--rdzv-conf", "last_call_timeout=1", WORKER)
        daemon, *jobs = self.numbers(submitted)
        workers = Workers(self.path("logs"))

        def both_commit():
            workers.refresh()
            living = [w for w in workers.living() if w.last and w.last.world == 2]
            return len(living) == 2 and living[0].last.round == living[1].last.round

        for _ in range(self.times):
            wait_until(both_commit, lambda: f"{workers.living()} {self.logs()}", 60)
            time.sleep(chance.uniform(0, 1))
            job = chance.choice(jobs)
            seconds.append(self.preempted(job))
            self.start_again(job)
        wait_until(both_commit, lambda: f"{workers.living()} {self.logs()}", 60)
        with open(self.path("stop"), "w", encoding="ascii"):
            pass
        for job in (*jobs, daemon):
            self.wait_for_state(job, "COMPLETED")
        (result,) = workers.results()
        steps = int(result.split()[0])
        complaints, repeated = campaign_logs.judge(self.path("logs"), steps)
        self.assertEqual(complaints, [])
        quiet = self.start("--nproc-per-node", "1", WORKER, env={"LOGS": self.quiet_logs(), "STEPS": str(steps)})
        self.assertEqual(quiet.wait(), 0, quiet.text())
        self.assertEqual(list(Workers(self.path("quiet")).results()), [result])
        lost = sorted(campaign_logs.lost_seconds(self.path("logs"), world=1))
        self.report(f"one node of two, {steps} steps, {repeated} of them computed again, hashes equal, the other node lost "
                    f"{statistics.median(lost):.3f} s beside its steps [{lost[0]:.3f}-{lost[-1]:.3f}], "
                    f"more than 0.2 s in {sum(each > 0.2 for each in lost)}", seconds)

    def quiet_logs(self):
        os.mkdir(self.path("quiet"))
        return self.path("quiet")

    def test_all(self):
        chance, seconds = random.Random(self.seed), []
        self.start_cluster(proctrack="cgroup", more=SOON + WHOLE_NODES)
        job = self.submit("spot.sbatch", *shell(PLAIN))
        for number in range(self.times):
            self.wait_for_starts(job, number + 1)
            time.sleep(chance.uniform(0.1, 1))
            seconds.append(self.preempted(job))
            self.start_again(job)
        self.wait_for_starts(job, self.times + 1)
        with open(self.path("stop"), "w", encoding="ascii"):
            pass
        self.complete(job)
        self.assertEqual(self.field(job, "Restarts"), str(self.times))
        for rank in range(2):
            with open(self.path(f"did.{rank}"), encoding="ascii") as f:
                did = [int(line) for line in f]
            self.assertEqual(did, list(range(len(did))), "steps done twice, or not at all")
            number = 1
            for step in did:
                number = (number * 31 + step) % 1000003
            with open(self.path(f"state.{rank}"), encoding="ascii") as f:
                self.assertEqual(f.read().split(), [str(len(did)), str(number)])
        self.report(f"all nodes, {len(did)} steps, each done once", seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=Campaign.times)
    parser.add_argument("--seed", type=int, default=Campaign.seed)
    parser.add_argument("only", nargs="*", help="one, all [both]")
    options = parser.parse_args()
    if missing() or not os.access(DDPRUN, os.X_OK) or not os.access(WORKER, os.X_OK):
        ddprun_case.skip_all(missing() or f"there is no {DDPRUN} or no {WORKER}")
    Campaign.times, Campaign.seed = options.times, options.seed
    sys.argv[1:] = [f"Campaign.test_{name}" for name in options.only or ("one", "all")]
    ddprun_case.main()


if __name__ == "__main__":
    main()
