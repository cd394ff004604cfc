"""Whether a program would import its preloaded modules from where the fork server has them from.

A program may change sys.path, sys.meta_path or its folder before it imports a module. The module is
in sys.modules already, so the import looks nowhere. But Python asks whether it is still being
initialized, by `_initializing` of its spec: there each preloaded module has a list that is not
empty until it is used, so that the first import of it, and no other, comes here. If the ways to
modules are others by then, all modules that were not used yet are looked for again. If one is
elsewhere, the worker begins anew without the fork server, in the same process, as long as it has
left no traces; else a line names the module.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import signal
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import _kernel, _modules, _notes
from ._channel import Request
from ._command import Command
from ._learned import Learned

_importlib: Any = importlib.import_module("_frozen_importlib")

_NAMESPACE = "a namespace package"
_PROBE = "ddprun_preload_probe"
_OWN_DESCRIPTORS = range(4)  # Standard input, output and error, and the link.
_ENDS_OF_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # It ignores them as it starts.

if TYPE_CHECKING:
    Place = tuple[str, str]  # Where a module was found, and by what kind of loader.


class _Unused(list):  # type: ignore[type-arg]
    """The name under which a preloaded module, or the package that it is in, is looked for.

    Empty once the program has imported one of them.
    """


_flags: dict[str, _Unused] = {}
_places: dict[str, Place] = {}
_originals = (_importlib._lock_unlock_module, _importlib._find_spec)


def _spec_of(name: str) -> Any:
    """Without the module's own __getattribute__: that of a lazy module would import it."""
    try:
        return object.__getattribute__(sys.modules[name], "__dict__").get("__spec__")
    except (KeyError, AttributeError):
        return None


def _is_namespace(spec: Any) -> bool:
    locations = getattr(spec, "submodule_search_locations", None)
    return locations is not None and not isinstance(getattr(spec, "origin", None), str)


def _looked_for(name: str) -> str:
    """Return the part of a name that decides where the module comes from."""
    parts = name.split(".")
    for count in range(1, len(parts)):
        package = ".".join(parts[:count])
        if not _is_namespace(_spec_of(package)):
            return package
    return name


def _place_of(spec: Any) -> Place | None:
    if spec is None:
        return None
    loader = spec.loader if isinstance(spec.loader, type) else type(spec.loader)
    return (_NAMESPACE, "") if _is_namespace(spec) else (str(spec.origin), loader.__name__)


def _finders() -> list[Any]:
    return [f for f in sys.meta_path if not type(f).__module__.startswith("ddprun_")]


def _find(name: str) -> Place | None:
    """Return where an import that has to look would find this module now."""
    parent = name.rpartition(".")[0]
    path = list(sys.modules[parent].__path__) if parent else None
    for finder in _finders():
        find = getattr(finder, "find_spec", None)
        try:
            spec = find(name, path, None) if find else None
        except Exception:  # As little as it finds.
            continue
        if spec is not None:
            return _place_of(spec)
    return None


def mark() -> None:
    """In the fork server: have the first import of each preloaded module noticed."""
    is_checked = _modules.top_level()
    for name in list(sys.modules):
        spec, looked_for = _spec_of(name), _looked_for(name)
        if spec is None or name.partition(".")[0] not in is_checked:
            continue
        if looked_for not in _flags:
            place = _place_of(_spec_of(looked_for))
            if place is None or _find(looked_for) != place:
                continue  # It was put there by other means than an import.
            _flags[looked_for], _places[looked_for] = _Unused([looked_for]), place
        with contextlib.suppress(AttributeError):
            spec._initializing = _flags[looked_for]


def works() -> bool:
    """Whether this Python does ask, at an import and at that of a submodule."""
    seen: list[bool] = []
    for name in (_PROBE, _PROBE + ".sub"):
        module, flag = ModuleType(_PROBE), _Unused([_PROBE])
        module.__path__ = []
        module.__spec__ = ModuleSpec(_PROBE, None)
        module.__spec__._initializing = flag  # type: ignore[attr-defined]
        sys.modules[_PROBE] = module
        _install(lambda flag: flag.clear())
        try:
            with contextlib.suppress(ImportError):
                __import__(name)
        finally:
            _importlib._lock_unlock_module, _importlib._find_spec = _originals
            del sys.modules[_PROBE]
        seen.append(not flag)
    return all(seen)


