"""Python's first module in workers of `ddprun --report`, --on-stall and --preload.

These flags put its folder on PYTHONPATH.

It watches PyTorch's training loop, if the program has one (ddprun_watch), is the fork server of the
workers (ddprun_preload), and then stands aside: the sitecustomize that it hides is loaded under its
own name, and processes that the worker starts do not find this one.
"""

import importlib.machinery
import importlib.util
import os
import sys

_CHANNEL = 3  # To the agent of a fork server: ddprun_preload/_channel.py.
_TEXT_MAX = 2000


def _step_aside():
    """Take our folder off the paths, and our variables out of the environment: return those."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    left = [path for path in named if path and os.path.abspath(path) != here]
    os.environ.pop("PYTHONPATH", None)
    if left:
        os.environ["PYTHONPATH"] = os.pathsep.join(left)
    watch = "WATCH", "WATCH_SOCKET", "WATCH_DUMP"
    preload = "PRELOAD", "PRELOAD_RANKS", "PRELOAD_LIST", "PRELOAD_LEARN", "PRELOAD_WHOLE"
    return {name: os.environ.pop("DDPRUN_" + name, "") for name in watch + preload}


def _load_hidden():
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _load(name):
    """Load a package beside this file; its folder is not on the program's path."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    spec = importlib.util.spec_from_file_location(
        name,
        os.path.join(folder, "__init__.py"),
        submodule_search_locations=[folder],
    )
    package = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    return package


def _watch(what, door, dump):
    try:
        _load("ddprun_watch").install(what, door, dump)
    except Exception as error:  # The program goes on: this Python may be older than ours.
        sys.modules.pop("ddprun_watch", None)
        if os.environ.get("LOCAL_RANK") == "0":
            folder = os.path.dirname(os.path.abspath(__file__))
            print(
                f"ddprun: warning: nothing is known of PyTorch's steps: {sys.executable} "
                f"(Python {sys.version.split()[0]}) cannot load {folder}/ddprun_watch: {error!r}",
                file=sys.stderr,
            )


def _take_notes(path, is_whole):
    """Note what the program imports, for its next fork server."""
    try:  # noqa: SIM105  # contextlib is not imported here: each worker would pay for it.
        _load("ddprun_preload").take_notes(path, bool(is_whole))
    except Exception:  # The program goes on.
        pass


def _serve(modules, of_ranks, path_of_list):
    """Be the fork server; return in workers only. The program must not run in the server itself."""
    why = "is too old: a fork server needs Python 3.8"
    try:
        if sys.version_info >= (3, 8):
            _load_hidden()
            return _load("ddprun_preload").serve(_CHANNEL, modules, of_ranks, path_of_list)
    except BaseException as error:
        why = "cannot be a fork server: " + repr(error)
    try:
        text = f"failed\0{sys.executable} (Python {sys.version.split()[0]}) {why}"
        os.write(_CHANNEL, text[:_TEXT_MAX].encode("utf-8", "replace") + b"\0")
    finally:
        os._exit(1)


_wanted = _step_aside()
_is_fork = bool(_wanted["PRELOAD"])
if _is_fork:
    _serve(_wanted["PRELOAD"], _wanted["PRELOAD_RANKS"], _wanted["PRELOAD_LIST"])
    _wanted = _step_aside()
if _wanted["WATCH"]:
    _watch(_wanted["WATCH"], _wanted["WATCH_SOCKET"], _wanted["WATCH_DUMP"])
if _wanted["PRELOAD_LEARN"]:
    _take_notes(_wanted["PRELOAD_LEARN"], _wanted["PRELOAD_WHOLE"])
if not _is_fork:
    _load_hidden()
