"""ddprun --preload: workers that are forked from a process that has imported, and cannot be told from others."""

import glob
import importlib
import importlib.util
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../system"), HERE]

import ddprun_case  # noqa: E402  pylint: disable=wrong-import-position
import preload_differences  # noqa: E402  pylint: disable=wrong-import-position
from ddprun_case import send_signal, wait_until  # noqa: E402  pylint: disable=wrong-import-position

# All that a program can see of how it was started; a worker prints it as JSON into $D/facts.RANK.
FACTS = """
import ctypes, json, os, resource, signal, sys

def status():
    with open("/proc/self/status") as file:
        return dict(line.rstrip().split(":", 1) for line in file)

def read(name):
    with open("/proc/self/" + name, "rb") as file:
        return file.read().decode(errors="replace")

def depth():
    frame, count = sys._getframe(), 0
    while frame:
        frame, count = frame.f_back, count + 1
    return count

death_signal = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(death_signal), 0, 0, 0)
main = sys.modules["__main__"]
spec = main.__spec__
facts = {
    "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", None), "flags": str(sys.flags), "path": sys.path,
    "executable": sys.executable, "warnoptions": sys.warnoptions, "xoptions": sys._xoptions,
    "main": [main.__name__, getattr(main, "__file__", None), main.__package__, type(main.__loader__).__name__],
    "spec": spec and [spec.name, spec.origin], "depth": depth(), "comm": read("comm"), "cmdline": read("cmdline"),
    "environ": dict(os.environ), "shown": sorted(read("environ").split("\\0")), "cwd": os.getcwd(),
    "leads": [os.getpid() == os.getpgrp(), os.getpid() == os.getsid(0)], "umask": os.umask(0o22),
    "parent": open(f"/proc/{os.getppid()}/comm").read(), "death_signal": death_signal.value,
    "signals": [str(signal.getsignal(n)) for n in sorted(signal.Signals)],
    "mask": [str(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "status": {n: status()[n] for n in "SigIgn SigCgt SigBlk ShdPnd NoNewPrivs Seccomp Threads Uid Gid Groups".split()},
    "limits": [resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")],
    "nice": os.nice(0), "processors": sorted(os.sched_getaffinity(0)), "oom": read("oom_score_adj"),
    "files": sorted((n, os.readlink("/proc/self/fd/" + n).split(":")[0]) for n in os.listdir("/proc/self/fd")
                    if os.path.exists("/proc/self/fd/" + n)),
    "inherited": [os.get_inheritable(n) for n in (0, 1, 2)], "cgroup": read("cgroup").count("\\n"),
    "streams": [[s.name, s.encoding, s.errors, s.line_buffering, getattr(s, "write_through", None), s.isatty()]
                for s in (sys.stdin, sys.stdout, sys.stderr)],
}
with open(os.path.join(os.environ["D"], "facts." + os.environ["RANK"]), "w") as file:
    json.dump({"preloaded": PRELOADED, "facts": facts}, file)
"""
FACTS = "import sys\nPRELOADED = 'xml.dom.minidom' in sys.modules\n" + FACTS
# Of each run its own.
OF_A_RUN = re.compile(r"DDPRUN_|TORCHELASTIC_|MASTER_PORT|NCCL_RAS_ADDR|PYTHONPATH")


class PreloadCase(ddprun_case.DdprunCase):
    modules = "xml.dom.minidom"

    def setUp(self):
        super().setUp()
        os.mkdir(self.path("job"))
        os.mkdir(self.path("library"))

    def write(self, name, text, folder="job"):
        path = os.path.join(self.path(folder), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(text))
        return path

    def environment(self, **more):
        return {"PYTHON_EXEC": sys.executable, "XDG_CACHE_HOME": self.path("cache"),
                "PYTHONPATH": self.path("library"), "PYTHONDONTWRITEBYTECODE": "1", **more}

    def start_preloaded(self, *argv, modules=None, env=None):
        return self.start("-v", "--preload", modules or self.modules, *argv, env=self.environment(**(env or {})),
                          cwd=self.path("job"))

    def run_preloaded(self, *argv, code=0, modules=None, env=None):
        job = self.start_preloaded(*argv, modules=modules, env=env)
        self.finish(job, code)
        return job

    def run_cold(self, *argv, code=0):
        return self.run_ddprun(*argv, code=code, env=self.environment(), cwd=self.path("job"))

    def server_of(self, job):
        return wait_until(lambda: next((p for p in job.processes() if p.name == "ddprun-preload"), None),
                          lambda: f"a fork server of\n{job.text()}")

    def assert_preloaded(self, job):
        self.assertRegex(job.err(), r"preloaded \d+ modules", job.text())
        self.assertNotIn("started cold", job.err(), job.text())


class FactsCase(PreloadCase):
    def facts(self, rank=0):
        with open(self.path(f"facts.{rank}"), encoding="utf-8") as file:
            found = json.load(file)
        os.unlink(file.name)
        facts = found["facts"]
        for name in [name for name in facts["environ"] if OF_A_RUN.match(name)]:
            del facts["environ"][name]
        facts["shown"] = [entry for entry in facts["shown"] if not OF_A_RUN.match(entry)]
        facts["environ"].pop(ddprun_case.MARKER, None)
        facts["shown"] = [entry for entry in facts["shown"] if not entry.startswith(ddprun_case.MARKER)]
        return found["preloaded"], facts


