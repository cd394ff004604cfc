"""The counter of samples finds what it is there for: each kind of loss and repetition, planted in the logs of a good run."""

import contextlib
import io
import os
import re
import sys
import tempfile
import unittest
from unittest import mock

import sample_count

LENGTH, SHARDS, STEPS, BATCH = 24, 4, 9, 8  # Three epochs.


def samples_of(step, shard):
    each = BATCH // SHARDS
    first = step * BATCH + shard * each
    return " ".join(f"{place // LENGTH}:{place * 7 % LENGTH}" for place in range(first, first + each))


class Run:
    """Logs of ranks in lockstep, which may die."""
    def __init__(self):
        self.logs = {}

    def step(self, step, in_round, processes, commits=None):
        for rank, process in enumerate(processes):
            for shard in range(rank, SHARDS, len(processes)):
                self.say(process, f"shard {in_round} {rank} {step} {shard} {samples_of(step, shard)}")
        for rank, process in enumerate(processes):
            if commits is None or process in commits:
                self.say(process, f"commit {in_round} {rank} {step}")

    def say(self, process, line):
        self.logs[process] = self.logs.get(process, "") + line + "\n"

    def change(self, process, pattern, text):
        changed = re.sub(pattern, text, self.logs[process], count=1, flags=re.M)
        assert changed != self.logs[process]
        self.logs[process] = changed

    def verdict(self):
        return "\n".join(sample_count.judge(self.logs, LENGTH, SHARDS, STEPS))


def good_run():
    """b dies in step 3, a replacement c comes for step 6; d dies right after it alone has committed step 7."""
    run = Run()
    for step in range(3):
        run.step(step, 1, ["a", "b", "d"])
    run.step(3, 1, ["a", "b", "d"], commits=[])
    run.logs["b"] += "shard 1 1 3 5 0:"
    for step in range(3, 6):
        run.step(step, 2, ["a", "d"])
    run.step(6, 3, ["a", "d", "c"])
    run.step(7, 3, ["a", "d", "c"], commits=["d"])
    for step in (7, 8):
        run.step(step, 4, ["a", "c"])
    return run


class SampleCount(unittest.TestCase):
    def setUp(self):
        self.run_of_logs = good_run()

    def test_deaths_replacements_and_repeated_steps_are_good(self):
        self.assertEqual(self.run_of_logs.verdict(), "")

    def test_a_step_that_runs_again_within_its_round_is_good(self):
        run = Run()
        for step in range(STEPS):
            run.step(step, 1, ["a", "b"], commits=[])
            run.step(step, 1, ["a", "b"])
        self.assertEqual(run.verdict(), "")

    def test_a_sample_in_two_steps_is_found(self):
        self.run_of_logs.change("a", r"^(shard 2 0 4 0) \S+", r"\1 1:0")
        self.assertRegex(self.run_of_logs.verdict(), r"epoch 1: sample 0 is in steps")

    def test_a_sample_in_no_step_is_found(self):
        self.run_of_logs.change("a", r"^(shard 2 0 4 0) \S+", r"\1")
        self.assertRegex(self.run_of_logs.verdict(), r"epoch 1: 1 of 24 samples are in no committed step")

    def test_a_shard_that_nobody_computed_is_found(self):
        self.run_of_logs.change("d", r"^shard 2 1 5 3 .*\n", "")
        self.assertIn("step 5: nobody computed shards [3]", self.run_of_logs.verdict())

    def test_a_shard_that_two_computed_is_found(self):
        self.run_of_logs.say("a", f"shard 2 0 5 3 {samples_of(5, 3)}")
        self.assertIn("step 5: shard 3 was computed by", self.run_of_logs.verdict())

    def test_a_step_that_nobody_committed_is_found(self):
        for process in ("a", "d"):
            self.run_of_logs.change(process, r"^commit 2 \d 4\n", "")
        self.assertIn("1 of 9 steps were never committed, the first of them 4", self.run_of_logs.verdict())

    def test_who_commits_a_step_twice_is_found(self):
        self.run_of_logs.say("a", "commit 4 0 7")
        self.assertIn("a committed it twice", self.run_of_logs.verdict())

    def test_who_went_on_from_a_commit_that_the_others_repeat_is_found(self):
        self.run_of_logs.step(7, 3, ["a", "d", "c"], commits=["d"])
        self.run_of_logs.say("d", "commit 4 2 8")
        self.assertRegex(self.run_of_logs.verdict(), "d committed it in round 3 and went on|d committed it twice")

    def test_lines_that_mean_nothing_are_found(self):
        self.run_of_logs.say("a", "shard 1 2 x")
        self.run_of_logs.say("a", "commit 1")
        self.assertEqual(self.run_of_logs.verdict().count("neither a shard nor a commit"), 2)

    def test_the_program_says_its_verdict_and_exits_with_it(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for process, text in self.run_of_logs.logs.items():
                paths.append(os.path.join(folder, process))
                with open(paths[-1], "w", encoding="utf-8") as f:
                    f.write(text)
            for steps, code, words in ((STEPS, 0, "each sample once an epoch"), (STEPS + 1, 1, "never committed")):
                argv = ["sample_count.py", "--length", str(LENGTH), "--shards", str(SHARDS), "--steps", str(steps), *paths]
                said = io.StringIO()
                with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(said):
                    self.assertEqual(sample_count.main(), code)
                self.assertIn(words, said.getvalue())


if __name__ == "__main__":
    unittest.main()
