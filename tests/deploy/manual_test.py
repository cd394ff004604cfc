"""The manual pages name every flag that the programs have, and no others; and they are proper roff.

ddprun.1 is made from the table of flags, which launcher_test looks after.
"""

import os
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import ddprun_case
from ddprun_case import BIN

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "man")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9_-]*[a-z0-9]")


def run(*argv):
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False,
                          env=ddprun_case.clean_environment())


def page(name):
    with open(os.path.join(FOLDER, name), encoding="utf-8") as f:
        return f.read()


def options_of(name):
    """Those that a line of the page defines, dashed."""
    lines = [line for line in page(name).splitlines() if line.startswith("\\fB")]
    return set(FLAG.findall("\n".join(lines).replace("\\-", "-").replace("\\fB", "").replace("\\fR", " ")))


class Manual(unittest.TestCase):
    def test_every_flag_of_the_daemon(self):
        said = run(os.path.join(BIN, "ddprun-rendezvous"), "--help").stdout
        flags = set(FLAG.findall("\n".join(line[:30].split(" ", 3)[2] if line.startswith("  -") else ""
                                           for line in said.splitlines())))
        self.assertGreater(len(flags), 15, said)
        self.assertEqual(options_of("ddprun-rendezvous.8"), flags)

    def test_every_flag_of_ddprunctl(self):
        program = os.path.join(BIN, "ddprunctl")
        said = run(program, "--help").stdout
        flags = {flag for flag in FLAG.findall(said) if "_" not in flag}
        self.assertGreater(len(flags), 4, said)
        mine = options_of("ddprunctl.1")
        self.assertEqual(flags - mine, set())
        for flag in mine - {"--version", "--help"}:
            verb = next((v for v in ("", "status", "drain", "report", "ras", "top", "logs", "preload") if flag in run(program, v, "--help").stdout or
                         self.is_taken(program, v, flag)), None)
            self.assertIsNotNone(verb, f"ddprunctl knows no {flag}")

    @staticmethod
    def is_taken(program, verb, flag):
        said = run(program, *filter(None, [verb]), flag).stderr
        return "not expected" not in said and "unknown" not in said

    @unittest.skipUnless(shutil.which("mandoc"), "there is no mandoc")
    def test_mandoc_reads_them(self):
        for name in ("ddprun.1", "ddprun-doctor.1", "ddprun-replay.1", "ddprun-slurm.1", "ddprunctl.1", "ddprun-rendezvous.8"):
            done = run("mandoc", "-T", "lint", "-W", "error", os.path.join(FOLDER, name))
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            text = re.sub(".\b", "", run("mandoc", "-T", "ascii", os.path.join(FOLDER, name)).stdout)
            self.assertIn("SEE ALSO", text)


if __name__ == "__main__":
    ddprun_case.main()
