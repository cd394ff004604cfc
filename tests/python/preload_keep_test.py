"""ddprun --preload-keep: a fork server that outlives its run, and serves the next ones of its user."""

import ctypes
import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../system"), HERE]

import ddprun_case  # noqa: E402  pylint: disable=wrong-import-position
import preload_differences  # noqa: E402  pylint: disable=wrong-import-position
import preload_test  # noqa: E402  pylint: disable=wrong-import-position
from ddprun_case import send_signal, wait_until  # noqa: E402  pylint: disable=wrong-import-position

FILE = 3  # Of a holder.
CONDITIONS_AT = 64 << 10
RIP_AT = 16 + 7 * 8 + 7 * 8  # In the image: behind its magic, 7 numbers, and 7 registers.
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
KEPT = r"are kept in memory \([\d.]+ \w+\) until \d\d:\d\d by process (\d+); end it by `ddprunctl preload --end \d+`"
RESUMED = "kept by an earlier run"
HERE_SCRIPT = "import sys; print('preloaded', 'xml.dom.minidom' in sys.modules, *sys.argv[1:])"


class KeepCase(preload_test.FactsCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(self.end_holders)

    def holders(self):
        """The processes that keep something of this test's programs, and nothing of another's."""
        lines = self.ctl("preload").stdout.splitlines()
        return [int(line.split()[0]) for line in lines if self.dir in line]

    def end_holders(self):
        for pid in self.holders():
            self.ctl("preload", "--end", str(pid))

    def ctl(self, *argv):
        return subprocess.run([os.path.join(ddprun_case.BIN, "ddprunctl"), *argv], capture_output=True, text=True, timeout=60,
                              check=False)

    def start_preloaded(self, *argv, modules=None, env=None):
        return super().start_preloaded("--preload-keep", "30", *argv, modules=modules, env=env)

    def write_library(self, name, text, age_s=1000):
        """A module that was not written at this very moment: such a one is imported again by the next run."""
        path = self.write(name, text, "library")
        os.utime(path, (os.stat(path).st_mtime - age_s,) * 2)
        return path

    def keep(self, *argv, **options):
        """A first run, which leaves a holder; its number."""
        job = self.run_preloaded(*argv, **options)
        found = re.search(KEPT, job.err())
        self.assertTrue(found, job.text())
        self.assertNotIn(RESUMED, job.err())
        return int(found.group(1))

    def assert_resumed(self, job):
        self.assert_preloaded(job)
        self.assertIn(RESUMED, job.err(), job.text())

    def assert_not_resumed(self, job):
        self.assertNotIn(RESUMED, job.err(), job.text())


class Keeps(KeepCase):
    """What is kept serves the next run, in which nothing else differs."""

    def test_the_next_run_of_an_edited_script_is_served_by_what_was_kept(self):
        script = self.write("here.py", HERE_SCRIPT)
        holder = self.keep(script, "one")
        self.write("here.py", HERE_SCRIPT + "\nprint('edited')")
        job = self.run_preloaded(script, "two", "arguments")
        self.assert_resumed(job)
        self.assertIn("preloaded True two arguments", job.out())
        self.assertIn("edited", job.out())
        self.assertEqual(re.search(KEPT, job.err()).group(1), str(holder), job.text())

    def test_what_a_program_sees_of_itself_is_that_of_a_cold_start(self):
        script = self.write("facts.py", preload_test.FACTS)
        self.run_cold("--nproc-per-node", "2", script, "--flag", "ü")
        cold = [self.facts(rank)[1] for rank in range(2)]
        self.keep("--nproc-per-node", "2", script)
        self.assert_resumed(self.run_preloaded("--nproc-per-node", "2", script, "--flag", "ü"))
        for rank in range(2):
            is_preloaded, kept = self.facts(rank)
            self.assertTrue(is_preloaded)
            for name, fact in cold[rank].items():
                self.assertEqual(kept[name], fact, name)

    def test_a_module_and_a_file_for_runpy_are_served_too(self):
        self.write("pack/__init__.py", "")
        self.write("pack/here.py", HERE_SCRIPT)
        for argv in (("-m", "pack.here"), ("--run-path", "pack/here.py")):
            self.keep(*argv)
            job = self.run_preloaded(*argv, "7")
            self.assert_resumed(job)
            self.assertIn("preloaded True 7", job.out())

    def test_exit_codes_and_signals_are_those_of_the_worker(self):
        script = self.write("ends.py", preload_test.Ends.ENDS)
        self.keep(script, "0")
        for how, code in (("77", 77), ("_9", 9), ("-9", 137), ("-15", 143), ("-11", 139), ("raise", 1)):
            with self.subTest(how):
                self.assert_resumed(self.run_preloaded(script, how, code=code))

    def test_output_is_equal(self):
        for name in ("prints", "C output at exit", "exception", "recursion depth", "stack", "atexit", "finalizer at the end",
                     "a thread at the end", "thread numbers", "variables in C", "fork hooks", "multiprocessing spawn"):
            with self.subTest(name):
                text = preload_differences.SCRIPTS[name] + "\n"
                self.assertIsNone(preload_differences.difference(text, 1, self.path("job"), kept=True))
        self.assertEqual(self.holders(), [])

    def test_what_modules_have_printed_and_set_is_there_again(self):
        self.write_library("lib_sets.py", "import os; os.environ['SET'] = 'yes'; print('imported')")
        script = self.write("here.py", "import os; print(os.environ['SET'])")
        self.keep(script, modules="lib_sets")
        job = self.run_preloaded(script, modules="lib_sets")
        self.assert_resumed(job)
        self.assertEqual(job.out().count("imported"), 1, job.text())
        self.assertIn("yes", job.out())

    def test_restarts_and_a_second_node_of_this_machine_are_served(self):
        script = self.write("again.py", """
            import os, sys
            print("preloaded", "xml.dom.minidom" in sys.modules, flush=True)
            sys.exit(3 if os.environ["TORCHELASTIC_RESTART_COUNT"] < "2" else 0)
            """)
        argv = ("--local-nodes", "2", "--max-restarts", "2", script)
        self.keep(*argv)
        job = self.run_preloaded(*argv)
        self.assert_resumed(job)
        self.assertEqual(job.err().count(RESUMED), 2, job.text())
        self.assertNotIn("preloaded False", job.out())

    def test_two_runs_at_once_are_served(self):
        gate = self.gate()
        script = self.write("here.py", """
            import os, sys
            if sys.argv[1:]:
                os.mkdir(os.path.join(os.environ["D"], sys.argv[1]))
                with open(os.environ["D"] + "/gate") as gate:
                    gate.read(1)
            """)
        holder = self.keep(script)
        jobs = [self.start_preloaded(script, f"here{n}") for n in range(2)]
        wait_until(lambda: all(os.path.exists(self.path(f"here{n}")) for n in range(2)), lambda: [job.text() for job in jobs])
        self.assertIn("in use", self.ctl("preload").stdout)
        os.utime(f"/proc/{holder}/fd/{FILE}", (0, 0))  # Its time is over, and it stays.
        os.kill(holder, signal.SIGUSR1)
        gate.open()
        for job in jobs:
            self.finish(job)
            self.assert_resumed(job)
        self.assertEqual(self.holders(), [holder])

    def test_a_failed_run_keeps_what_it_has_imported(self):
        script = self.write("fails.py", "raise ValueError")
        self.keep(script, code=1)
        self.assert_resumed(self.run_preloaded(script, code=1))


    def test_a_run_that_is_interrupted_keeps_it_too(self):
        script = self.write("waits.py", "import os, signal; os.mkdir(os.environ['D'] + '/here'); signal.pause()")
        job = self.start_preloaded(script)
        wait_until(lambda: os.path.exists(self.path("here")), job.text)
        job.signal(signal.SIGINT)
        self.finish(job, 130)
        self.assertRegex(job.err(), KEPT)


class Verdict(KeepCase):
    """The run is over and reported before anything is saved."""

    # In the fork server: as it saves itself, it stops until it is killed.
    STOPS = """
        import os, signal
        real = os.stat
        def stat(*arguments, **options):
            with open("/proc/self/comm") as name:
                saves = name.read() == "ddprun-preload\\n" and os.access(os.environ["D"] + "/over", os.F_OK)
            if saves:
                os.mkdir(os.environ["D"] + "/saving")
                signal.pause()
            return real(*arguments, **options)
        os.stat = stat
        """

    def test_an_agent_that_is_killed_as_it_saves_does_not_change_how_the_run_has_ended(self):
        self.write_library("lib_stops.py", self.STOPS)
        script = self.write("ends.py", """
            import os, sys
            os.mkdir(os.environ["D"] + "/over")
            sys.exit(int(sys.argv[1]))
            """)
        for code in (0, 7):
            with self.subTest(code):
                verdict = self.path(f"verdict{code}")
                job = self.start_preloaded("--error-file", verdict, script, str(code), modules="lib_stops")
                wait_until(lambda: os.path.exists(self.path("saving")), job.text)
                os.kill(job.agents()[0].pid, signal.SIGKILL)
                self.finish(job, code)
                self.assertIn("was killed by SIGKILL after the run had ended", job.err())
                self.assertEqual(self.holders(), [])
                history = subprocess.run([os.path.join(ddprun_case.BIN, "ddprunctl"), "history", "--json"], capture_output=True, timeout=60,
                                         check=True, env={**os.environ, "XDG_STATE_HOME": self.path("state")})
                run = json.loads(history.stdout)["runs"][0]
                self.assertEqual((run["state"], run["exit_code"]), ("ended", code))
                self.assertEqual(os.path.exists(verdict), code != 0)
                if code:
                    with open(verdict, encoding="utf-8") as file:
                        self.assertEqual(json.load(file)["kind"], "worker_failed")
                for name in ("over", "saving"):
                    os.rmdir(self.path(name))


class Learns(KeepCase):
    modules = "auto"

    def test_what_the_program_imports_newly_is_added(self):
        script = self.write("train.py", "import xml.dom.minidom")
        self.run_preloaded(script)
        first = self.keep(script)
        self.write("train.py", "import xml.dom.minidom, wsgiref.util")
        self.assert_resumed(self.run_preloaded(script))  # And learns.
        job = self.run_preloaded(script)
        self.assert_not_resumed(job)
        second = int(re.search(KEPT, job.err()).group(1))
        self.assertEqual(self.holders(), [second], first)
        self.assert_resumed(self.run_preloaded(script))

    def test_a_first_run_keeps_once_its_imports_have_settled(self):
        gate = self.gate()
        script = self.write("train.py", """
            import os, sys, xml.dom.minidom, asyncio
            with open(os.environ["D"] + "/gate") as gate:
                gate.read(1)
            """)
        job = self.start_preloaded(script)
        job.wait_for(r"preloaded \d+ modules")
        gate.open()
        self.finish(job)
        self.assertRegex(job.err(), KEPT)
        self.assert_resumed(self.run_preloaded(script))

    def test_a_run_with_nothing_to_keep_says_so(self):
        job = self.run_preloaded(self.write("train.py", "import xml.dom.minidom"))
        self.assertIn("nothing is kept for the next start: nothing is known yet", job.err())
        self.assertEqual(self.holders(), [])

    def test_a_program_that_now_sets_what_modules_read_is_started_cold(self):
        script = self.write("train.py", "import xml.dom.minidom")
        self.run_preloaded(script)
        self.keep(script)
        self.write("train.py", "import os\nos.environ['OMP_NUM_THREADS'] = '3'\nimport xml.dom.minidom")
        job = self.run_preloaded(script)
        self.assertIn("is started cold: train.py:2 sets OMP_NUM_THREADS", job.err())


class Unfit(KeepCase):
    """What does not fit is not used, and what has changed is thrown away."""

    def test_a_module_that_was_edited(self):
        library = self.write_library("lib_edited.py", "VALUE = 'old'")
        script = self.write("here.py", "import lib_edited; print(lib_edited.VALUE)")
        first = self.keep(script, modules="lib_edited")
        self.write_library("lib_edited.py", "VALUE = 'new'", 500)
        job = self.run_preloaded(script, modules="lib_edited")
        self.assertIn("new", job.out())
        self.assertRegex(job.err(), f"what process {first} has kept is thrown away: {re.escape(library)} has changed")
        self.assertNotIn(first, self.holders())

    def test_a_module_that_is_edited_during_the_run_is_not_kept(self):
        self.write_library("lib_edited.py", "VALUE = 'old'")
        gate = self.gate()
        script = self.write("here.py", """
            import os
            os.mkdir(os.environ["D"] + "/here")
            with open(os.environ["D"] + "/gate") as gate:
                gate.read(1)
            """)
        job = self.start_preloaded(script, modules="lib_edited")
        wait_until(lambda: os.path.exists(self.path("here")), job.text)
        self.write("lib_edited.py", "VALUE = 'new one'", "library")
        gate.open()
        self.finish(job)
        self.assertRegex(job.err(), "nothing is kept for the next start: .*lib_edited.py has changed since it was imported")
        self.assertEqual(self.holders(), [])

    def test_another_environment_or_folder_is_not_served(self):
        script = self.write("here.py", HERE_SCRIPT)
        self.keep(script)
        job = self.run_preloaded(script, env={"SOME_SETTING": "1"})
        self.assert_not_resumed(job)
        self.assertIn("1 fork server of earlier runs of this program kept, but for another environment", job.err())
        self.assertEqual(len(self.holders()), 2)
        self.assert_resumed(self.run_preloaded(script, env={"SHLVL": "7", "OLDPWD": "/"}))

    def test_another_limit_is_not_served(self):
        script = self.write("here.py", HERE_SCRIPT)
        self.keep(script)
        job = self.start_program(["/bin/sh", "-c", 'ulimit -s 4096; exec "$@"', "sh", ddprun_case.DDPRUN, "-v", "--preload",
                                  self.modules, "--preload-keep", "30", script], env=self.environment(), cwd=self.path("job"))
        self.finish(job)
        self.assertIn("is thrown away: a limit (ulimit) is another one", job.err())
        self.assert_preloaded(job)

    def test_a_module_that_starts_a_thread_later_is_not_kept(self):
        self.write_library("lib_thread.py", """
            import os, threading
            os.register_at_fork(after_in_parent=lambda: threading.Thread(target=threading.Event().wait, daemon=True).start())
            """)
        job = self.run_preloaded(self.write("here.py", HERE_SCRIPT), modules="lib_thread")
        self.assertRegex(job.err(), "nothing is kept for the next start|is started cold")
        self.assertEqual(self.holders(), [])

    def test_the_flag_needs_preload(self):
        job = self.start("--preload-keep", "30", self.write("here.py", ""), env=self.environment())
        self.finish(job, 2)
        self.assertIn("--preload-keep needs --preload auto", job.err())
        off = self.start("--preload", "off", "--preload-keep", "30", self.write("here.py", ""), env=self.environment())
        self.finish(off)

    def test_0_keeps_nothing(self):
        job = self.start("-v", "--preload", self.modules, "--preload-keep", "0", self.write("here.py", ""), env=self.environment())
        self.finish(job)
        self.assertNotIn("kept", job.err())


class Holders(KeepCase):
    """The process that is left is no orphan: it is listed, ended, ends by itself, and is needed by no run."""

    def setUp(self):
        super().setUp()
        self.script = self.write("here.py", HERE_SCRIPT)

    def test_it_is_listed_and_ended(self):
        holder = self.keep(self.script)
        (line,) = [line for line in self.ctl("preload").stdout.splitlines() if self.dir in line]
        self.assertRegex(line, rf"^{holder} +\d+ +[\d.]+ MB +30 min +{re.escape(sys.executable)} {re.escape(self.script)}$")
        answer = self.ctl("preload", "--end", str(holder))
        self.assertRegex(answer.stdout, r"^ended 1, with [\d.]+ MB$")
        self.assertEqual(self.holders(), [])
        again = self.ctl("preload", "--end", str(holder))
        self.assertEqual(again.returncode, 1)
        self.assertIn(f"process {holder} keeps nothing of yours", again.stderr)
        self.assert_not_resumed(self.run_preloaded(self.script))

    def test_it_holds_nothing_of_the_run(self):
        holder = self.keep(self.script)
        with open(f"/proc/{holder}/environ", "rb") as file:
            self.assertEqual(file.read(), b"")
        self.assertEqual(sorted(os.listdir(f"/proc/{holder}/fd")), ["0", "1", "2", str(FILE)])
        self.assertEqual(os.readlink(f"/proc/{holder}/fd/1"), "/dev/null")
        self.assertEqual(os.getsid(holder), holder)
        with open(f"/proc/{holder}/comm", encoding="ascii") as file:
            self.assertEqual(file.read(), "ddprun-kept\n")

    def test_it_ends_when_its_time_is_over(self):
        holder = self.keep(self.script)
        ends = os.pidfd_open(holder)
        self.addCleanup(os.close, ends)
        os.utime(f"/proc/{holder}/fd/{FILE}", (0, 0))
        os.kill(holder, signal.SIGUSR1)
        wait_until(lambda: not os.path.exists(f"/proc/{holder}/fd/{FILE}"), "the end of the holder")
        self.assert_not_resumed(self.run_preloaded(self.script))

    def test_a_run_that_uses_it_keeps_it_for_longer(self):
        holder = self.keep(self.script)
        file = f"/proc/{holder}/fd/{FILE}"
        os.utime(file, (os.stat(file).st_mtime - 1000,) * 2)
        before = os.stat(file).st_mtime
        self.assert_resumed(self.run_preloaded(self.script))
        self.assertGreater(os.stat(file).st_mtime, before + 900)

    def test_one_that_is_stopped_serves_as_ever(self):
        holder = self.keep(self.script)
        os.kill(holder, signal.SIGSTOP)
        self.assert_resumed(self.run_preloaded(self.script))
        self.ctl("preload", "--end", str(holder))
        self.assertEqual(self.holders(), [])

    def test_a_run_does_not_notice_the_death_of_the_holder(self):
        gate = self.gate()
        script = self.write("waits.py", preload_test.Faults.AGAIN)
        argv = ("--max-restarts", "1", script)
        gate.open()
        holder = self.keep(*argv)
        os.rmdir(self.path("here"))
        os.unlink(gate.path)
        second = ddprun_case.Gate(gate.path)
        job = self.start_preloaded(*argv)
        wait_until(lambda: os.path.exists(self.path("here")), job.text)
        os.kill(holder, signal.SIGKILL)
        second.open()
        self.finish(job)
        self.assert_resumed(job)
        self.assertEqual(re.findall("preloaded (True|False)", job.out()), ["True", "True"], job.text())
        self.assertEqual(self.holders(), [])

    def test_nothing_of_a_run_that_is_killed_whole_is_left(self):
        script = self.write("waits.py", "import os, signal; os.mkdir(os.environ['D'] + '/' + os.sys.argv[1]); signal.pause()")
        self.write("waits.py", "import os, signal, sys\nif sys.argv[1:]:\n    os.mkdir(os.environ['D'] + '/' + sys.argv[1])\n"
                               "    signal.pause()")
        holder = self.keep(script)
        for number, kinds in enumerate((("agent", "launcher"), ("agent",), ("launcher",), ("server", "agent"), ("server", "launcher"))):
            job = self.start_preloaded(script, f"here{number}")
            wait_until(lambda name=f"here{number}": os.path.exists(self.path(name)), job.text)
            victims = {"agent": job.agents()[0], "launcher": job, "server": self.server_of(job)}
            send_signal([victims[kind] for kind in kinds], signal.SIGKILL)
            job.wait()
            self.assert_nothing_left(job)
            self.assert_resumed(job)
        self.assertEqual(self.holders(), [holder])


class Strange(KeepCase):
    """What only looks like a holder, or holds what is damaged, costs nothing but a start as ever."""

    def setUp(self):
        super().setUp()
        self.script = self.write("here.py", HERE_SCRIPT)

    def read_kept(self):
        """The bytes that a holder has, which is ended."""
        holder = self.keep(self.script)
        with open(f"/proc/{holder}/fd/{FILE}", "rb") as file:
            data = bytearray(file.read())
        self.ctl("preload", "--end", str(holder))
        return data

    def hold(self, data, seals=SEALS, user=None):
        """A process that looks like a holder of these bytes."""

        def become():
            if user:
                os.setgid(user)
                os.setuid(user)
            file = os.memfd_create("ddprun-kept", os.MFD_ALLOW_SEALING)
            os.fchmod(file, 0o600)
            os.write(file, data)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
            os.dup2(file, FILE)

        text = "import ctypes, signal; ctypes.CDLL(None).prctl(15, b'ddprun-kept', 0, 0, 0); print(1, flush=True); signal.pause()"
        process = subprocess.Popen([sys.executable, "-c", text], preexec_fn=become, pass_fds=[FILE], stdout=subprocess.PIPE)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.addCleanup(process.stdout.close)
        process.stdout.readline()
        return process

    def test_a_process_that_cannot_go_on_is_thrown_away_and_the_run_starts_cold(self):
        data = self.read_kept()
        begin = struct.unpack_from("=Q", data, CONDITIONS_AT + 8)[0]
        struct.pack_into("=Q", data, begin + RIP_AT, 1)
        holder = self.hold(data)
        job = self.run_preloaded(self.script)
        self.assertIn("is started cold: the fork server has ended", job.err())
        self.assertIn("has kept is thrown away: the process that was to become it has failed", job.err())
        self.assertIn("preloaded False", job.out())
        self.assertEqual(holder.wait(), -signal.SIGKILL)

    def test_damaged_bytes_are_thrown_away(self):
        whole = self.read_kept()
        begin = struct.unpack_from("=Q", whole, CONDITIONS_AT + 8)[0]
        for data in (whole[:begin + 4096], whole[:begin] + b"x" * 100 + whole[begin + 100:], whole[:CONDITIONS_AT],
                     whole[:CONDITIONS_AT] + b"\xff" * 100, whole[:CONDITIONS_AT + 16] + b"?" * 1000):
            holder = self.hold(data)
            job = self.run_preloaded(self.script)
            self.assert_not_resumed(job)
            self.assert_preloaded(job)
            self.assertEqual(holder.wait(), -signal.SIGKILL)
            self.end_holders()

    def test_bytes_that_may_still_change_are_not_used(self):
        self.hold(self.read_kept(), fcntl.F_SEAL_SHRINK)
        self.assert_not_resumed(self.run_preloaded(self.script))

    def test_root_does_not_use_what_another_user_has_kept(self):
        if os.geteuid() != 0:
            self.skipTest("not root")
        data = self.read_kept()
        self.hold(data, user=65534)
        self.assert_not_resumed(self.run_preloaded(self.script))
        self.end_holders()
        self.hold(data)
        self.assert_resumed(self.run_preloaded(self.script))


def is_supported():
    return os.uname().machine == "x86_64" and hasattr(ctypes.CDLL(None), "memfd_create")


if __name__ == "__main__":
    if not is_supported():
        ddprun_case.skip_all("fork servers are kept on x86-64 only")
    ddprun_case.main()
