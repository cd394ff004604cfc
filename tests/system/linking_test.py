#!/usr/bin/env python3
"""The installed SDK as those meet it who do not use CMake, or not C++20: README's own line, C, Python's ctypes, what the shared
library shows, and what a compiler or CMake says of a user who lacks something."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BIN = os.environ["DDPRUN_BIN"]
BUILD = os.path.dirname(BIN)
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SAID = "rank 0 of 1, backend self, loss 1.5\n"


def run(*argv, **options):
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, check=False,
                          **options)
    return done.returncode, done.stdout


class Linking(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="ddprun_linking_")
        cls.prefix = os.path.join(cls.folder, "prefix")
        cls.require("cmake", "-DCMAKE_INSTALL_PREFIX=" + cls.prefix, "-P", BUILD + "/worker_sdk/cmake_install.cmake")
        (pc,) = glob.glob(cls.prefix + "/**/ddprun.pc", recursive=True)
        cls.lib = os.path.dirname(os.path.dirname(pc))
        cls.env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
        cls.env["PKG_CONFIG_PATH"] = os.path.dirname(pc)
        for name in ("hello.cc", "hello.c"):
            shutil.copy(os.path.join(SOURCE, "examples/external", name), cls.folder)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    @classmethod
    def require(cls, *argv, **options):
        code, said = run(*argv, **options)
        if code != 0:
            raise AssertionError("%s: %d\n%s" % (" ".join(argv), code, said))
        return said

    def shell(self, line, **env):
        return self.require("sh", "-c", line, cwd=self.folder, env=dict(self.env, **env))

    def test_the_line_of_the_readme_links(self):
        with open(SOURCE + "/README.md", encoding="utf-8") as f:
            (line,) = re.findall(r"`([^`]*pkg-config --cflags --libs ddprun\)[^`]*)`", f.read())
        self.shell(line)
        self.assertEqual(self.shell("./hello"), SAID)

    def test_a_c_program_links_the_archive_and_the_shared_library(self):
        for package in ("ddprun", "ddprun-c"):
            self.shell("gcc hello.c $(pkg-config --cflags --libs %s) -o hello_%s" % (package, package))
            self.assertEqual(self.shell("./hello_" + package, LD_LIBRARY_PATH=self.lib), SAID)
        needed = self.shell("readelf -d hello_ddprun-c")
        self.assertIn("[libddprun.so.1]", needed)
        self.assertNotIn("libddprun.so", self.shell("readelf -d hello_ddprun"))

    def test_workers_in_c_meet_through_the_shared_library(self):
        self.shell("gcc hello.c $(pkg-config --cflags --libs ddprun-c) -o hello_c")
        said = self.shell(BIN + "/ddprun --nproc-per-node 2 ./hello_c", LD_LIBRARY_PATH=self.lib)
        for rank in (0, 1):
            self.assertIn("rank %d of 2, backend shm, loss 1.5" % rank, said)

    def test_the_shared_library_shows_the_c_interface_and_nothing_else(self):
        shown = self.shell("nm -D --defined-only %s/libddprun.so" % self.lib).split("\n")
        names = {line.split()[2].split("@")[0] for line in shown if line}
        names.discard("DDPRUN_1")  # The version itself.
        declared = set()
        for header in glob.glob(SOURCE + "/worker_sdk/include/ddprun/c/*.h"):
            with open(header, encoding="utf-8") as f:
                text = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
            declared |= set(re.findall(r"\b(ddprun_\w+)\(", text))
        self.assertEqual(names, declared)
        self.assertTrue(all("@@DDPRUN_1" in line for line in shown if " T " in line), shown)

    def test_the_archive_runs_nothing_before_main(self):
        """What programs of ddprun do first, such as blocking signals, is no matter of a program that links the SDK."""
        (archive,) = glob.glob(self.lib + "/**/libddprun_cxx.a", recursive=True)
        sections = self.shell(f"readelf --sections --wide {archive}")
        self.assertIn(".text", sections)
        self.assertNotIn(".preinit_array", sections)

    def test_python_uses_it_by_ctypes(self):
        program = os.path.join(self.folder, "by_ctypes.py")
        with open(program, "w", encoding="utf-8") as f:
            f.write("""
