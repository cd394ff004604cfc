"""Python's first module in workers of `ddprun --report` and --on-stall, which put it on PYTHONPATH.

It watches PyTorch's training loop, if the program has one (ddprun/_watch), and then stands aside:
the sitecustomize that it hides is loaded under its own name, and processes that the worker starts
do not find this one.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _step_aside():
    """Take our folder off the paths; return what was to be watched."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    left = [path for path in named if path and os.path.abspath(path) != here]
    os.environ.pop("PYTHONPATH", None)
    if left:
        os.environ["PYTHONPATH"] = os.pathsep.join(left)
    names = "DDPRUN_WATCH", "DDPRUN_WATCH_SOCKET", "DDPRUN_WATCH_DUMP"
    return [os.environ.pop(name, "") for name in names]


def _load_hidden():
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _watch(what, door, dump):
    try:
        import ddprun._watch as watch
    except ImportError:
        if os.environ.get("LOCAL_RANK") == "0" and importlib.util.find_spec("torch") is not None:
            print(
                f"ddprun: warning: {sys.executable} has no package ddprun of this version: nothing "
                "is known of PyTorch's steps; install ddprun's wheel there",
                file=sys.stderr,
            )
        return
    watch.install(what, door, dump)


_what, _door, _dump = _step_aside()
if _what:
    _watch(_what, _door, _dump)
_load_hidden()
