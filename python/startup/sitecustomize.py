"""Python's first module in workers of `ddprun --report`, --on-stall and --preload.

These flags put its folder on PYTHONPATH.

It watches PyTorch's training loop, if the program has one (ddprun_watch), is the fork server of the
workers (ddprun_preload), and then stands aside: the sitecustomize that it hides is loaded under its
own name, and processes that the worker starts do not find this one.
"""

import atexit
import importlib.machinery
import importlib.util
import os
import sys


def _step_aside():
    """Take our folder off the paths, and our variables out of the environment: return those."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    left = [path for path in named if path and os.path.abspath(path) != here]
    os.environ.pop("PYTHONPATH", None)
    if left:
        os.environ["PYTHONPATH"] = os.pathsep.join(left)
    names = "WATCH", "WATCH_SOCKET", "WATCH_DUMP", "PRELOAD", "PRELOAD_RANKS", "PRELOAD_LEARN"
    return {name: os.environ.pop("DDPRUN_" + name, "") for name in names}


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


def _learn():
    """Keep at the end which modules the program has imported, for its next run's fork server."""
    with open("/proc/self/cmdline", "rb") as file:
        argv = file.read().split(b"\0")[:-1]
    pid = os.getpid()

    def note():
        if os.getpid() != pid:  # A fork, which ends as if it were the program.
            return
        names = list(sys.modules)
        try:  # noqa: SIM105  # contextlib is not imported here: each worker would pay for it.
            _load("ddprun_preload").learn(argv, names)
        except Exception:  # Nothing of this may change how the program ends.
            pass

    atexit.register(note)


def _serve(modules, of_ranks):
    """Be the fork server; return in workers only. The program must not run in the server itself."""
    try:
        _load_hidden()
        _load("ddprun_preload").serve(3, modules, of_ranks)
    except BaseException:
        os._exit(1)


_wanted = _step_aside()
_is_fork = bool(_wanted["PRELOAD"])
if _is_fork:
    _serve(_wanted["PRELOAD"], _wanted["PRELOAD_RANKS"])
    _wanted = _step_aside()
if _wanted["WATCH"]:
    _watch(_wanted["WATCH"], _wanted["WATCH_SOCKET"], _wanted["WATCH_DUMP"])
if _wanted["PRELOAD_LEARN"]:
    _learn()
if not _is_fork:
    _load_hidden()