class Equality(FactsCase):
    """What a program sees of itself is the same with and without."""

    def assert_equal_facts(self, *argv):
        self.run_cold(*argv)
        is_preloaded, cold = self.facts()
        self.assertFalse(is_preloaded)
        self.assert_preloaded(self.run_preloaded(*argv))
        is_preloaded, forked = self.facts()
        self.assertTrue(is_preloaded)
        for name, fact in cold.items():
            self.assertEqual(forked[name], fact, name)

    def test_a_script_with_arguments(self):
        self.assert_equal_facts(self.write("facts.py", FACTS), "--flag", "an argument", "ü", "")

    def test_a_script_of_a_relative_path(self):
        self.write("below/facts.py", FACTS)
        self.assert_equal_facts("below/facts.py", "1")

    def test_a_script_behind_a_link(self):
        os.symlink(self.write("facts.py", FACTS, "library"), self.path("job/link.py"))
        self.assert_equal_facts("link.py")

    def test_a_module(self):
        self.write("pack/__init__.py", "")
        self.write("pack/facts.py", FACTS)
        self.assert_equal_facts("-m", "pack.facts", "-x")

    def test_a_package_with_a_main(self):
        self.write("pack/__init__.py", "")
        self.write("pack/__main__.py", FACTS)
        self.assert_equal_facts("-m", "pack", "7")

    def test_a_folder_with_a_main(self):
        self.write("app/__main__.py", FACTS)
        self.assert_equal_facts("app", "7")

    def test_a_zip_application(self):
        with zipfile.ZipFile(self.path("job/app.pyz"), "w") as archive:
            archive.writestr("__main__.py", FACTS)
        self.assert_equal_facts("app.pyz", "7")

    def test_a_file_for_runpy(self):
        self.write("facts", FACTS)
        self.assert_equal_facts("--run-path", "facts", "7")

    def test_proc_shows_no_variables_of_the_fork_server(self):
        script = self.write("shown.py", """
            import sys
            with open("/proc/self/environ") as file:
                shown = file.read().split("\\0")
            print("preloaded", "xml.dom.minidom" in sys.modules)
            print("shown", *(v for v in sorted(shown) if v.startswith(("PYTHONPATH", "DDPRUN_PRELOAD"))))
            import xml.dom.minidom
            """)
        for path in (self.path("library"), ""):
            env = self.environment(PYTHONPATH=path)
            if not path:
                del env["PYTHONPATH"]
            jobs = [self.run_ddprun(*flags, script, env=env, cwd=self.path("job"))
                    for flags in ((), ("--preload", "auto"), ("--preload", "auto"))]
            self.assertIn("preloaded True", jobs[2].out())
            self.assertEqual(*(re.findall("shown .*", job.out()) for job in (jobs[0], jobs[2])))

    def test_several_ranks_with_their_own_arguments(self):
        script = self.write("facts.py", FACTS)
        argv = ("--nproc-per-node", "3", "--use-env=0", script, "${local_rank}")
        self.run_cold(*argv)
        cold = [self.facts(rank)[1] for rank in range(3)]
        self.assert_preloaded(self.run_preloaded(*argv))
        for rank in range(3):
            is_preloaded, facts = self.facts(rank)
            self.assertTrue(is_preloaded)
            self.assertEqual(facts, cold[rank])

    def test_a_bound_rank(self):
        if len(os.sched_getaffinity(0)) < 2:
            self.skipTest("one processor")
        script = self.write("facts.py", FACTS)
        argv = ("--nproc-per-node", "2", "--numa-binding", "exclusive", "--omp-num-threads", "auto", script)
        self.run_cold(*argv)
        cold = [self.facts(rank)[1] for rank in range(2)]
        self.run_preloaded(*argv)
        self.assertEqual([self.facts(rank)[1] for rank in range(2)], cold)

    def test_a_worker_knows_on_which_processor_it_is(self):
        """The kernel writes it into memory of the thread, for which the C library does not ask again after a fork."""
        script = self.write("moves.py", """
            import ctypes, os
            for processor in sorted(os.sched_getaffinity(0)) * 2:
                os.sched_setaffinity(0, {processor})
                assert ctypes.CDLL(None).sched_getcpu() == processor
            """)
        self.assert_preloaded(self.run_preloaded(script))

    def test_hooks_of_forks_are_called_once_and_in_order(self):
        self.write("lib_hooks.py", """
            import os
            calls = []
            os.register_at_fork(before=lambda: calls.append("before"), after_in_parent=lambda: calls.append("parent"),
                                after_in_child=lambda: calls.append("child"))
            """, "library")
        script = self.write("here.py", "import lib_hooks; print('calls', *lib_hooks.calls)")
        job = self.run_preloaded("--nproc-per-node", "2", script, modules="lib_hooks")
        self.assertRegex(job.out(), r"\[default0\]:calls (before parent )?before child\n")
        self.assertRegex(job.out(), r"\[default1\]:calls (before parent ){1,2}before child\n")

    def test_what_a_program_leaves_behind_is_known_by_its_environment(self):
        script = self.write("leave.py", """
            import os, sys
            if os.fork() == 0:
                os.setsid()
                with open("/proc/self/environ", "rb") as file:
                    print([e for e in file.read().split(b"\\0") if e.startswith(b"DDPRUN_WORKER=")], flush=True)
                os.read(os.pipe()[0], 1)
            sys.exit(0)
            """)
        job = self.run_preloaded(script)
        self.assertRegex(job.out(), r"\[b'DDPRUN_WORKER=\d+\.0'\]|^$")

    def test_random_numbers_differ_between_ranks(self):
        script = self.write("draws.py", """
            import os, random, sys, multiprocessing.process
            words = [random.random(), bytes(multiprocessing.process.current_process().authkey).hex()]
            if "numpy" in sys.modules:
                words.append(sys.modules["numpy"].random.random())
            print("numbers", *words)
            """)
        job = self.run_preloaded("--nproc-per-node", "3", script, modules="random,multiprocessing.process,numpy")
        self.assert_preloaded(job)
        rows = [line.split()[1:] for line in job.out().splitlines() if "numbers" in line]
        self.assertEqual(len(rows), 3, job.text())
        for column in zip(*rows):
            self.assertEqual(len(set(column)), 3, job.text())


class Ends(PreloadCase):
    """Exit codes, signals and output are those of the worker."""

    ENDS = """
        import os, signal, sys
        how = sys.argv[1]
        print("out", flush=True)
        print("err", file=sys.stderr)
        if how == "raise":
            raise ValueError("no such luck")
        if how == "text":
            sys.exit("a reason")
        if how == "interrupt":
            raise KeyboardInterrupt
        if how.startswith("-"):
            os.kill(os.getpid(), -int(how))
        if how.startswith("_"):
            os._exit(int(how[1:]))
        sys.exit(int(how))
        """

    def outcome(self, run, how):
        job = self.start(*(["--preload", self.modules] if run == "preloaded" else []), self.path("job/ends.py"), how,
                         env=self.environment(), cwd=self.path("job"))
        code = job.wait()
        self.assert_nothing_left(job)
        text = re.sub(r"pid \d+|[\d:.]{5,}|0x[0-9a-f]+|_\w{8}", "N", job.err())
        return code, job.out(), text

    def test_each_kind_of_end_is_reported_as_without(self):
        self.write("ends.py", self.ENDS)
        for how in ("0", "1", "77", "255", "_9", "-9", "-15", "-11", "-6", "raise", "text", "interrupt"):
            with self.subTest(how):
                self.assertEqual(self.outcome("preloaded", how), self.outcome("cold", how))

    def test_a_preloaded_worker_is_stopped_by_its_own_handler(self):
        script = self.write("stop.py", """
            import os, signal, sys
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(21))
            os.mkdir(os.path.join(os.environ["D"], "here." + os.environ["RANK"]))
            signal.pause()
            """)
        job = self.start_preloaded("--nproc-per-node", "2", script)
        wait_until(lambda: all(os.path.exists(self.path(f"here.{n}")) for n in range(2)), job.text)
        job.signal(signal.SIGTERM)
        self.finish(job, 143)
        self.assert_preloaded(job)

    def test_workers_of_each_restart_are_forks(self):
        script = self.write("again.py", """
            import os, sys
            print("preloaded", "xml.dom.minidom" in sys.modules, flush=True)
            sys.exit(3 if os.environ["TORCHELASTIC_RESTART_COUNT"] < "2" else 0)
            """)
        job = self.run_preloaded("--max-restarts", "2", script)
        self.assertEqual(job.out().count("preloaded True"), 3, job.text())
        self.assert_preloaded(job)

    def test_two_nodes_each_with_a_server(self):
        script = self.write("here.py", "import sys; print('preloaded', 'xml.dom.minidom' in sys.modules)")
        job = self.run_preloaded("--local-nodes", "2", "--nproc-per-node", "2", script)
        self.assertEqual(job.out().count("preloaded True"), 4, job.text())


