"""Notes what a worker imports, as it does: also one that is killed leaves the names.

The agent reads the notes: agent/workers/learned_names.h. Only modules of the interpreter's own
library and of site-packages are noted, as a program's own files change. Nothing is imported here
that Python has not imported by itself.
"""

from __future__ import annotations

import atexit
import os
import site
import sys
import time

TYPE_CHECKING = False  # As typing has it, which is not imported here.
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_NAMES_MAX = 20_000
_FOLLOWED_S = 300.0  # What is imported later belongs to no start.
_OWN = ("__main__", "sitecustomize", "usercustomize", "ddprun_watch", "ddprun_preload")

written = [0]  # Bytes of notes, which are no trace of the program (_guard.py).


def _folders() -> tuple[str, ...]:
    folders = [os.path.dirname(os.__file__), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return tuple(folder + os.sep for folder in folders if folder)


class Notes:
    """A finder that finds nothing: it is asked at each import, and notes the ones before."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._process = os.getpid()
        self._until = time.monotonic() + _FOLLOWED_S
        self._folders = _folders()
        self._environment = dict(os.environ)
        self._set: set[str] = set()  # Variables that have changed before an import.
        self._seen: set[str] = set()
        self._begun: list[str] = []  # Noted, and may yet fail.

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Note what has been imported by now, and what of the environment has changed."""
        self.note(reversed(sys.modules), looks="." not in name)
        return None

    def note_all(self) -> None:
        """Note what has been imported, in whichever order."""
        self.note(list(sys.modules)[::-1], stops=False)

    def note(self, names: Iterable[str], looks: bool = False, stops: bool = True) -> None:
        """Write the new ones among these names, the last first, and those that have failed.

        `looks`: and the variables that the program has changed.
        """
        if os.getpid() != self._process or len(self._seen) > _NAMES_MAX:
            return  # A fork of the program; or it makes modules without an end.
        if time.monotonic() > self._until:
            return
        try:
            lines = self._news(names, stops)
            if looks and not any(self._is_noted(name) for name in self._begun):
                lines += [f"={name}\n" for name in self._changes()]
            if lines:
                self._write("".join(lines).encode())
        except Exception:  # The program goes on.
            pass  # Of another thread's import at this moment; or a program's own kind of module.

    def _changes(self) -> list[str]:
        """Return variables that have another value than at the start, each once.

        Not asked while a library's module is being imported: what that sets, some only for the
        import of another one, as numpy does, is set in the fork server, too.
        """
        before, now = self._environment, dict(os.environ)
        if now == before:
            return []
        names = {*before, *now} - self._set
        changed = sorted(name for name in names if before.get(name) != now.get(name))
        self._set.update(changed)
        return changed

    def _news(self, names: Iterable[str], stops: bool) -> list[str]:
        new = []
        for name in names:
            if name not in self._seen:
                new.append(name)
            elif stops:
                break
        new.reverse()
        self._seen.update(new)
        lines = [f"{name}\n" for name in new if self._is_noted(name)]
        begun = [name for name in self._begun if _is_begun(name)]
        lines += [f"-{name}\n" for name in self._begun if name not in sys.modules]
        self._begun = begun + [name for name in new if _is_begun(name)]
        return lines

    def _is_noted(self, name: str) -> bool:
        spec, top = _spec_of(name), name.partition(".")[0]
        if spec is None or spec.name != name or top in _OWN:
            return False
        if top == "ddprun":  # Wherever it is: on PYTHONPATH it is no less a library.
            return True
        return isinstance(spec.origin, str) and spec.origin.startswith(self._folders)

    def _write(self, data: bytes) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            written[0] += os.write(file, data)
        finally:
            os.close(file)


def _spec_of(name: str) -> Any:
    """Without the module's own __getattribute__: that of a lazy module would import it."""
    try:
        return object.__getattribute__(sys.modules[name], "__dict__").get("__spec__")
    except (KeyError, AttributeError):
        return None


def _is_begun(name: str) -> bool:
    # What is preloaded has another mark there, see _guard.py.
    return getattr(_spec_of(name), "_initializing", False) is True


def take_notes(path: str, is_whole: bool) -> None:
    """Note imports at this path; if all are known already, only at the end."""
    if not hasattr(dict, "__reversed__"):
        return  # Python 3.7: the last import cannot be found at once.
    notes = Notes(path)
    if not is_whole:
        sys.meta_path.insert(0, notes)
    atexit.register(notes.note_all)
