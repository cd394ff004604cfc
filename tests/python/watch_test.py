"""What --report and --on-stall bring into Python programs, without PyTorch: the phases of a loop, and a module that stands aside."""

import errno
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import types
import unittest
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../system"), os.path.join(HERE, "../../python/startup")]

import ddprun_case  # noqa: E402  pylint: disable=wrong-import-position
from ddprun_case import PATIENCE, DdprunCase  # noqa: E402  pylint: disable=wrong-import-position
from ddprun_watch._door import Door  # noqa: E402  pylint: disable=wrong-import-position
from ddprun_watch._finder import after_import  # noqa: E402  pylint: disable=wrong-import-position
from ddprun_watch._recorder import calls_by_group, place, record, switch_on  # noqa: E402  pylint: disable=wrong-import-position
from ddprun_watch._steps import BACKWARD, DATA, EXPOSED, FORWARD, OPTIMIZER, OUTSIDE, Steps  # noqa: E402  pylint: disable=wrong-import-position

STARTUP = os.path.abspath(os.path.join(HERE, "../../python/startup"))


class Recorder:
    def __init__(self):
        self.seen = []

    def enter(self, phase):
        self.seen.append(phase)

    def end_step(self, size):
        self.seen.append(f"step of {size}")


class Phases(unittest.TestCase):
    def setUp(self):
        self.recorder = Recorder()
        self.steps = Steps(self.recorder)
        self.steps.gradient_bytes = 8

    def saw(self, *wanted):
        self.assertEqual(self.recorder.seen, list(wanted))
        self.recorder.seen.clear()

    def one_pass(self):
        self.steps.begin_backward()
        self.steps.computed()
        self.steps.end_backward()

    def test_a_step_ends_as_the_optimizer_begins(self):
        self.steps.knows_forward = True
        self.steps.begin_data()
        self.steps.end_data()
        self.steps.begin_forward()
        self.one_pass()
        self.steps.begin_optimizer()
        self.steps.end_optimizer()
        self.saw(DATA, OUTSIDE, FORWARD, BACKWARD, EXPOSED, OUTSIDE, "step of 8", OPTIMIZER, OUTSIDE)

    def test_a_model_that_does_not_say_so_begins_its_forward_pass_with_the_data(self):
        self.steps.begin_data()
        self.steps.end_data()
        self.steps.begin_backward()
        self.saw(DATA, FORWARD, BACKWARD)

    def test_accumulated_passes_are_one_step(self):
        for _ in range(3):
            self.one_pass()
        self.saw(*3 * [BACKWARD, EXPOSED, OUTSIDE])
        for _ in range(2):  # The second optimizer has nothing new.
            self.steps.begin_optimizer()
            self.steps.end_optimizer()
        self.saw("step of 8", OPTIMIZER, OUTSIDE, OPTIMIZER, OUTSIDE)

    def test_a_pass_within_a_pass_is_a_part_of_it(self):
        self.assertTrue(self.steps.begin_backward())
        self.assertFalse(self.steps.begin_backward())
        self.steps.begin_forward()  # Computed once more.
        self.steps.end_backward()
        self.saw(BACKWARD)
        self.steps.end_backward()
        self.steps.computed()  # Too late.
        self.saw(OUTSIDE)

    def test_a_wait_interrupts_a_phase(self):
        self.steps.begin_optimizer()
        self.steps.begin_optimizer()  # A sharded one has another one within.
        before = self.steps.begin_wait()
        self.assertEqual(self.steps.phase, EXPOSED)
        self.steps.end_wait(before)
        self.steps.end_optimizer()
        self.steps.end_optimizer()
        self.saw(OPTIMIZER, EXPOSED, OPTIMIZER, OUTSIDE)

    def test_an_optimizer_that_failed_is_over_with_the_next_batch(self):
        self.steps.begin_optimizer()
        self.steps.begin_data()
        self.one_pass()
        self.steps.begin_optimizer()
        self.saw(OPTIMIZER, DATA, BACKWARD, EXPOSED, OUTSIDE, "step of 8", OPTIMIZER)


