"""Bundles of steps of ddprun.elastic that fail, and `ddprun replay`: an exception, a crash and a NaN at a planted sample are found
again, with the same line and the same hash."""

import glob
import os
import re
import sys
import unittest

from elastic_case import ElasticCase, LIBRARY
from ddprun_case import DDPRUN

# BAD is what the sample 17 does; its shard is that of step 5 (of 12 steps an epoch).
TRAIN = """
import array, ctypes, math, pickle, random, sys, time
BAD = os.environ.get("BAD", "")
batches = elastic.GlobalBatches(96, 24, shards=12, seed=3)
weights = array.array("f", [1.0] * 50)
average = array.array("d", [0.0])
dice = random.Random(5)
sums = elastic.GradientSums([50])
gradient = array.array("f", [0.0] * 50)
held = []
def gradient_of(shard):
    part = array.array("f", [0.0] * 50)
    for index in shard.indices:
        if index == 17 and shard.step >= 4 and BAD == "raise":
            raise ValueError(f"sample {index} is bad")
        if index == 17 and shard.step >= 4 and BAD == "crash":
            ctypes.string_at(0)
        if index == 17 and shard.step >= 4 and BAD == "exit":
            sys.exit(3)
        if index == 17 and shard.step >= 4 and BAD == "nan":
            part[3] = math.nan
        for k in range(index % 7, 50, 7):
            part[k] += (index + 1) * (weights[k] % 10 + 3) / 7
    return part
def update():
    for k in range(50):
        weights[k] = weights[k] * 0.9 + (gradient[k] if math.isfinite(gradient[k]) else 0.0) / 1000 + dice.random()
    if BAD == "average" and job.committed == 6:
        average[0] = math.inf
    sums.commit()
def train(step):
    if held[-1:] != [step.round]:
        sums.use(step.group)
        held.append(step.round)
    while True:
        sums.begin()
        for shard in step.shards(batches):
            part = gradient_of(shard)
            if step.is_audited(shard.number):
                step.audit(shard.number, sums.hash([part]))
            sums.add([part])
            if BAD == "loss" and step.number >= 7 and shard.number == 5:
                step.capture(5, "the loss is too large")
            if not sums.is_finite:
                step.capture(shard.number, "not finite", sums.hash([part]))
        if step.reduce(sums, [gradient]).kind != "over":
            break
    if BAD == "late" and step.number == 6:
        raise ArithmeticError(f"the sum is {gradient[0]:.9g}, {gradient[1]:.9g}")
    step.commit(update)
def state():
    time.sleep(float(os.environ.get("SLOW", "0")))
    return sums.state()
job = Job()
job.keep(weights=weights, average=average, dice=dice).keep_state("sums", state, sums.restore)
job.run(12, train)
print("the end", flush=True)
"""