class Faults(PreloadCase):
    """Whatever becomes of the server, workers are started cold, and nothing is left of it."""

    AGAIN = """
        import os, sys
        D, count = os.environ["D"], os.environ["TORCHELASTIC_RESTART_COUNT"]
        print("preloaded", "xml.dom.minidom" in sys.modules, flush=True)
        if count == "0":
            os.mkdir(D + "/here")
            with open(D + "/gate") as gate:
                gate.read(1)
            sys.exit(3)
        """

    def hit_server(self, number):
        """Send the server a signal between two rounds; the second is to be cold."""
        gate = self.gate()
        job = self.start_preloaded("--max-restarts", "1", self.write("again.py", self.AGAIN))
        wait_until(lambda: os.path.exists(self.path("here")), job.text)
        os.kill(self.server_of(job).pid, number)
        gate.open()
        self.finish(job)
        self.assertEqual(re.findall("preloaded (True|False)", job.out()), ["True", "False"], job.text())
        return job

    def test_a_server_that_is_killed(self):
        job = self.hit_server(signal.SIGKILL)
        self.assertIn("rank 0 (local rank 0) is started cold: the fork server has ended", job.err())

    def test_a_server_that_fails_gives_its_reason(self):
        for function, when in (("listdir", "while it inspects itself"), ("path.realpath", "at the first request")):
            with self.subTest(when):
                self.write("lib_breaks.py", f"""
                    import os
                    def {function.rpartition(".")[2]}(*_):
                        raise RuntimeError("no such luck")
                    os.{function} = {function.rpartition(".")[2]}
                    """, "library")
                job = self.run_preloaded(self.write("here.py", "print('here')"), modules="lib_breaks")
                self.assertIn("is started cold: the fork server has failed: RuntimeError('no such luck')", job.err())
                self.assertIn("here", job.out())

    def test_a_server_that_is_stopped(self):
        job = self.hit_server(signal.SIGSTOP)
        self.assertRegex(job.err(), r"rank 0 \(local rank 0\) is started cold: the fork server (was stopped by SIGSTOP|"
                                    r"does not answer)")

    def test_a_server_that_hangs(self):
        self.write("lib_hangs.py", "import os; os.register_at_fork(before=lambda: os.read(os.pipe()[0], 1))", "library")
        job = self.run_preloaded(self.write("here.py", "print('here')"), modules="lib_hangs")
        self.assertIn("is started cold: the fork server does not answer", job.err())
        self.assertIn("here", job.out())

    def test_a_fork_on_a_busy_machine_gets_more_time_than_one_that_stands_still(self):
        self.write("lib_busy.py", """
            import os, time
            def compute():
                until = time.monotonic() + 1.2  # More than a second, at any load by others.
                while time.monotonic() < until:
                    pass
            os.register_at_fork(before=compute)
            """, "library")
        job = self.run_preloaded(self.write("here.py", "import sys; print('lib_busy' in sys.modules)"), modules="lib_busy")
        self.assertNotIn("started cold", job.err())
        self.assertIn("True", job.out())

    def test_a_server_that_is_stopped_while_it_imports_is_not_waited_for(self):
        self.write("slow.py", "import os; os.mkdir(os.environ['D'] + '/slow'); os.read(os.pipe()[0], 1)", "library")
        job = self.start_preloaded("--rdzv-conf", "join_timeout=86400", self.write("here.py", "print('here')"), modules="slow")
        wait_until(lambda: os.path.exists(self.path("slow")), job.text)
        os.kill(self.server_of(job).pid, signal.SIGSTOP)
        self.finish(job)
        self.assertIn("is started cold: the fork server was stopped by SIGSTOP", job.err())

    def test_one_line_tells_of_all_workers_that_start_cold(self):
        script = self.write("here.py", "print('here')")
        self.write("ends.py", "import os; os._exit(3)", "library")
        job = self.start("--preload", "ends", "--nproc-per-node", "3", script, env=self.environment(),
                         cwd=self.path("job"))
        self.finish(job)
        self.assertEqual(job.err().count("started cold"), 1, job.text())
        self.assertEqual(job.out().count("here"), 3)

    def test_a_server_that_imports_slowly_is_there_for_the_restart(self):
        self.write("slow.py", """
            import os
            with open(os.environ["D"] + "/imports") as file:
                file.read(1)
            """, "library")
        imports, gate = self.gate("imports"), self.gate()
        job = self.start_preloaded("--max-restarts", "1", "--rdzv-conf", "join_timeout=2",
                                   self.write("again.py", self.AGAIN), modules="slow,xml.dom.minidom")
        wait_until(lambda: os.path.exists(self.path("here")), job.text)
        self.assertIn("still being imported", job.err())
        imports.open()
        job.wait_for(r"preloaded \d+ modules")
        gate.open()
        self.finish(job)
        self.assertEqual(re.findall("preloaded (True|False)", job.out()), ["False", "True"], job.text())

    def test_a_server_that_goes_on_computing_is_waited_for_longer(self):
        self.write("slow.py", """
            import os, time
            while time.monotonic() < float(os.environ["UNTIL"]):
                pass
            """, "library")
        # More than a sixteenth of join_timeout, and less than a quarter.
        job = self.run_preloaded("--rdzv-conf", "join_timeout=80", self.write("here.py", "import sys; print('slow' in sys.modules)"),
                                 modules="slow", env={"UNTIL": str(time.monotonic() + 6.5)})
        self.assert_preloaded(job)
        self.assertIn("True", job.out())

    def test_another_node_ends_the_run_while_a_server_imports(self):
        self.write("slow.py", """
            import contextlib, os
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.environ["D"] + "/slow")
                os.read(os.pipe()[0], 1)
            """, "library")
        job = self.run_preloaded("--local-nodes", "2", "--rdzv-conf", "join_timeout=86400",
                                 self.write("ends.py", "import sys; sys.exit(3)"), modules="slow", code=3)
        self.assertIn("exited with 3", job.err())

    def test_no_worker_is_started_for_a_round_that_ends_while_its_server_imports(self):
        """Neither cold, nor to be stopped at once: those of the next round wait for the imports."""
        self.write("slow.py", """
            import contextlib, os
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.environ["D"] + "/slow")  # One of the two servers.
                with open(os.environ["D"] + "/imports") as file:
                    file.read(1)
            """, "library")
        imports = self.gate("imports")
        script = self.write("again.py", """
            import os, sys
            count = os.environ["TORCHELASTIC_RESTART_COUNT"]
            print("round", count, "slow" in sys.modules, flush=True)
            sys.exit(3 if count == "0" else 0)
            """)
        job = self.start_preloaded("--local-nodes", "2", "--max-restarts", "1", script, modules="slow")
        job.wait_for("exited with 3, before the workers of this node were started")
        imports.open()
        self.finish(job)
        self.assert_preloaded(job)
        self.assertEqual(sorted(re.findall(r"round \d \w+", job.out())), ["round 0 True", "round 1 True", "round 1 True"])

    def test_a_run_that_is_stopped_while_its_server_imports(self):
        self.write("slow.py", "import os; os.mkdir(os.environ['D'] + '/slow'); os.read(os.pipe()[0], 1)", "library")
        job = self.start_preloaded(self.write("here.py", "print('here')"), modules="slow")
        wait_until(lambda: os.path.exists(self.path("slow")), job.text)
        job.signal(signal.SIGTERM)
        self.finish(job, 143)
        self.assertEqual(job.out(), "")

    def test_kills_of_agent_and_launcher_leave_nothing(self):
        script = self.write("wait.py", """
            import os, signal
            os.mkdir(os.environ["D"] + "/here." + os.environ["ROUND"] + os.environ["RANK"])
            signal.pause()
            """)
        for number, victims in enumerate((["agent"], ["launcher"], ["agent", "launcher"], ["server", "launcher"])):
            with self.subTest(victims):
                job = self.start_preloaded("--nproc-per-node", "2", script, env={"ROUND": str(number)})
                wait_until(lambda n=number, j=job: all(os.path.exists(self.path(f"here.{n}{r}")) for r in "01"), job.text)
                processes = {"agent": job.agents()[0], "launcher": job, "server": self.server_of(job)}
                send_signal([processes[victim] for victim in victims], signal.SIGKILL)
                job.wait()
                self.assert_nothing_left(job)

    def test_the_server_is_killed_with_the_agent_while_it_imports(self):
        self.write("slow.py", "import os; os.mkdir(os.environ['D'] + '/slow'); os.read(os.pipe()[0], 1)", "library")
        job = self.start_preloaded(self.write("here.py", "print('here')"), modules="slow")
        wait_until(lambda: os.path.exists(self.path("slow")), job.text)
        os.kill(job.agents()[0].pid, signal.SIGKILL)
        job.wait()
        self.assert_nothing_left(job)

    def test_an_interpreter_behind_a_script_is_not_trusted(self):
        wrapper = self.write("python3", f"#!/bin/sh\nexec {sys.executable} -E \"$@\"\n")
        os.chmod(wrapper, os.stat(wrapper).st_mode | stat.S_IXUSR)
        job = self.run_preloaded(self.write("here.py", "print('here')"), env={"PYTHON_EXEC": wrapper})
        self.assertIn("is a script that starts another interpreter", job.err())
        self.assertEqual(job.out().count("here"), 1)

    def test_another_program_is_started_as_ever(self):
        job = self.run_preloaded("--no-python", "/bin/echo", "hello")
        self.assertIn("hello", job.out())
        self.assertIn("the program is not run by Python", job.err())


