"""Signals whose handlers raise while the library, or a run, is waited for: no exception is lost, and no function counts as
done that did not run."""

import os
import signal
import subprocess
import sys
import textwrap
import unittest

import elastic_case
from ddprun_case import wait_until
from elastic_case import LIBRARY, PACKAGE, PATIENCE, DdprunCase, ElasticCase

# interrupt(name, signal) sends the signal once the main thread is in the library, called by the function of this name.
INTERRUPT = """
import threading
def waits_in(name):
    frame = sys._current_frames()[threading.main_thread().ident]
    return (frame.f_code.co_name == name, frame.f_lasti)
def interrupt(name, number=signal.SIGALRM, mark=None):
    def send():
        places = [None] * 5
        while len(set(places)) > 1 or not places[0] or not places[0][0]:
            places = places[1:] + [waits_in(name)]
            time.sleep(0.01)
        os.kill(os.getpid(), number)
        if mark:
            once(mark)
    threading.Thread(target=send, daemon=True).start()
def await_mark(name):
    while not os.path.exists(f"{D}/once.{name}"):
        time.sleep(0.01)
class Preempted(BaseException):
    pass
def handler(*_):
    raise Preempted("by a handler")
signal.signal(signal.SIGALRM, handler)
"""


class Interrupts(ElasticCase):
    def test_a_handlers_exception_is_not_lost_with_the_changes_of_a_step(self):
        job = self.ended(INTERRUPT, """
            import array
            weights = array.array("q", [0])
            job = Job().keep(weights=weights)
            def body(step):
                if step.number == 2 and once(f"began.{step.rank}"):
                    if step.rank == 0:
                        interrupt("_commit", mark="sent")
                    else:
                        await_mark("sent")
                def apply():
                    weights[0] += 1
                step.commit(apply)
                assert weights[0] == step.number + 1, (weights, step)
            try:
                job.run(4, body)
            except BaseException as error:
                print("raised", repr(error), weights[0], job.committed, flush=True)
                raise
            print("weights", weights[0], flush=True)
        """, nproc=2)
        self.assertEqual(self.said(job, "raised .*"), ["raised Preempted('by a handler') 2 2"], job.text())
        self.assertEqual(set(self.said(job, "weights .*")), {"weights 4"}, job.text())

    def test_what_does_not_run_to_its_end_has_failed(self):
        """A tracer that raises as a function is entered, as a debugger does that is told to quit."""
        done = subprocess.run([sys.executable, "-c", textwrap.dedent("""
            import ctypes, sys
            from ddprun import _callbacks
            ran = []
            takes = {"body": (1,), "between": (1,), "apply": (), "save": (None, None), "load": (None, 0),
                     "set": (b"", None, 0), "get": (b"", None, None), "add": (b"", 1, None), "erase": (b"",)}
            functions = _callbacks.Functions(**{name: lambda *_, name=name: ran.append(name) or 7 for name in takes})
            def call(name):
                others = takes[name]
                both = (*others, functions.user) if name in ("body", "between") else (functions.user, *others)
                return functions.of(name)(*both)
            assert [call(name) for name in takes] == [7] * 9 and ran == list(takes), ran
            def tracer(frame, *_):
                if frame.f_code.co_name == "enter":
                    raise KeyError("quit")
            sys.unraisablehook = lambda _: None
            for name in takes:
                sys.settrace(tracer)
                result = call(name)
                sys.settrace(None)
                assert result == _callbacks.NOT_ENDED, (name, result)
            assert len(ran) == 9, ran
            print("right")
        """)], env={**os.environ, "PYTHONPATH": PACKAGE, "DDPRUN_LIB": LIBRARY}, capture_output=True, text=True,
                              timeout=PATIENCE, check=False)
        self.assertIn("right", done.stdout, done.stderr)


class Launches(DdprunCase):
    def test_ctrl_c_gives_the_workers_their_time(self):
        """The worker saves what it has; its folder is there until it has."""
        module = self.path("jobs.py")
        with open(module, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent("""
                import os, signal, sys, time
                import ddprun
                def train(folder):
                    def save(*_):
                        signal.signal(signal.SIGINT, signal.SIG_IGN)
                        open(f"{folder}/saving", "w").close()
                        while not os.path.exists(f"{folder}/may_end"):
                            time.sleep(0.01)
                        found = [name for name in os.listdir(os.environ["TMPDIR"]) if name.startswith("ddprun-launch-")]
                        os.rename(f"{folder}/saving", f"{folder}/saved.{len(found)}")
                        os._exit(0)
                    signal.signal(signal.SIGINT, save)
                    open(f"{folder}/up", "w").close()
                    while True:
                        time.sleep(1)
                if __name__ == "__main__":
                    try:
                        ddprun.launch(train, (sys.argv[1],), nproc=1)
                    except KeyboardInterrupt:
                        print("interrupted", sorted(os.listdir(sys.argv[1])), flush=True)
                        raise SystemExit(7)
            """))
        os.mkdir(folder := self.path("folder"))
        os.mkdir(temporary := self.path("ours"))
        env = {**os.environ, "PYTHONPATH": PACKAGE, "DDPRUN_LIB": LIBRARY, "TMPDIR": temporary,
               "PATH": elastic_case.BIN + os.pathsep + os.environ["PATH"]}
        with subprocess.Popen([sys.executable, "-B", module, folder], env=env, stdout=subprocess.PIPE, text=True) as run:
            try:
                wait_until(lambda: os.path.exists(folder + "/up"), "the worker", PATIENCE)
                run.send_signal(signal.SIGINT)
                wait_until(lambda: os.path.exists(folder + "/saving"), "the worker's handler", PATIENCE)
                with self.assertRaises(subprocess.TimeoutExpired):
                    run.wait(1)  # It would have ended ddprun after 0.25 s.
                open(folder + "/may_end", "w", encoding="ascii").close()
                out = run.communicate(timeout=PATIENCE)[0]
            finally:
                run.kill()
        self.assertEqual(run.returncode, 7)
        self.assertIn("interrupted ['may_end', 'saved.1', 'up']", out)


if __name__ == "__main__":
    elastic_case.ddprun_case.main()
