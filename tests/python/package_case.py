"""What the tests of the Python package share: scripts that ranks run under ddprun, with the interpreter of the tests."""

import os
import subprocess
import sys
import textwrap

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../system")]

import ddprun_case  # noqa: E402  pylint: disable=wrong-import-position
from ddprun_case import BIN, PATIENCE, DdprunCase  # noqa: E402  pylint: disable=wrong-import-position

PACKAGE = os.path.abspath(os.path.join(HERE, "../../python"))
LIBRARY = os.environ.get("DDPRUN_LIB") or os.path.join(os.path.dirname(BIN), "worker_sdk", "libddprun.so")

sys.path.insert(0, PACKAGE)
os.environ.setdefault("DDPRUN_LIB", LIBRARY)

# What every script begins with.
HEAD = """
import array, os, sys, threading, time
import ddprun
def refused(kind, sentence, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        assert sentence in str(error), str(error)
        return error
    raise AssertionError(f"not refused: {sentence}")
def same(found, wanted):
    assert list(found) == list(wanted), (found, wanted)
def come(path):
    while not os.path.exists(path):
        time.sleep(0.01)
"""


def environment(**more):
    return {**ddprun_case.clean_environment(), "PYTHONPATH": PACKAGE, "DDPRUN_LIB": LIBRARY, "PYTHON_EXEC": sys.executable,
            "PYTHONDONTWRITEBYTECODE": "1", "PATH": BIN + os.pathsep + os.environ["PATH"], **more}


def run_python(code, *arguments, **more):
    """A process of its own, without a launcher."""
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code), *arguments], env=environment(**more),
                          capture_output=True, text=True, timeout=PATIENCE, check=False)


class PackageCase(DdprunCase):
    """Each test's script is run by ranks under ddprun."""

    def ranks(self, code, nproc=2, flags=(), **more):
        script = self.path("script.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(HEAD) + textwrap.dedent(code))
        return subprocess.run([ddprun_case.DDPRUN, "--nproc-per-node", str(nproc), *flags, script], env=environment(**more),
                              capture_output=True, text=True, timeout=2 * PATIENCE, check=False)

    def right(self, code, nproc=2, flags=(), **more):
        """Every rank gets to its end."""
        done = self.ranks(textwrap.dedent(code) + "\nprint('right')\n", nproc, flags, **more)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("right"), nproc, done.stdout + done.stderr)
        return done