class Interpreters(FactsCase):
    """Each Python of this machine serves, or is named as too old."""

    OLDEST = (3, 8)

    @staticmethod
    def others():
        """By version; those of pyenv are not on PATH."""
        of_pyenv = os.path.join(os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv")), "versions/*/bin/python3")
        paths = [*glob.glob(of_pyenv), *filter(None, (shutil.which(f"python3.{minor}") for minor in range(6, 30)))]
        text = "import sys; print(*sys.version_info[:2]); print(sys.executable)"
        found = {}
        for path in paths:
            done = subprocess.run([path, "-c", text], capture_output=True, text=True, timeout=60, check=False)
            if done.returncode == 0:
                numbers, executable = done.stdout.splitlines()
                found[tuple(int(number) for number in numbers.split())] = executable
        found.pop(sys.version_info[:2], None)
        return found

    def test_each_other_one(self):
        others = self.others()
        if not others:
            self.skipTest("no other Python is here")
        script = self.write("facts.py", FACTS)
        for version, path in sorted(others.items()):
            with self.subTest(path):
                env = {"PYTHON_EXEC": path}
                self.finish(self.start(script, "1", env=self.environment(**env), cwd=self.path("job")))
                _, cold = self.facts()
                job = self.run_preloaded(script, "1", env=env)
                is_preloaded, forked = self.facts()
                self.assertEqual(forked, cold)
                self.assertEqual(is_preloaded, version >= self.OLDEST, job.text())
                if version < self.OLDEST:
                    self.assertRegex(job.err(), rf"is started cold: {re.escape(path)} \(Python 3\.[\d.]+\) is too old: "
                                                r"a fork server needs Python 3\.8")


class Modules(PreloadCase):
    """What must not be imported before a fork is left out."""

    HERE = "import sys; print('has', *sorted(n for n in sys.modules if n.startswith('lib_') or n == 'xml'))"

    def leaves_out(self, text, why):
        self.write("lib_bad.py", text, "library")
        self.write("lib_good.py", "", "library")
        script = self.write("here.py", self.HERE)
        job = self.run_preloaded("--nproc-per-node", "2", script, modules="lib_good,lib_bad,xml")
        self.assertEqual(job.out().count("has lib_good xml\n"), 2, job.text())
        self.assertRegex(job.err(), r"preloaded .*left out: lib_bad")
        del why
        return job

    def test_a_thread(self):
        self.leaves_out("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", "")

    def test_a_socket(self):
        self.leaves_out("import socket; s = socket.socket()", "")

    def test_a_file(self):
        self.leaves_out("f = open(__file__)", "")

    def test_a_process(self):
        self.leaves_out("import subprocess; p = subprocess.Popen(['sleep', '60'])", "")

    def test_shared_memory(self):
        self.leaves_out("import mmap; m = mmap.mmap(-1, 4096)", "")

    def test_a_variable_of_the_rank(self):
        self.leaves_out("import os; RANK = os.environ.get('LOCAL_RANK', '0')", "")

    def test_a_module_that_looks_for_variables_of_its_own_among_all(self):
        self.write("lib_looks.py", "import os; OWN = [v for k, v in os.environ.items() if k.startswith('LOOKS_')]", "library")
        script = self.write("here.py", self.HERE)
        job = self.run_preloaded(script, modules="lib_looks,xml")
        self.assertIn("has lib_looks xml\n", job.out())
        self.assertNotIn("left out", job.err())

    def test_a_copy_of_all_variables(self):
        self.leaves_out("import os; COPY = dict(os.environ)", "")
        self.leaves_out("import os; COPY = os.environ.copy()", "")

    def test_a_copy_of_all_variables_that_does_not_outlive_the_import(self):
        self.write("lib_copies.py", """
            import os

            def own(variables):
                copy = dict(variables)
                return {name: copy[name] for name in copy if name.startswith("LIB_")}

            OWN = own(os.environ)
            """, "library")
        script = self.write("here.py", "import lib_copies; print('own', lib_copies.OWN)")
        job = self.run_preloaded(script, modules="lib_copies", env={"LIB_ONE": "1"})
        self.assert_preloaded(job)
        self.assertIn("own {'LIB_ONE': '1'}", job.out())
        self.assertNotIn("left out", job.err())

    def test_what_imports_such_a_module_is_left_out_with_it(self):
        self.write("lib_counts.py", """
            import os
            with open(os.environ["D"] + "/imports", "a") as file:
                file.write("1")
            """, "library")
        self.write("lib_outer.py", "import lib_middle", "library")
        self.write("lib_middle/__init__.py", "from . import part", "library")
        self.write("lib_middle/part.py", "import lib_inner", "library")
        self.write("lib_inner.py", "import os; RANK = int(os.environ.get('LOCAL_RANK', 0))", "library")
        script = self.write("here.py", self.HERE)
        job = self.run_preloaded(script, modules="lib_counts,lib_outer,lib_middle,lib_inner,xml")
        self.assertIn("has lib_counts xml\n", job.out())
        self.assertRegex(job.err(), r"preloaded .*left out: lib_outer, lib_middle, lib_inner\n")
        with open(self.path("imports"), encoding="ascii") as file:
            self.assertEqual(file.read(), "11")  # The server began anew once.

    def test_an_import_that_fails_half_way(self):
        self.leaves_out("import json.tool; raise RuntimeError('no')", "")

    def test_much_output(self):
        self.leaves_out("print('x' * 100000)", "")

    def test_a_module_that_is_not_there(self):
        script = self.write("here.py", self.HERE)
        job = self.run_preloaded(script, modules="lib_absent,xml")
        self.assertIn("has xml", job.out())
        self.assertRegex(job.err(), "preloaded .*left out: lib_absent")

    def test_a_module_that_is_not_there_is_named_also_without_v(self):
        job = self.run_ddprun("--nproc-per-node", "2", "--preload", "lib_absent,xml", self.write("here.py", self.HERE),
                              env=self.environment(), cwd=self.path("job"))
        self.assertEqual(job.out().count("has xml"), 2)
        self.assertRegex(job.err(), r"\Addprun: preload: lib_absent cannot be imported, and is left out: "
                                    r"No module named 'lib_absent'\n\Z")

    def test_what_an_import_prints_each_worker_prints(self):
        self.write("lib_loud.py", "import sys; print('loud'); print('louder', file=sys.stderr)", "library")
        script = self.write("here.py", "import lib_loud; print('here')")
        job = self.run_preloaded("--nproc-per-node", "2", script, modules="lib_loud")
        self.assert_preloaded(job)
        self.assertEqual([job.out().count("]:loud\n"), job.out().count("here"), job.err().count("louder")], [2, 2, 2])

    def test_an_import_that_takes_long_is_named(self):
        self.write("lib_slow/__init__.py", "import time\nbegan = time.monotonic()\nwhile time.monotonic() < began + 2: pass", "library")
        self.write("lib_slow/part.py", "", "library")
        job = self.run_preloaded(self.write("here.py", self.HERE), modules="lib_slow.part,keyword")
        self.assertRegex(job.err(), r"preloaded \d+ modules in [\d.]+ s \(lib_slow [\d.]+ s")

    def test_what_an_import_sets_is_set_in_each_worker(self):
        self.write("lib_sets.py", "import os; os.environ['LIB_SET'] = '1'; os.environ.pop('LIB_GONE')", "library")
        script = self.write("here.py", "import os, lib_sets; print('set', os.environ.get('LIB_SET'), os.environ.get('LIB_GONE'), "
                                       "b'LIB_GONE' in open('/proc/self/environ', 'rb').read())")
        job = self.run_preloaded("--nproc-per-node", "2", script, modules="lib_sets", env={"LIB_GONE": "1"})
        self.assert_preloaded(job)
        self.assertEqual(job.out().count("set 1 None True"), 2, job.text())

    def test_a_file_of_the_program_that_hides_a_module_of_that_name(self):
        self.write("lib_same.py", "WHERE = 'library'", "library")
        self.write("lib_same.py", "WHERE = 'own'")
        script = self.write("here.py", "import lib_same; print(lib_same.WHERE)")
        job = self.run_preloaded(script, modules="lib_same")
        self.assertIn("own", job.out())
        self.assertRegex(job.err(), "is started cold: its own .*lib_same.py hides a module of that name")

    def test_a_rank_with_another_setting_of_a_library(self):
        script = self.write("here.py", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], 'xml' in "
                                       "__import__('sys').modules)")
        job = self.run_preloaded("--nproc-per-node", "2", "--virtual-local-rank", script, modules="xml")
        self.assertIn("0 True", job.out())
        self.assertIn("1 False", job.out())
        self.assertIn("rank 1 (local rank 1) is started cold: CUDA_VISIBLE_DEVICES is another one", job.err())


class Differences(PreloadCase):
    """Some of the scripts of preload_differences.py, which runs them all by hand."""

    SOME = ("prints", "C output at exit", "exit text", "exception", "recursion depth", "unraisable", "interrupt", "dispositions",
            "stack", "atexit", "finalizer at the end", "a thread at the end", "thread numbers", "main", "path", "flags", "streams", "open files",
            "variables in C", "variables of children", "fork hooks", "multiprocessing spawn", "import of its own", "no children")

    def test_output_and_exit_codes_are_equal(self):
        for number, name in enumerate(self.SOME):
            with self.subTest(name):
                text = preload_differences.SCRIPTS[name] + "\n"
                self.assertIsNone(preload_differences.difference(text, 1 + number % 2, self.path("job")))

    def test_scripts_made_at_random(self):
        for number in range(6):
            text = preload_differences.made_at_random(os.getpid(), number)
            self.assertIsNone(preload_differences.difference(text, 1, self.path("job")), text)


class Elsewhere(FactsCase):
    """A program that changes where modules are looked for gets the modules of a cold start."""

    # Each before `import lib_same`, of which the folder `vendor` has another one.
    WAYS = {
        "insert": "sys.path.insert(0, vendor)",
        "assign": "sys.path = [vendor] + sys.path",
        "slice": "sys.path[:0] = [vendor]",
        "chdir": "sys.path.insert(0, ''); import os; os.chdir(vendor)",
        "remove": "sys.path.remove(library)",
        "a finder": textwrap.dedent("""
            import importlib.util, os
            class Finder:
                def find_spec(self, name, path=None, target=None):
                    if name == "lib_same":
                        return importlib.util.spec_from_file_location(name, os.path.join(vendor, "lib_same/__init__.py"))
            sys.meta_path.insert(0, Finder())"""),
    }
    IMPORTS = {
        "import": "import lib_same",
        "from a submodule": "from lib_same.part import WHERE; lib_same = sys.modules['lib_same']",
        "from a submodule that was not preloaded": "from lib_same.late import WHERE; lib_same = sys.modules['lib_same']",
        "import_module": "import importlib; lib_same = importlib.import_module('lib_same')",
        "by another module": "import lib_user; lib_same = lib_user.lib_same",
    }

    def setUp(self):
        super().setUp()
        for folder in ("library", "job/vendor"):
            for name in ("__init__", "part", "late"):
                self.write(f"lib_same/{name}.py", f"WHERE = '{folder}'", folder)
        self.write("lib_user.py", "import lib_same", "library")

    def program(self, change, imports="import lib_same", before=""):
        head = f"import sys\nvendor, library = {self.path('job/vendor')!r}, {self.path('library')!r}\n"
        end = ("\nprint('from', lib_same.WHERE, lib_same.part.WHERE if 'lib_same.part' in sys.modules else '',"
               " 'xml.dom.minidom' in sys.modules)\n")
        return self.write("train.py", head + before + "\n" + change + "\ntry:\n    " + imports +
                          "\nexcept ImportError:\n    print('no such module')\n    sys.exit()\n" + end)

    def outcomes(self, script, modules="lib_same,lib_same.part,lib_user"):
        cold = self.run_cold(script)
        return cold.out(), self.run_preloaded("--nproc-per-node", "1", script, modules=modules)

    def assert_as_cold(self, script):
        cold, job = self.outcomes(script)
        self.assertEqual(job.out(), cold, job.text())
        self.assertNotIn("has lib_same", job.err())

    def test_each_way_to_change_where_modules_are_looked_for(self):
        for name, change in self.WAYS.items():
            with self.subTest(name):
                self.assert_as_cold(self.program(change))

    def test_each_way_to_import(self):
        for name, imports in self.IMPORTS.items():
            with self.subTest(name):
                self.assert_as_cold(self.program("sys.path.insert(0, vendor)", imports))

    def test_a_part_of_a_namespace_package(self):
        self.write("lib_name/part.py", "WHERE = 'library'", "library")
        self.write("lib_name/part.py", "WHERE = 'job/vendor'", "job/vendor")
        script = self.program("sys.path.insert(0, vendor)", "import lib_name.part; lib_same = lib_name.part")
        cold, job = self.outcomes(script, "lib_name.part")
        self.assertIn("from job/vendor", cold)
        self.assertEqual(job.out(), cold, job.text())

    def test_what_was_imported_before_the_change_stays(self):
        script = self.program("sys.path.insert(0, vendor)", "import lib_same.part",
                              "import lib_same, xml.dom.minidom; print('once', flush=True)")
        cold, job = self.outcomes(script, "lib_same,xml.dom.minidom")
        self.assertIn("from library library True", cold)
        self.assertEqual(job.out(), cold, job.text())
        self.assertNotIn("has lib_same", job.err())

    def test_a_folder_without_such_a_module_changes_nothing(self):
        os.mkdir(self.path("job/other"))
        script = self.program("sys.path.insert(0, vendor.replace('vendor', 'other'))")
        _, job = self.outcomes(script, "lib_same,xml.dom.minidom")
        self.assertIn("from library  True", job.out())  # It was not begun anew.

    def test_a_worker_that_begins_anew_is_as_one_that_was_started_cold(self):
        facts = FACTS.replace("import ctypes", "sys.path.insert(0, os.environ['D'] + '/job/vendor'); import lib_same, ctypes")
        script = self.write("facts.py", "import sys, os\n" + facts)
        self.run_cold(script, "an argument")
        cold = self.facts()
        self.run_preloaded(script, "an argument", modules="lib_same,xml.dom.minidom")
        self.assertEqual(self.facts(), cold)

    TRACES = {
        "has written output or files": "print('begun', flush=True)",
        "has opened ": "file = open(__file__)",
        "has threads": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "has started a process": "import os; os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)",
    }

    def test_a_worker_that_has_left_traces_does_nothing_twice_and_names_the_module(self):
        for why, before in self.TRACES.items():
            with self.subTest(why):
                script = self.program("sys.path.insert(0, vendor)", before=before)
                _, job = self.outcomes(script)
                self.assertEqual(job.out().count("begun"), before.count("begun"))
                self.assertRegex(
                    job.err(), "preload: rank 0 has lib_same from .*/library/lib_same/__init__.py, and would find it at "
                    ".*/job/vendor/lib_same/__init__.py without --preload, .* this worker cannot begin anew, as it " + why +
                    ".*; leave it out of --preload, or use --preload off")

    def test_auto_learns_which_module_is_another_one(self):
        """statistics imports fractions, which imports decimal."""
        self.write("decimal.py", "from _pydecimal import *; Decimal.WHERE = 'vendor'", "job/vendor")
        text = "import sys\nif len(sys.argv) > 1:\n    print('begun')\n    sys.path.insert(0, sys.argv[1])\n"
        script = self.write("own.py", text + "import statistics, json.tool, decimal\n"
                            "print('from', *(getattr(m.Decimal, 'WHERE', 'library') for m in (statistics, decimal)))\n")
        for _ in range(2):
            self.assertIn("from library library", self.run_preloaded(script, modules="auto").out())
        jobs = [self.run_preloaded(script, self.path("job/vendor"), modules="auto") for _ in range(2)]
        self.assertRegex(jobs[0].err(), "rank 0 has decimal from .*; later starts do not preload it, or use --preload off")
        self.assertIn("from vendor vendor", jobs[1].out())
        self.assertNotIn("has decimal", jobs[1].err())
        self.assertRegex(jobs[1].err(), r"preloaded \d+ modules.*left out: .*decimal")
        self.assertIn("from library library", self.run_preloaded(script, modules="auto").out())


