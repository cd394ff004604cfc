"""What the tests of ddprun.torch share: scripts that ranks run under ddprun, with the torch that is to be tested.

Each file runs once for Debian's torch and each that DDPRUN_TEST_TORCH_PYTHONS names (tests/interop/make_venv.sh);
DDPRUN_TORCH_PYTHON=INTERPRETER runs it for that one only. Tests that need a newer torch skip and say so.
"""

import functools
import os
import subprocess
import sys
import textwrap
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../system"), os.path.join(HERE, "../interop")]

import ddprun_case  # noqa: E402  pylint: disable=wrong-import-position
from ddprun_case import BIN, PATIENCE, DdprunCase  # noqa: E402  pylint: disable=wrong-import-position
from torch_pythons import torch_pythons, version_of  # noqa: E402  pylint: disable=wrong-import-position

PACKAGE = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../python"))
LIBRARY = os.environ.get("DDPRUN_LIB") or os.path.join(os.path.dirname(BIN), "worker_sdk", "libddprun.so")
PYTHON = os.environ.get("DDPRUN_TORCH_PYTHON", "")

# What every script begins with.
HEAD = """
import os, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
import ddprun, ddprun.torch
torch.manual_seed(7)
VERSION = tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2])
LIMIT = timedelta(seconds=120)
def start(backend="ddprun"):
    dist.init_process_group(backend, timeout=LIMIT)
    return dist.get_rank(), dist.get_world_size()
def same(found, wanted):
    assert torch.equal(torch.as_tensor(found), torch.as_tensor(wanted)), (found, wanted)
def refused(kind, sentence, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except ddprun.torch.DdprunError as error:
        assert error.kind == kind and sentence in str(error), (error.kind, str(error))
        return error
    raise AssertionError(f"not refused: {sentence}")
"""


@functools.lru_cache()
def torch_version():
    """(2, 15)."""
    return tuple(int(number) for number in version_of(PYTHON).split(".")[:2])


def environment(**more):
    return {**ddprun_case.clean_environment(), "PYTHONPATH": PACKAGE, "DDPRUN_LIB": LIBRARY, "PYTHON_EXEC": PYTHON,
            "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
            "PATH": BIN + os.pathsep + os.environ["PATH"], **more}


class TorchCase(DdprunCase):
    """Each test's script is run by ranks under ddprun."""

    def needs(self, *version):
        if torch_version() < version:
            self.skipTest("this torch is older than " + ".".join(map(str, version)))

    def script(self, code):
        path = self.path("script.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(HEAD) + textwrap.dedent(code))
        return path

    def launched(self, command, **more):
        return subprocess.run(command, env=environment(**more), capture_output=True, text=True, timeout=4 * PATIENCE,
                              check=False)

    def ranks(self, code, nproc=2, **more):
        return self.launched([ddprun_case.DDPRUN, "--nproc-per-node", str(nproc), "--error-file",
                              self.path("verdict.json"), self.script(code)], **more)

    def right(self, code, nproc=2, **more):
        """Every rank prints "right" at its end."""
        done = self.ranks(textwrap.dedent(code) + "\nprint('right', dist.get_rank() if dist.is_initialized() else '')\n", nproc, **more)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("right"), nproc, done.stdout + done.stderr)
        return done


def main():
    """Run the calling file's tests for each torch."""
    if PYTHON:
        unittest.main(verbosity=2)
    found = torch_pythons()
    if not found:
        print("there is no PyTorch: neither Debian's nor one that DDPRUN_TEST_TORCH_PYTHONS names")
        sys.exit(ddprun_case.SKIPPED)
    codes = []
    for torch in found:
        print(f"torch {torch.version}", flush=True)
        codes.append(subprocess.run([sys.executable, "-B", *sys.argv], check=False,
                                    env={**os.environ, "DDPRUN_TORCH_PYTHON": torch.python}).returncode)
    sys.exit(max(codes))