class Replay(ElasticCase):
    def bundle(self, bad, code, nproc=3, options=("--max-restarts", "3"), **env):
        job = self.ended(TRAIN, code=code, nproc=nproc, env={"BAD": bad, **env},
                         options=(*options, "--bundle-folder", self.path("bundles")))
        found = sorted(glob.glob(self.path("bundles/*.bundle")))
        self.assertEqual(len(found), 2 if bad == "nan" else 1, job.text())  # Two epochs.
        return job, min(found)

    def replay(self, bundle, bad, code, *options):
        job = self.start_program([DDPRUN, "replay", bundle, *options],
                                 env=self.environment(D=self.folder, BAD=bad))
        self.assertEqual(job.wait(), code, job.text())
        self.assertNotIn("the end", job.text())
        return job.text()

    def test_an_exception_is_raised_again_at_its_line(self):
        job, bundle = self.bundle("raise", 1)
        [words] = set(re.findall(r"ValueError: sample 17 is bad \(script.py:\d+\)", job.err()))
        text = self.replay(bundle, "raise", 1)
        self.assertRegex(text, rf"ddprun: replay of step \d+, shard \d+: samples [^:]*17[^:]*: {re.escape(words)}, the same as in "
                               r"the run, on rank \d on ")
        self.assertIn("ValueError: sample 17 is bad\n", text)  # The traceback.
        self.assertIn("no failure (hash ", self.replay(bundle, "", 1))

    def test_the_debugger_stops_there(self):
        _, bundle = self.bundle("raise", 1)
        job = self.start_program(["/bin/sh", "-c", f"printf 'p index\\nq\\n' | {DDPRUN} replay {bundle} --pdb"],
                                 env=self.environment(D=self.folder, BAD="raise"))
        job.wait()
        self.assertIn("Uncaught exception. Entering post mortem debugging", job.text())
        self.assertIn("(Pdb) 17", job.text())

    def test_a_crash_is_captured_by_another_rank_and_happens_again_at_its_line(self):
        job, bundle = self.bundle("crash", 139)
        line = re.findall(r'File ".*script.py", line (\d+) in gradient_of', job.err())[0]
        text = self.replay(bundle, "crash", 139)
        self.assertRegex(text, rf'File ".*script.py", line {line} in gradient_of')
        self.assertRegex(text, r"ddprun: replay of step \d+, shard \d+: samples [^:]*17[^:]*: was killed by signal 11 \(SIGSEGV\), "
                               r"the same as in the run, on rank \d on ")
        self.assertIn("no failure (hash ", self.replay(bundle, "", 1))

    def test_a_crash_of_the_only_rank_happens_again_at_its_line(self):
        job, bundle = self.bundle("crash", 139, nproc=1, options=("--max-restarts", "0"))
        line = re.findall(r'File ".*script.py", line (\d+) in gradient_of', job.err())[0]
        text = self.replay(bundle, "crash", 139)
        self.assertRegex(text, rf'File ".*script.py", line {line} in gradient_of')
        self.assertIn("was killed by signal 11 (SIGSEGV), the same as in the run", text)
        self.assertIn("no failure (hash ", self.replay(bundle, "", 1))

    def test_an_exit_in_a_shard_happens_again(self):
        _, bundle = self.bundle("exit", 3)
        text = self.replay(bundle, "exit", 3)
        self.assertRegex(text, r"ddprun: replay of step \d+, shard \d+: samples [^:]*17[^:]*: exited with 3, the same as in the run")
        self.assertEqual(text.count("ddprun: replay of"), 1, text)

    def test_a_nan_has_the_same_hash_again_and_not_without_that_sample(self):
        job, bundle = self.bundle("nan", 0)
        self.assertIn("the end", job.out())
        text = self.replay(bundle, "nan", 0)
        self.assertRegex(text, r"shard \d+: samples [^:]*17[^:]*: not finite \(hash \w{16}\), the same as in the run")
        self.assertRegex(self.replay(bundle, "", 1), r"no failure \(hash \w{16}\); in the run, .*: not finite \(hash \w{16}\)")

    def test_after_the_reduction_all_shards_are_computed_with_the_same_sum(self):
        """All ranks fail at once: those that do not write the bundle wait for the one that does."""
        job, bundle = self.bundle("late", 1, nproc=2, options=("--max-restarts", "0"), SLOW="0.5")
        [words] = set(re.findall(r"ArithmeticError: the sum is [\d.e+]+, [\d.e+]+ \(script.py:\d+\)", job.err()))
        self.assertIn(f"ddprun: replay of step 6: {words}, the same as in the run", self.replay(bundle, "late", 1))

    def test_a_bisection_finds_a_loss_that_is_too_large_and_state_that_is_not_finite(self):
        options = ("--bundle-folder", self.path("bundles"), "--bundle-every", "4")
        self.ended(TRAIN, nproc=3, env={"BAD": ""}, options=options)
        text = self.replay(self.path("bundles"), "loss", 0, "--bisect")
        self.assertRegex(text, r"the first bad step is 7: step 7, shard 5: samples [^:]*: the loss is too large. Replay it: ")
        [bundle] = glob.glob(self.path("bundles/*-step-7.bundle"))
        self.assertRegex(self.replay(bundle, "loss", 0), r"shard 5: samples [^:]*: the loss is too large \(hash \w+\), the same as in the run")
        for path in glob.glob(self.path("bundles/*")):
            os.remove(path)
        self.ended(TRAIN, nproc=3, env={"BAD": "average"}, options=options)
        text = self.replay(self.path("bundles"), "average", 0, "--bisect")
        self.assertIn("step 8: step 8: of what is kept 1 elements more than in the first bundle are not finite before the step", text)
        self.assertIn('the first bad step is 6: step 6: "average" is not finite after the step', text)

    def test_interrupts_and_errors_of_ddprun_leave_no_bundle(self):
        for words in ("raise KeyboardInterrupt", "raise SystemExit(3)", "raise ddprun.BadArgument('no')"):
            job = self.job(f"""
                def train(step):
                    {words}
                Job().run(3, train)
            """, nproc=1, options=("--bundle-folder", self.path("bundles")))
            self.assertNotEqual(job.wait(), 0)
            self.assertEqual(glob.glob(self.path("bundles/*")), [], words)


if __name__ == "__main__":
    if not os.path.exists(LIBRARY):
        print(f"skipped: no {LIBRARY}")
        sys.exit(77)
    unittest.main(verbosity=2)
