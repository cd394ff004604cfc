"""What --report and --on-stall bring into Python programs, without PyTorch: the phases of a loop, and a module that stands aside."""

import os
import subprocess
import sys
import textwrap
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../system"), os.path.join(HERE, "../../python")]

import ddprun_case  # noqa: E402  pylint: disable=wrong-import-position
from ddprun_case import PATIENCE, DdprunCase  # noqa: E402  pylint: disable=wrong-import-position
from ddprun._watch._steps import BACKWARD, DATA, EXPOSED, FORWARD, OPTIMIZER, OUTSIDE, Steps  # noqa: E402  pylint: disable=wrong-import-position

PACKAGE = os.path.abspath(os.path.join(HERE, "../../python"))


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


class StandsAside(DdprunCase):
    """A program that never imports torch, under the program itself."""

    def run_worker(self, code, *flags, **more):
        script = self.path("script.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(code))
        env = {**ddprun_case.clean_environment(), "PYTHON_EXEC": sys.executable, "PYTHONDONTWRITEBYTECODE": "1", **more}
        done = subprocess.run([ddprun_case.DDPRUN, *flags, script], env=env, capture_output=True, text=True,
                              timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    HIDDEN = """
        import os, sys, subprocess
        import sitecustomize
        assert sitecustomize.THEIRS == "theirs"
        assert os.environ["PYTHONPATH"] == os.environ["THEIRS"], os.environ["PYTHONPATH"]
        assert not any("DDPRUN_WATCH" in name for name in os.environ)
        child = "import os, sys; assert 'ddprun' not in sys.modules and os.environ['PYTHONPATH'] == os.environ['THEIRS']"
        subprocess.run([sys.executable, "-c", child], check=True)
        assert "torch" not in sys.modules and ("ddprun" in sys.modules) == bool(os.environ.get("WATCHED"))
        with open("/proc/self/maps", encoding="utf-8") as maps:
            assert "libddprun" not in maps.read()
        print("right")
    """

    def theirs(self):
        folder = self.path("theirs")
        os.mkdir(folder)
        with open(folder + "/sitecustomize.py", "w", encoding="utf-8") as file:
            file.write("THEIRS = 'theirs'\n")
        path = folder + os.pathsep + PACKAGE
        return {"PYTHONPATH": path, "THEIRS": path}

    def test_their_sitecustomize_is_loaded_and_their_path_is_restored(self):
        theirs = self.theirs()
        for flags in (["--report"], ["--on-stall", "log"], ["--report-html", self.path("page.html")]):
            self.assertIn("right", self.run_worker(self.HIDDEN, *flags, **theirs, WATCHED="1").stdout)

    def test_without_a_flag_nothing_is_there(self):
        theirs = self.theirs()
        self.assertIn("right", self.run_worker(self.HIDDEN, **theirs).stdout)
        self.assertIn("right", self.run_worker(self.HIDDEN, "--on-stall", "off", **theirs).stdout)
        self.run_worker("import sys; assert 'ddprun' not in sys.modules", "--report", DDPRUN_WATCH="0", **theirs)

    def test_a_python_without_the_package_is_named(self):
        code = "import os, sys; assert 'ddprun' not in sys.modules and os.environ.get('PYTHONPATH') == os.environ.get('THEIRS')"
        folder = self.broken_torch()
        done = self.run_worker(code, "--report", PYTHONPATH=folder, THEIRS=folder)
        self.assertIn(f"{sys.executable} has no package ddprun", done.stderr)
        self.run_worker(code, "--report")

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
        """, "--report", PYTHONPATH=self.broken_torch() + os.pathsep + PACKAGE)

    def broken_torch(self):
        folder = self.path("broken")
        os.mkdir(folder)
        with open(folder + "/torch.py", "w", encoding="utf-8") as file:
            file.write("raise RuntimeError('half a torch')\n")
        return folder


if __name__ == "__main__":
    ddprun_case.main()
