"""What the scripts of bench/ do before they measure: --build is found from any folder, what is not built and an MPI without its
headers are said in a sentence."""

import argparse
import contextlib
import glob
import io
import os
import re
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import side_by_side  # noqa: E402


def text_of(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def scripts():
    """Those that take --build."""
    return [path for folder in ("bench", "bench/python") for path in sorted(glob.glob(os.path.join(ROOT, folder, "*.py")))
            if "[--build" in text_of(path)]


def executable(path, text="#!/bin/sh\nexit 0\n"):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(path, 0o755)


class Bench(unittest.TestCase):
    def setUp(self):
        self.folder = os.path.realpath(self.enterContext(tempfile.TemporaryDirectory()))

    def build_of(self, *argv, programs=("bin/ddprun",)):
        parser = argparse.ArgumentParser()
        side_by_side.add_build_option(parser, *programs)
        return parser.parse_args(argv).build

    def test_a_relative_build_folder_is_made_absolute(self):
        executable(os.path.join(self.folder, "b", "bin", "ddprun"))
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.folder)
        self.assertEqual(self.build_of("--build", "b"), os.path.join(self.folder, "b"))

    def test_the_default_is_the_source_trees_from_any_folder(self):
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.folder)
        self.assertEqual(self.build_of(programs=()), os.path.join(ROOT, "build", "dev"))

    def test_each_script_can_be_called_by_its_name(self):
        self.assertEqual([path for path in scripts() if not os.access(path, os.X_OK)], [])

    def test_each_script_names_what_is_not_built(self):
        self.assertGreater(len(scripts()), 15)
        os.makedirs(os.path.join(self.folder, "empty"))
        for path in scripts():
            with self.subTest(script=os.path.basename(path)):
                done = subprocess.run([sys.executable, "-B", path, "--build", "empty"], cwd=self.folder, check=False,
                                      capture_output=True, text=True, timeout=120)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(f"argument --build: there is no {self.folder}/empty/", done.stderr)
                self.assertNotIn("Traceback", done.stderr)

    def mpi(self, compiler):
        executable(os.path.join(self.folder, "mpicxx.openmpi"), compiler)
        executable(os.path.join(self.folder, "mpirun.openmpi"))
        said = io.StringIO()
        with mock.patch.dict(os.environ, PATH=self.folder), contextlib.redirect_stderr(said):
            return side_by_side.mpi_program("openmpi", "all_reduce_mpi.cc", self.folder), said.getvalue()

    def test_an_mpi_without_its_headers_is_left_out_with_a_sentence(self):
        found, said = self.mpi("#!/bin/sh\necho 'x.cc:1:10: fatal error: mpi.h: No such file or directory' >&2\nexit 1\n")
        self.assertIsNone(found)
        self.assertIn("without openmpi: its mpicxx.openmpi cannot compile all_reduce_mpi.cc", said)
        self.assertIn("mpi.h: No such file", said)
        self.assertIn("libopenmpi-dev", said)

    def test_an_mpi_that_is_whole_takes_part(self):
        found, said = self.mpi("#!/bin/sh\nexit 0\n")
        self.assertEqual(found, (os.path.join(self.folder, "mpirun.openmpi"), os.path.join(self.folder, "openmpi")))
        self.assertEqual(said, "")


# What a script measures with, by what it prints; and what that script then prints of our own contestant.
SPEAKS = {
    "all_reduce.py": ({"bin/bench_all_reduce": "printf 'shm direct\\t1024\\t3.5\\n'"}, "shm direct"),
    "restart.py": ({"bin/bench_stamp_worker": "", "bin/ddprun": """
        case "$*" in *is_host=1*) echo "death 1 1000000" >>"$STAMPS" ;; esac
        for r in 0 1; do echo "0 $r 1"; echo "1 $r 3000000"; done >>"$STAMPS" """}, "ddprun"),
    "train.py": ({"bin/train": "echo 'speed 100 samples/s'"}, "train: 100 samples/s"),
    "ddp_step.py": ({"bin/bench_ddp_overhead": "", "bin/ddprun": "echo 'step ConvNet: 1.5 ms'; echo 'step perceptron: 2.5 ms'"},
                    "perceptron: 2.500"),
}


class MissingPeer(unittest.TestCase):
    """On a machine whose Python has no PyTorch a peer is left out, said in one line, and the rest is measured."""

    def setUp(self):
        self.folder = os.path.realpath(self.enterContext(tempfile.TemporaryDirectory()))

    def run_script(self, path, *argv):
        env = {**os.environ, "PYTHON_EXEC": "/bin/false", "DDPRUN_BENCH_NETWORK": "own", "PATH": "/nonexistent"}  # No MPI either.
        return subprocess.run([sys.executable, "-B", path, "--build", self.folder, *argv], env=env, check=False, capture_output=True,
                              text=True, timeout=120)

    def test_each_script_with_a_contestant_of_pytorchs(self):
        for name, (programs, wanted) in SPEAKS.items():
            with self.subTest(script=name):
                for program, text in programs.items():
                    executable(os.path.join(self.folder, program), f"#!/bin/sh\n{text}\n")
                done = self.run_script(os.path.join(ROOT, "bench", name), "--rounds", "1")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(wanted, done.stdout)
                self.assertRegex(done.stderr, r"without [^\n]*: /bin/false has no torch; Debian has it in python3-torch")
                self.assertNotIn("Traceback", done.stderr)

    def test_what_measures_pytorch_alone_ends_with_that_sentence(self):
        for name in ("compare.py", "watch.py"):
            with self.subTest(script=name):
                for program in ("bin/ddprun", "bin/libddprun-watch.so", "worker_sdk/libddprun.so"):
                    executable(os.path.join(self.folder, program))
                done = self.run_script(os.path.join(ROOT, "bench", "python", name))
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(done.stdout, "")
                self.assertIn("has no torch", done.stderr)

    def test_no_script_starts_pytorch_without_looking_for_it(self):
        """Those that start an interpreter of PyTorch's ask first whether it has PyTorch."""
        for path in scripts():
            text = text_of(path)
            if "PYTHON," in text or "PYTHON]" in text or "torch_python" in text:
                self.assertTrue(re.search("has_torch|need_torch|torch_pythons", text), path)


if __name__ == "__main__":
    unittest.main()
