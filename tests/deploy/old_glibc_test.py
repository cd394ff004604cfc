"""A program that cmake/old_glibc.cmake links needs nothing newer than the glibc that it was linked for, does here what it would do
there, and does not link if it calls something newer."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(old LANGUAGES C CXX)
set(CMAKE_CXX_STANDARD 20)
set(DDPRUN_STATIC_RUNTIME ON)
set(DDPRUN_GLIBC 2.28)
include(%s/cmake/old_glibc.cmake)
add_link_options(-static-libstdc++ -static-libgcc -Wl,--as-needed,--gc-sections)
add_executable(old old.cc)
add_executable(alone old.cc)  # Where the C library has no better functions.
target_compile_definitions(alone PRIVATE ALONE)
add_library(shared SHARED shared.cc)
target_link_options(shared PRIVATE -Wl,-z,defs)
add_executable(newer EXCLUDE_FROM_ALL newer.cc)
""" % ROOT
PROGRAM = r"""
#include <unistd.h>
#include <csignal>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <stdexcept>
#include <thread>
#ifdef ALONE
extern "C" void* dlsym(void*, const char*) noexcept { return nullptr; }
#endif
struct Constructed {
  const char* text = "constructed";
  ~Constructed() { std::puts("destroyed"); }
} constructed;
int main(int, char** arguments) {
  std::puts(constructed.text);
  ::setenv("DDPRUN_OLD", "1", 1);
  bool in_environ = false;
  for (char** each = environ; *each; ++each) in_environ |= std::strcmp(*each, "DDPRUN_OLD=1") == 0;
  std::printf("environ %d\n", in_environ);
  std::thread([] {
    try {
      throw std::runtime_error("caught");
    } catch (const std::exception& error) {
      std::printf("%s, own thread %d\n", error.what(), gettid() != getpid());
    }
  }).join();
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_lock lock(mutex);
  const auto begun = std::chrono::steady_clock::now();
  const bool done = changed.wait_for(lock, std::chrono::milliseconds(1200), [] { return false; });
  const auto took = std::chrono::steady_clock::now() - begun;
  std::printf("waited %d, in full %d\n", !done, took >= std::chrono::milliseconds(1200));
  std::printf("%s %d\n", sigabbrev_np(SIGTERM), sigabbrev_np(64) == nullptr);
  std::printf("file %d, folder %d\n", std::filesystem::is_regular_file(arguments[0]), std::filesystem::is_directory("/"));
  std::random_device device;
  std::printf("random %d\n", device() != device() || device() != device());
}
"""
SAID = """constructed
environ 1
caught, own thread 1
waited 1, in full 1
TERM 1
file 1, folder 1
random 1
destroyed
"""
LIBRARY = r"""
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
static std::once_flag once;
__attribute__((visibility("default"))) int number() {
  try {
    std::call_once(once, [] { throw std::runtime_error(std::to_string(std::random_device()())); });
  } catch (const std::exception&) {
    return 7;
  }
  return 0;
}
"""
NEWER = "#include <unistd.h>\nint main() { return close_range(100, 101, 0); }\n"


def needed_by(path):
    """The newest glibc that a file needs."""
    text = subprocess.run(["objdump", "-T", path], stdout=subprocess.PIPE, universal_newlines=True, check=True).stdout
    return max(tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([0-9.]+)", text))


@unittest.skipUnless(shutil.which("cmake") and shutil.which("ninja"), "there is no cmake, or no ninja")
class OldGlibc(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="ddprun_old_glibc_")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        for name, text in (("CMakeLists.txt", PROJECT), ("old.cc", PROGRAM), ("shared.cc", LIBRARY), ("newer.cc", NEWER)):
            with open(os.path.join(cls.folder, name), "w", encoding="ascii") as file:
                file.write(text)
        cls.build = cls.folder + "/build"
        cls.run_tool("cmake", "-S", cls.folder, "-B", cls.build, "-G", "Ninja")
        cls.run_tool("ninja", "-C", cls.build)

    @classmethod
    def run_tool(cls, *argv, code=0):
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=120, check=False)
        if (done.returncode == 0) != (code == 0):
            raise AssertionError(done.stdout)
        return done.stdout

    def test_nothing_newer_is_needed(self):
        for name in ("old", "alone", "libshared.so"):
            self.assertLessEqual(needed_by(f"{self.build}/{name}"), (2, 28), name)

    def test_programs_do_what_they_would_do(self):
        for name in ("old", "alone"):
            self.assertEqual(self.run_tool(f"{self.build}/{name}"), SAID, name)

    def test_stand_ins_are_seen_by_nobody_else(self):
        defined = self.run_tool("nm", "--defined-only", "-g", self.build + "/old_glibc/libstand_ins.a")
        ours = set(re.findall(r" [TDBR] (\w+)", defined))
        self.assertIn("arc4random", ours)
        exported = re.findall(r" [TDBRW] (\w+)", self.run_tool("nm", "-D", "--defined-only", self.build + "/libshared.so"))
        self.assertEqual(ours.intersection(exported), set())

    def test_what_is_newer_does_not_link(self):
        self.assertIn("undefined reference to `close_range'", self.run_tool("ninja", "-C", self.build, "newer", code=1))


if __name__ == "__main__":
    unittest.main()
