"""Signals whose handlers raise while the library waits: no exception is lost, and no function counts as done that did not run."""

import os
import subprocess
import sys
import textwrap
import unittest

import elastic_case
from elastic_case import LIBRARY, PACKAGE, PATIENCE, ElasticCase

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


if __name__ == "__main__":
    elastic_case.ddprun_case.main()
