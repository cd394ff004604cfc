#!/usr/bin/env python3
"""The protocols of shared memory on the model checker Spin: every order of the steps of each model here is explored,
and each defect that the model can have planted must be found. Says why, and exits with 77, where Spin is missing."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT_S = 300  # For what hangs: each takes about a second.


def explore(model, *definitions):
    """What Spin says of the model: "" if it has found nothing in all orders."""
    with tempfile.TemporaryDirectory(prefix="ddprun-test-") as folder:
        def run(*command):
            return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
        flags = [f"-D{d}" for d in definitions]
        made = run("spin", *flags, "-a", os.path.join(HERE, model))
        if made.returncode != 0:
            raise AssertionError(made.stdout + made.stderr)
        run("cc", "-O1", "-w", "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM=1000", "-o", "pan", "pan.c").check_returncode()
        found = run("./pan", "-m100000").stdout
    if "errors: 0" in found and "Search not completed" not in found and "truncated" not in found:
        return ""
    return next((line for line in found.splitlines() if line.startswith("pan:")), found)


class Turns(unittest.TestCase):
    def test_two_slots_and_a_barrier_suffice_for_three_ranks(self):
        self.assertEqual(explore("turns.pml", "AWAKE"), "")

    def test_two_ranks_that_sleep_always_wake(self):
        self.assertEqual(explore("turns.pml", "RANKS=2"), "")

    def test_one_slot_is_overwritten_while_it_is_read(self):
        self.assertIn("assertion violated", explore("turns.pml", "AWAKE", "PLANT=1"))

    def test_a_barrier_for_some_is_none(self):
        self.assertIn("assertion violated", explore("turns.pml", "AWAKE", "PLANT=2"))

    def test_ranks_that_wait_before_they_enter_wait_for_ever(self):
        self.assertIn("invalid end state", explore("turns.pml", "AWAKE", "PLANT=3"))

    def test_nobody_wakes_of_his_own_accord(self):
        self.assertIn("invalid end state", explore("turns.pml", "RANKS=2", "PLANT=4"))

    def test_who_looks_for_sleepers_before_it_stores_misses_one(self):
        self.assertIn("invalid end state", explore("turns.pml", "RANKS=2", "PLANT=5"))


class Ends(unittest.TestCase):
    def test_nobody_is_blamed_who_has_done_its_part(self):
        self.assertEqual(explore("ends.pml"), "")

    def test_a_part_that_was_done_meanwhile_has_to_be_asked_for_again(self):
        self.assertIn("assertion violated", explore("ends.pml", "PLANT=1"))

    def test_so_has_that_of_the_others_where_one_gives_up(self):
        self.assertIn("assertion violated", explore("ends.pml", "PLANT=2"))


if __name__ == "__main__":
    missing = [program for program in ("spin", "cc") if not shutil.which(program)]
    if missing:
        print(f"skipped: {' and '.join(missing)} not installed; on Debian: apt-get install spin gcc")
        sys.exit(77)
    unittest.main()