import ctypes
class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("init_method", ctypes.c_char_p), ("backend", ctypes.c_char_p), ("rank", ctypes.c_int),
                ("world_size", ctypes.c_int), ("init_ms", ctypes.c_int64), ("op_ms", ctypes.c_int64), ("host", ctypes.c_char_p),
                ("device_given", ctypes.c_int), ("device", ctypes.c_int), ("max_ctas", ctypes.c_int), ("may_shrink", ctypes.c_int)]
class Buffer(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("data", ctypes.c_void_p), ("count", ctypes.c_size_t), ("type", ctypes.c_int32),
                ("reserved", ctypes.c_int32)]
sdk = ctypes.CDLL("libddprun.so.1")
group = ctypes.c_void_p()
assert sdk.ddprun_group_init(ctypes.byref(Options(ctypes.sizeof(Options), rank=-1)), ctypes.byref(group)) == 0
values = (ctypes.c_double * 3)(1, 2, 3)
buffer = Buffer(ctypes.sizeof(Buffer), ctypes.addressof(values), 3, 1)
assert sdk.ddprun_all_reduce(group, ctypes.byref(buffer), 0, ctypes.c_int64(0)) == 0
print("sums", list(values))
assert sdk.ddprun_rank(None) == -1 and sdk.ddprun_rank(group) >= 0
buffer.size -= 8
assert sdk.ddprun_all_reduce(group, ctypes.byref(buffer), 0, ctypes.c_int64(0)) == 1
sdk.ddprun_group_destroy(group)
""")
        said = self.shell("%s/ddprun --nproc-per-node 2 --no-python %s %s" % (BIN, sys.executable, program),
                          LD_LIBRARY_PATH=self.lib)
        self.assertEqual(said.count("sums [2.0, 4.0, 6.0]"), 2, said)

    def compile(self, header, *flags):
        return run("g++", "-fsyntax-only", *flags, "-I" + self.prefix + "/include", "-x", "c++", "-",
                   input="#include <ddprun/%s>\nint main() { auto g = ddprun::ProcessGroup::init(); }\n" % header)

    def test_a_compiler_of_cxx17_is_told_so_first_and_nothing_else(self):
        for path in sorted(glob.glob(self.prefix + "/include/ddprun/*.h")):
            header = os.path.basename(path)
            code, said = self.compile(header, "-std=c++17")
            errors = [line for line in said.split("\n") if "error:" in line]
            if not self.needs_cxx20(path):
                continue
            self.assertNotEqual(code, 0, header)
            self.assertIn("ddprun needs C++20: compile with -std=c++20", errors[0], header)
            self.assertEqual(len(errors), 2, said)  # The other one ends the compilation.

    # It includes <span>, or a header that does.
    def needs_cxx20(self, path):
        with open(path, encoding="utf-8") as f:
            text = f.read()
        inner = re.findall(r'#include "ddprun/(\w+\.h)"', text)
        return "<span>" in text or any(self.needs_cxx20(os.path.join(os.path.dirname(path), h)) for h in inner)

    def test_a_program_with_the_old_abi_is_told_so_in_one_sentence(self):
        code, said = self.compile("ddprun.h", "-std=c++20", "-D_GLIBCXX_USE_CXX11_ABI=0")
        self.assertNotEqual(code, 0)
        self.assertIn("ddprun was built for the C++11 ABI", said)
        self.assertEqual(said.count("error:"), 2, said)

    def test_cmake_says_that_libtorch_is_missing(self):
        project = os.path.join(self.folder, "torchless")
        os.makedirs(project)
        with open(project + "/CMakeLists.txt", "w", encoding="utf-8") as f:
            f.write("cmake_minimum_required(VERSION 3.25)\nproject(p CXX)\nset(CMAKE_DISABLE_FIND_PACKAGE_Torch ON)\n"
                    "find_package(ddprun REQUIRED COMPONENTS torch)\n")
        code, said = run("cmake", "-S", project, "-B", project + "/b", "-DCMAKE_PREFIX_PATH=" + self.prefix)
        self.assertNotEqual(code, 0)
        self.assertIn("ddprun's component torch needs libtorch", " ".join(said.split()))


if __name__ == "__main__":
    unittest.main()