def _install(first_use: Any) -> None:
    """Have the flag of a module given to this function when the module is first imported."""
    lock_unlock, find_spec = _originals

    def look_at(name: str) -> bool:
        flag = getattr(_spec_of(name), "_initializing", None)
        if type(flag) is not _Unused:
            return False
        if flag:
            first_use(flag)
        return True

    def _lock_unlock_module(name: str) -> None:
        if not look_at(name):
            lock_unlock(name)

    def _find_spec(name: str, path: Any, target: Any = None) -> Any:
        parent = name.rpartition(".")[0]
        if parent:  # Python looks for it in its package without an import of that.
            look_at(parent)
        return find_spec(name, path, target)

    _importlib._lock_unlock_module = _lock_unlock_module
    _importlib._find_spec = _find_spec


def _place_in_input() -> int:
    """Return how much of a file on standard input was read; -1: it is none."""
    try:
        return os.lseek(0, 0, os.SEEK_CUR)
    except OSError:
        return -1


class Guard:
    """In a worker: what has to hold for its modules to be those of a cold start."""

    def __init__(self, request: Request, command: Command, folder: str, learned: Learned | None):
        self._argv, self._environment = request.argv, dict(request.environment)
        self._folder, self._learned = folder, learned
        self._process, self._input = os.getpid(), _place_in_input()
        self._path = list(sys.path)
        self._first: tuple[str, ...] = ("", command.first_path())  # The interpreter adds one.
        self._finders, self._hooks = _finders(), list(sys.path_hooks)
        self._cwd = folder

    def install(self) -> None:
        _install(self._first_use)

    def _first_use(self, flag: _Unused) -> None:
        name = flag[0]
        try:
            if self._has_changed():
                self._check()
        except Exception as error:  # The program goes on.
            self._write(f"cannot tell where {name} comes from: {error!r}")
        flag.clear()

    def _has_changed(self) -> bool:
        """Whether the ways to modules are others than at the last look."""
        path, cwd = sys.path, self._cwd
        is_same = path == self._path or (path[1:] == self._path and path[0] in self._first)
        if not all(os.path.isabs(str(entry)) for entry in path[1:]) or "" in path[:1]:
            cwd = os.getcwd()
        if is_same and cwd == self._cwd:
            is_same = _finders() == self._finders and sys.path_hooks == self._hooks
            if is_same:
                return False
        self._path, self._first, self._cwd = list(path), (), cwd
        self._finders, self._hooks = _finders(), list(sys.path_hooks)
        return True

    def _check(self) -> None:
        caches = set(sys.path_importer_cache)
        elsewhere = {}
        for name, flag in list(_flags.items()):
            if flag:
                found = _find(name)
                if found != _places[name]:
                    elsewhere[name] = found
        for entry in set(sys.path_importer_cache) - caches:
            # The program may yet write modules there.
            del sys.path_importer_cache[entry]
        if elsewhere:
            self._mend(elsewhere)

    def _mend(self, elsewhere: dict[str, Place | None]) -> None:
        traces = self._traces()
        if self._learned is not None and os.getpid() == self._process:
            for each in elsewhere:
                self._learned.forbid(each)
        if not traces:
            traces = self._begin_anew()
        name, found = next(iter(elsewhere.items()))
        others = f" and {len(elsewhere) - 1} other modules" if len(elsewhere) > 1 else ""
        now = found[0] if found else "nowhere"
        is_noted = self._learned is not None
        remedy = "later starts do not preload it" if is_noted else "leave it out of --preload"
        self._write(
            f"rank {os.environ.get('RANK', '?')} has {name}{others} from {_places[name][0]}, and "
            f"would find it at {now} without --preload, as the program has changed where modules "
            f"are looked for; this worker cannot begin anew, as it {traces}; {remedy}, or use "
            f"--preload off"
        )
        _flags.clear()

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"ddprun: preload: {text}\n".encode(errors="replace"))

    def _traces(self) -> str:
        """Return what the program has done that must not happen twice; empty: nothing."""
        if os.getpid() != self._process:
            return "is a process that the program has forked"
        if _place_in_input() != self._input:
            return "has read from its input"
        if len(os.listdir("/proc/self/task")) > 1:
            return "has threads"
        if resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt:
            return "has started a process"
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return "has started a process"
        for descriptor in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # The descriptor of the folder that is read here.
                if int(descriptor) not in _OWN_DESCRIPTORS:
                    return "has opened " + os.readlink(f"/proc/self/fd/{descriptor}")
        return self._written()

    def _written(self) -> str:
        try:
            count = _kernel.written_bytes()
        except (OSError, KeyError, ValueError) as error:
            return f"may have written ({error!r})"
        return "has written output or files" if count > _notes.written[0] else ""

    def _begin_anew(self) -> str:
        """Become a worker that was started cold. Return why that cannot be."""
        try:
            os.chdir(self._folder)
            for number in _ENDS_OF_PYTHON:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            os.execve(self._argv[0], self._argv, self._environment)
        except (OSError, ValueError) as error:
            return f"cannot execute {os.fsdecode(self._argv[0])}: {error!r}"
        return ""
