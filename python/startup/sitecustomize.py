"""Python's first module in workers of `ddprun --report` and --on-stall, which put it on PYTHONPATH.

It watches PyTorch's training loop, if the program has one (ddprun_watch), and then stands aside:
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
    """Load the package beside this file; its folder is not on the program's path."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ddprun_watch")
    try:
        spec = importlib.util.spec_from_file_location(
            "ddprun_watch",
            os.path.join(folder, "__init__.py"),
            submodule_search_locations=[folder],
        )
        watch = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(watch)
        watch.install(what, door, dump)
    except Exception as error:  # The program goes on: this Python may be older than ours.
        sys.modules.pop("ddprun_watch", None)
        if os.environ.get("LOCAL_RANK") == "0":
            print(
                f"ddprun: warning: nothing is known of PyTorch's steps: {sys.executable} "
                f"(Python {sys.version.split()[0]}) cannot load {folder}: {error!r}",
                file=sys.stderr,
            )


_what, _door, _dump = _step_aside()
if _what:
    _watch(_what, _door, _dump)
_load_hidden()