class Learned(PreloadCase):
    """--preload auto: what a program imports is learnt from its runs."""

    modules = "auto"

    def cached(self):
        folder = self.path("cache/ddprun/preload")
        found = {}
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                found[name] = file.read().splitlines()
        return found

    def test_the_second_run_has_what_the_first_has_imported(self):
        self.write("own.py", "")
        script = self.write("train.py", """
            import sys
            print("preloaded", "xml.dom.minidom" in sys.modules)
            import own, xml.dom.minidom
            """)
        jobs = [self.run_preloaded("--nproc-per-node", "2", script) for _ in range(2)]
        self.assertEqual([job.out().count("preloaded True") for job in jobs], [0, 2], jobs[1].text())
        self.assertIn("nothing is known yet of what the program imports", jobs[0].err())
        (lines,) = self.cached().values()
        self.assertIn("xml.dom.minidom", lines)
        self.assertNotIn("own", lines)
        self.assertNotIn("__main__", lines)

    def test_ddprun_itself_is_preloaded_wherever_it_is(self):
        self.write("ddprun/__init__.py", "", "library")
        self.write("lib_other.py", "", "library")
        script = self.write("train.py", "import sys; print('has', *{'ddprun', 'lib_other'} & set(sys.modules)); import ddprun, lib_other")
        jobs = [self.run_preloaded(script) for _ in range(2)]
        self.assertIn("has ddprun\n", jobs[1].out())

    def test_a_first_run_says_nothing_of_it(self):
        script = self.write("train.py", "import xml.dom.minidom")
        job = self.start("--preload", "auto", script, env=self.environment(), cwd=self.path("job"))
        self.finish(job)
        self.assertEqual(job.err(), "")

    def test_one_line_tells_that_a_list_cannot_be_kept(self):
        script = self.write("train.py", "import xml.dom.minidom; print('here')")
        home = {"XDG_CACHE_HOME": "", "HOME": self.path("absent")}
        for more, why in (({"XDG_CACHE_HOME": "/proc/absent"}, "/proc/absent/ddprun.*"), (home, "there is no home folder")):
            with self.subTest(why):
                job = self.run_ddprun("--preload", "auto", script, env=self.environment(**more), cwd=self.path("job"))
                self.assertIn("here", job.out())
                self.assertRegex(job.err(), r"\Addprun: preload: what the program imports cannot be kept for its next start, "
                                 f"which will be cold, too: .*{why}; name a folder that can be written in XDG_CACHE_HOME\n\\Z")

    def test_a_run_that_fails_is_learnt_from_too(self):
        self.run_preloaded(self.write("train.py", "import xml.dom.minidom; raise ValueError"), code=1)
        self.assertEqual(len(self.cached()), 1)

    def test_a_worker_that_is_killed_leaves_a_list_too(self):
        script = self.write("train.py", """
            import os, signal, xml.dom.minidom
            os.kill(os.getpid(), signal.SIGKILL)
            """)
        self.run_preloaded(script, code=137)
        (lines,) = self.cached().values()
        self.assertIn("xml.dom.minidom", lines)
        self.assertNotIn(".", lines)

    def test_a_run_that_is_killed_whole_leaves_a_list_once_its_imports_have_settled(self):
        script = self.write("train.py", "import signal, xml.dom.minidom; signal.pause()")
        job = self.start_preloaded(script)
        wait_until(self.cached, job.text)
        send_signal([job.agents()[0], job], signal.SIGKILL)
        job.wait()
        self.assert_nothing_left(job)
        self.assert_preloaded(self.run_preloaded(self.write("train.py", "import xml.dom.minidom")))

    def test_the_first_restart_of_the_first_run_has_what_was_learned(self):
        script = self.write("train.py", """
            import os, sys
            print("preloaded", "xml.dom.minidom" in sys.modules, flush=True)
            import xml.dom.minidom, asyncio
            if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                with open(os.environ["D"] + "/gate") as gate:
                    gate.read(1)
                sys.exit(3)
            """)
        gate = self.gate()
        job = self.start_preloaded("--max-restarts", "1", script)
        job.wait_for(r"preloaded \d+ modules")
        gate.open()
        self.finish(job)
        self.assertEqual(re.findall("preloaded (True|False)", job.out()), ["False", "True"], job.text())

    def test_a_run_that_cannot_restart_has_no_second_server(self):
        script = self.write("train.py", """
            import os, sys, xml.dom.minidom, asyncio
            with open(os.environ["D"] + "/gate") as gate:
                gate.read(1)
            """)
        gate = self.gate()
        job = self.start_preloaded(script)
        wait_until(self.cached, job.text)
        gate.open()
        self.finish(job)
        self.assertNotIn("modules were learned", job.err())

    def test_lists_of_several_runs_are_merged(self):
        script = self.write("train.py", """
            import sys
            if sys.argv[1] == "a":
                import xml.dom.minidom
            else:
                import wsgiref.util
            """)
        self.run_preloaded(script, "a")
        self.run_preloaded(script, "b")
        (lines,) = self.cached().values()
        self.assertEqual({"xml.dom.minidom", "wsgiref.util"} - set(lines), set())

    def test_a_program_of_the_same_name_has_a_list_of_its_own(self):
        scripts = [self.write(f"{folder}/train.py", "import xml.dom.minidom") for folder in "ab"]
        for script in scripts:
            self.assertIn("nothing is known yet of what the program imports", self.run_preloaded(script).err())
        self.assertEqual(len(self.cached()), 2)

    def test_an_import_that_fails_is_not_learned(self):
        script = self.write("train.py", """
            import contextlib
            with contextlib.suppress(ImportError):
                import xml.nowhere
            with contextlib.suppress(ImportError):
                import multiprocessing.popen_spawn_win32  # It imports, and then fails.
            import xml.dom.minidom
            """)
        self.run_preloaded(script)
        (lines,) = self.cached().values()
        self.assertIn("multiprocessing", lines)
        self.assertEqual({"xml.nowhere", "multiprocessing.popen_spawn_win32"} & set(lines), set())

    def test_once_a_run_has_come_to_its_end_its_next_imports_are_not_followed(self):
        script = self.write("train.py", "import sys; print('finders', len(sys.meta_path))")
        jobs = [self.run_preloaded(script) for _ in range(2)]
        found = [int(re.search(r"finders (\d+)", job.out()).group(1)) for job in jobs]
        self.assertEqual(found[0], found[1] + 1)

    def test_a_list_that_is_damaged_is_no_list(self):
        script = self.write("train.py", "import xml.dom.minidom")
        self.run_preloaded(script)
        (name,) = self.cached()
        for text in (b"", b"\xff\x00", b"ddprun preload 1\nanother\nxml\n", b"x" * (2 << 20), b"ddprun preload 2"):
            with open(self.path("cache/ddprun/preload/" + name), "wb") as file:
                file.write(text)
            self.assertNotIn("preloaded ", self.run_preloaded(script).err())
            self.assertIn("xml.dom.minidom", self.cached()[name])

    def test_a_program_that_sets_what_modules_read_is_started_cold(self):
        self.write("config.py", "import os\nos.environ.setdefault('OMP_NUM_THREADS', '3')")
        script = self.write("train.py", "import config, xml.dom.minidom")
        self.run_preloaded(script)
        job = self.run_preloaded(script)
        self.assertIn("is started cold: config.py:2 sets OMP_NUM_THREADS", job.err())

    def test_a_variable_that_installed_code_sets_before_an_import_is_noticed(self):
        self.write("lib_tool.py", "import os\ndef run():\n    os.environ['OMP_NUM_THREADS'] = '3'", "library")
        script = self.write("train.py", "import lib_tool; lib_tool.run(); import xml.dom.minidom")
        self.run_preloaded(script)
        job = self.run_preloaded(script)
        self.assertIn("is started cold: the program sets OMP_NUM_THREADS before it imports", job.err())

    def installed(self):
        """A folder of the user's for libraries, and the environment in which Python finds it."""
        folder = f"user/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        os.makedirs(self.path(folder), exist_ok=True)
        return folder, {"PYTHONUSERBASE": self.path("user")}

    def run_after_setting(self, variable, *modules):
        """The second run of a program that has an installed tool set a variable, and then imports."""
        folder, env = self.installed()
        self.write("lib_tool.py", f"import os\ndef run():\n    os.environ['{variable}'] = '3'", folder)
        script = self.write("train.py", f"import lib_tool\nlib_tool.run()\nimport {', '.join(modules)}")
        self.run_preloaded(script, env=env)
        return self.run_preloaded(script, env=env)

    def test_a_variable_that_no_import_reads_may_be_set_before(self):
        self.assert_preloaded(self.run_after_setting("LIB_SEED", "xml.dom.minidom"))

    def test_a_variable_that_an_import_reads_is_named_with_it(self):
        folder, _ = self.installed()
        for text in ("os.environ.get('LIB_SEED')", "'LIB_SEED' in os.environ", "[v for k, v in os.environ.items() if k[:4] == 'LIB_']"):
            self.write("lib.py", f"import os; SEED = {text}", folder)
            job = self.run_after_setting("LIB_SEED", "lib")
            self.assertIn("is started cold: the program sets LIB_SEED before it imports lib, which may read it", job.err())

    def test_a_variable_whose_name_a_shared_library_has_is_named_with_it(self):
        if importlib.util.find_spec("_sqlite3") is None:
            self.skipTest("this Python has no sqlite3")
        job = self.run_after_setting("SQLITE_TMPDIR", "sqlite3")
        self.assertRegex(job.err(), r"is started cold: the program sets SQLITE_TMPDIR before it imports \S*sqlite3\S*, which")

    def test_what_a_library_sets_while_it_is_imported_is_no_setting_of_the_program(self):
        installed, env = self.installed()
        self.write("lib_sets/__init__.py", """
            import os
            os.environ["LIB_SETS"] = "1"
            import lib_inner
            from . import part
            del os.environ["LIB_SETS"]
        """, installed)
        self.write("lib_sets/part.py", "import lib_other", installed)
        for name in ("lib_inner.py", "lib_other.py"):
            self.write(name, "", installed)
        scripts = ["import lib_sets, xml.dom.minidom"]
        if importlib.util.find_spec("numpy"):  # It does.
            scripts.append("import numpy")
        for number, script in enumerate(scripts):
            with self.subTest(script):
                train = self.write(f"train{number}.py", script)
                for check in (lambda job: None, self.assert_preloaded):
                    check(self.run_preloaded(train, env=env))

    def test_each_way_to_set_a_variable_is_found(self):
        sys.path.insert(0, os.path.join(HERE, "../../python/startup"))
        self.addCleanup(sys.path.pop, 0)
        source = importlib.import_module("ddprun_preload._source")
        for line, variable in (("os.environ['A'] = '1'", "A"), ("del os.environ['A']", "A"), ("environ['A'] += '1'", "A"),
                               ("os.environ.setdefault('A', '1')", "A"), ("os.environ.pop('A')", "A"),
                               ("os.putenv('A', '1')", "A"), ("os.environ[name] = '1'", "variables of the environment"),
                               ("os.environ.update(a)", "variables of the environment"),
                               ("os.environ |= a", "variables of the environment"),
                               ("def f():\n    os.environ['A'] = '1'", "A"), ("os.environ['RANK'] = '1'", ""),
                               ("os.environ['NCCL_DEBUG'] = '1'", ""), ("a = os.environ['A']", ""), ("environment['A'] = 1", "")):
            self.assertEqual(source.read(self.write("train.py", line))[0], variable, line)
        self.assertIn("dotenv", source.read(self.write("train.py", "from dotenv import load_dotenv"))[0])

    def test_a_program_may_set_what_is_read_later(self):
        script = self.write("train.py", "import os, xml.dom.minidom\nos.environ['MASTER_PORT'] = '1'")
        self.run_preloaded(script)
        self.assert_preloaded(self.run_preloaded(script))


if __name__ == "__main__":
    ddprun_case.main()