class FlightRecorder(unittest.TestCase):
    """What of torch's dump the agent gets."""

    @staticmethod
    def entry(number, group="0", **more):
        return {"collective_seq_id": number, "process_group": [group, "any"], "profiling_name": "gloo:all_reduce",
                "input_sizes": [[8, 2]], "input_dtypes": ["Float"], "is_p2p": False, "retired": True, "state": "scheduled", **more}

    def test_the_latest_calls_of_each_group(self):
        dump = {"entries": [self.entry(n) for n in range(1, 21)] + [
            self.entry(21, retired=False), self.entry(3, "7", profiling_name="nccl:broadcast", state="completed", retired=False),
            self.entry(9, is_p2p=True)]}
        whole, new, seven = calls_by_group([dump, {"version": "2.9"}], ["0", "5"])
        self.assertEqual(new, {"name": "5", "calls": []})
        self.assertEqual([call["number"] for call in whole["calls"]], list(range(14, 22)))
        self.assertEqual(whole["calls"][-1], {"number": 21, "op": "all_reduce", "of": "[8, 2] Float", "open": True})
        self.assertFalse(any(call["open"] for call in whole["calls"][:-1]))
        self.assertEqual(seven, {"name": "7", "calls": [{"number": 3, "op": "broadcast", "of": "[8, 2] Float", "open": False}]})

    def test_the_users_own_line(self):
        torchs = ("/venv/lib/python3.11/site-packages/torch/distributed/c10d.py", 7, "all_reduce")
        standard = (os.path.dirname(os.__file__) + "/threading.py", 9, "wait")
        self.assertEqual(place([("/a/main.py", 3, "<module>"), ("/a/train.py", 27, "step"), torchs, standard]), "train.py:27 in step")
        self.assertEqual(place([("/a/main.py", 3, "<module>"), torchs]), "main.py:3")
        self.assertEqual(place([standard]), "threading.py:9 in wait")
        self.assertEqual(place([]), "")

    def test_what_the_user_has_decided_about_the_recorder_stays(self):
        class Newest:
            _dump_fr_trace = None
        names = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")
        for given, wanted in (({}, ("2000", None, "/logs/0/nccl_trace_rank_")),
                              ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "5"}, (None, "5", "/logs/0/nccl_trace_rank_")),
                              ({"TORCH_FR_BUFFER_SIZE": "0", "TORCH_FR_DUMP_TEMP_FILE": "/x"}, ("0", None, "/x"))):
            with unittest.mock.patch.dict(os.environ, given, clear=True):
                switch_on(Newest, "/logs/0/flight_recorder.json")
                self.assertEqual(tuple(map(os.environ.get, names)), wanted)


class Finder(DdprunCase):
    def test_a_module_may_be_looked_for_before_it_is_imported(self):
        name = f"module_of_{os.getpid()}"
        with open(self.path(name + ".py"), "w", encoding="utf-8") as file:
            file.write("HERE = 1\n")
        called = []
        with unittest.mock.patch.object(sys, "path", [self.dir, *sys.path]):
            after_import(name, lambda: called.append(sys.modules[name].HERE))
            for _ in range(2):  # As libraries do to know what is installed.
                self.assertIsNotNone(importlib.util.find_spec(name))
            self.assertEqual(called, [])
            importlib.import_module(name)
            self.assertEqual(called, [1])
            importlib.reload(sys.modules.pop(name) and importlib.import_module(name))
        self.assertEqual(called, [1])

    def test_who_says_a_line_is_answered_about_handlers_and_who_says_nothing_about_the_rank(self):
        def fails():
            raise RuntimeError("no folder")

        door = Door(self.path("door"), lambda: {"where": "here"}, fails)
        self.addCleanup(door.close)
        for line, answer in ((b"", {"where": "here"}), (b"debug\n", "RuntimeError('no folder')"), (b"", {"where": "here"})):
            with socket.socket(socket.AF_UNIX) as visitor:
                visitor.settimeout(PATIENCE)
                visitor.connect(self.path("door"))
                visitor.sendall(line)
                if not line:
                    visitor.shutdown(socket.SHUT_WR)
                said = json.loads(visitor.recv(4096))
                self.assertEqual(said.get("error", said), answer)

    def test_a_forked_child_leaves_torchs_server_to_its_parent(self):
        # As torch's own: freed in a child, it ends what the parent shares with it.
        code = """
            import os, sys, types
            sys.path.insert(0, sys.argv[2])  # On PYTHONPATH its sitecustomize would stand aside with it.
            from ddprun_watch._debug import Handlers
            class Server:
                def __init__(self, path):
                    self.file = open(sys.argv[1], "a", buffering=1)
                def shutdown(self):
                    self.file.write("shut down\\n")
                def __del__(self):
                    self.file.write("freed\\n")
            c10d = types.SimpleNamespace(_WorkerServer=Server, _get_handler_names=lambda: ["ping"])
            torch = types.SimpleNamespace(_C=types.SimpleNamespace(_distributed_c10d=c10d), __version__="2.15")
            handlers = Handlers(torch, sys.argv[1] + ".torch")
            assert handlers.describe() == {"socket": sys.argv[1] + ".torch", "handlers": ["ping"]}
            if (child := os.fork()) == 0:
                del handlers
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert open(sys.argv[1]).read() == "", open(sys.argv[1]).read()
            handlers.close()
            assert open(sys.argv[1]).read() == "shut down\\nfreed\\n", open(sys.argv[1]).read()
        """
        done = subprocess.run([sys.executable, "-B", "-c", textwrap.dedent(code), self.path("said"), STARTUP],
                              capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_agent_is_answered_after_there_was_no_descriptor_for_it(self):
        door = Door(self.path("door"), lambda: {"where": "here"})
        self.addCleanup(door.close)
        listener, failures = door._socket, [OSError(errno.EMFILE, "Too many open files")]

        def accept():
            connection = listener.accept()
            if not failures:
                return connection
            connection[0].close()
            raise failures.pop()

        door._socket = types.SimpleNamespace(accept=accept, shutdown=listener.shutdown, close=listener.close)
        for answer in (b'{"where": "here"}', b"", b'{"where": "here"}'):  # The first is accepted as before.
            with socket.socket(socket.AF_UNIX) as visitor:
                visitor.settimeout(PATIENCE)
                visitor.connect(self.path("door"))
                visitor.shutdown(socket.SHUT_WR)
                self.assertEqual(visitor.recv(4096), answer)

    def test_a_dump_that_cannot_be_written_costs_the_agent_nothing(self):
        found = record(types.SimpleNamespace(_C=types.SimpleNamespace(), __version__="0"), self.path("no/dump"))
        self.assertRegex(found["where"], r"^\w+\.py:\d+ in ")
        self.assertEqual(found["groups"], [])


class StandsAside(DdprunCase):
    """A program that never imports torch, under the program itself."""

    def run_worker(self, code, *flags, program=ddprun_case.DDPRUN, **more):
        script = self.path("script.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(code))
        env = {**ddprun_case.clean_environment(), "PYTHON_EXEC": sys.executable, "PYTHONDONTWRITEBYTECODE": "1", **more}
        done = subprocess.run([program, *flags, script], env=env, capture_output=True, text=True,
                              timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    HIDDEN = """
        import os, sys, subprocess
        import sitecustomize
        assert sitecustomize.THEIRS == "theirs"
        assert os.environ["PYTHONPATH"] == os.environ["THEIRS"], os.environ["PYTHONPATH"]
        assert not any("DDPRUN_WATCH" in name for name in os.environ)
        child = "import os, sys; assert 'ddprun_watch' not in sys.modules and os.environ['PYTHONPATH'] == os.environ['THEIRS']"
        subprocess.run([sys.executable, "-c", child], check=True)
        assert "torch" not in sys.modules and ("ddprun_watch" in sys.modules) == bool(os.environ.get("WATCHED"))
        assert "ddprun" not in sys.modules  # The package is the program's own, of whatever version.
        with open("/proc/self/maps", encoding="utf-8") as maps:
            assert "libddprun" not in maps.read()
        print("right")
    """

    def theirs(self):
        folder = self.path("theirs")
        os.mkdir(folder)
        with open(folder + "/sitecustomize.py", "w", encoding="utf-8") as file:
            file.write("THEIRS = 'theirs'\n")
        return {"PYTHONPATH": folder, "THEIRS": folder}

    def test_their_sitecustomize_is_loaded_and_their_path_is_restored(self):
        theirs = self.theirs()
        for flags in (["--report"], ["--on-stall", "log"], ["--report-html", self.path("page.html")]):
            self.assertIn("right", self.run_worker(self.HIDDEN, *flags, **theirs, WATCHED="1").stdout)

    def test_without_a_flag_nothing_is_there(self):
        theirs = self.theirs()
        self.assertIn("right", self.run_worker(self.HIDDEN, **theirs).stdout)
        self.assertIn("right", self.run_worker(self.HIDDEN, "--on-stall", "off", **theirs).stdout)
        self.run_worker("import sys; assert 'ddprun_watch' not in sys.modules", "--report", DDPRUN_WATCH="0", **theirs)

    def test_a_python_that_cannot_load_the_watch_is_named(self):
        shutil.copytree(STARTUP, self.path("startup"), ignore=shutil.ignore_patterns("__pycache__"))
        with open(self.path("startup/ddprun_watch/_finder.py"), "w", encoding="utf-8") as file:
            file.write("this is of a newer Python\n")
        code = "import sys; assert 'ddprun_watch' not in sys.modules; print('right')"
        done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False,
                              env={**os.environ, "PYTHONPATH": self.path("startup"), "DDPRUN_WATCH": "times", "LOCAL_RANK": "0"})
        self.assertEqual(done.stdout, "right\n", done.stderr)
        self.assertRegex(done.stderr, r"nothing is known of PyTorch's steps: \S+ \(Python 3[.\d]+\) cannot load \S+/ddprun_watch: SyntaxError")

    def in_an_environment(self, *names):
        """ddprun in a folder of the shape of a virtual environment into which its wheel was installed: bin/python is the interpreter."""
        home = self.path("env")
        os.makedirs(home + "/bin")
        os.makedirs(home + "/libexec/ddprun")
        os.symlink(sys.executable, home + "/bin/python")
        shutil.copy(ddprun_case.DDPRUN, home + "/bin/ddprun")
        for name in names:
            os.symlink(os.path.join(ddprun_case.BIN, name), os.path.join(home, "libexec/ddprun", name))
        return home + "/bin/ddprun"

    def test_in_a_virtual_environment_python_is_the_interpreter_and_the_watch_is_found(self):
        program = self.in_an_environment("python", "libddprun-watch.so")
        code = """
            import os, sys
            assert "ddprun_watch" in sys.modules and os.environ.get("PYTHONPATH") == os.environ.get("THEIRS"), os.environ["PYTHONPATH"]
            from ddprun_watch import _timer
            _timer.Timer().close()  # The library is there.
        """
        for flags in (["--report"], ["--on-stall", "log"], ["--report-html", self.path("page.html")]):
            for theirs in ({}, {"PYTHONPATH": "/nowhere", "THEIRS": "/nowhere"}):
                self.run_worker(code, *flags, program=program, **theirs)

    def test_without_the_watch_nothing_is_put_on_pythons_path(self):
        program = self.in_an_environment()
        self.run_worker("import os; assert 'PYTHONPATH' not in os.environ, os.environ['PYTHONPATH']", "--report", program=program)

    def test_a_library_that_is_missing_ends_no_program(self):
        done = self.run_worker("""
            from ddprun_watch import _patches, _timer
            _timer.LIBRARY = "/nowhere.so"
            for _ in range(2):  # As init_process_group and each step do.
                _patches._watch.is_alone = True
                _patches._watch.start()
                _patches._watch.join()
                assert _patches._watch.mine() is None
            _patches._watch.close()
        """, "--report")
        self.assertEqual(done.stderr.count("ddprun: warning: no times of steps: /nowhere.so does not exist"), 1, done.stderr)

    def test_a_loader_that_fails_says_what_it_said(self):
        self.run_worker("""
            import sys
            try:
                import torch
            except RuntimeError as error:
                assert "half a torch" in str(error)
            else:
                raise AssertionError("no error")
            assert "torch" not in sys.modules
        """, "--report", PYTHONPATH=self.broken_torch())

    def broken_torch(self):
        folder = self.path("broken")
        os.mkdir(folder)
        with open(folder + "/torch.py", "w", encoding="utf-8") as file:
            file.write("raise RuntimeError('half a torch')\n")
        return folder


if __name__ == "__main__":
    ddprun_case.main()
