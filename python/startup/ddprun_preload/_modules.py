"""Which modules are imported before the fork, and their import."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Collection, ItemsView, Iterator
from typing import Any

from . import _source
from ._command import Command
from ._learned import Learned

# Imported by every Python before it looks at the program's folder.
_OF_PYTHON = frozenset(
    (
        *("sys", "builtins", "_imp", "_thread", "_warnings", "_weakref", "_io", "marshal", "posix"),
        *("_frozen_importlib", "_frozen_importlib_external", "time", "zipimport", "_codecs"),
        *("codecs", "encodings", "_signal", "_abc", "abc", "io", "__main__", "_stat", "stat"),
        *("_collections_abc", "genericpath", "posixpath", "os", "_sitebuiltins", "site"),
        *("sitecustomize", "usercustomize", "ddprun_preload"),
    )
)
_SHOWN_MAX = 8
_SLOW_S = 0.1
_SLOW_SHARE = 5  # A package that takes such a part of the time is named.

failed: list[str] = []  # Names that could not be imported.
seconds: dict[str, float] = {}  # Of the imports of each top-level name, with what they import.
blamed: list[str] = []  # A name and why it must not be imported before the fork, or empty.


def names_for(wanted: str, command: Command, learned: Learned) -> tuple[list[str], str]:
    """Return what to import; or nothing, and why: no reason, if nothing is known of the program."""
    if wanted != "auto":
        return wanted.split(","), ""
    variable, where = _source.read(command.source())
    if variable:
        return [], f"{where} sets {variable}, which modules may read when they are imported"
    return learned.names(), ""


def set_by_program(learned: Learned, changed: Collection[bytes]) -> str:
    """Return a variable that the program sets before it imports, so that modules may read it.

    Modules that set variables themselves have done so here, too.
    """
    for name in learned.set_before():
        if os.fsencode(name) not in changed and _source.is_read_early(name):
            return name
    return ""


class _Watched(type(os.environ)):  # type: ignore[misc]
    """os.environ while modules are imported: notes the first name of a rank's that is read."""

    of_ranks: tuple[str, ...] = ()
    read = ""

    def __getitem__(self, key: str) -> str:
        cls = type(self)
        if not cls.read and isinstance(key, str) and _is_of_ranks(key, cls.of_ranks):
            cls.read = key
        return str(super().__getitem__(key))

    def items(self) -> ItemsView[str, str]:
        """Return all, for those who look for a name of their own: tqdm does. Not a read of each."""
        plain = {self.decodekey(key): self.decodevalue(self._data[key]) for key in self._data}
        return plain.items()


def _is_of_ranks(name: str, patterns: tuple[str, ...]) -> bool:
    return any(
        name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1]))
        for pattern in patterns
    )


def import_all(names: list[str], dropped: list[str], of_ranks: list[str]) -> Iterator[str]:
    """Import one name after the other; yield each that was new. Stops at one to be blamed."""
    environ: Any = os.environ
    plain = type(environ)
    _Watched.of_ranks = tuple(of_ranks)
    environ.__class__ = _Watched
    try:
        for name in names:
            if name in sys.modules or any(name == d or name.startswith(d + ".") for d in dropped):
                continue
            began = time.monotonic()
            is_whole = _import(name)
            top = name.partition(".")[0]
            seconds[top] = seconds.get(top, 0.0) + time.monotonic() - began
            if _Watched.read:
                blamed[:] = name, f"reads {_Watched.read} when it is imported"
                return
            if not is_whole:
                return
            if name in sys.modules:
                yield name
    finally:
        environ.__class__ = plain


def _import(name: str) -> bool:
    """Return whether nothing is left of it if it failed."""
    before = set(sys.modules)
    try:
        importlib.import_module(name)
    except BaseException as error:
        failed.append(name)
        if set(sys.modules) - before and not _is_absent(name, error):
            blamed[:] = name, f"cannot be imported: {error!r}"[:200]
            return False
    return True


def _is_absent(name: str, error: BaseException) -> bool:
    """Whether there is just no such module: its packages may stay."""
    return isinstance(error, ModuleNotFoundError) and error.name == name


def top_level() -> set[str]:
    """Return the names whose modules a program may expect to find in its own folder."""
    return {name.partition(".")[0] for name in sys.modules} - _OF_PYTHON


def _slowest(whole: float) -> str:
    """Name the packages to which much of the time belongs, the slowest first."""
    slow = sorted((took, name) for name, took in seconds.items() if took >= whole / _SLOW_SHARE)
    return ", ".join(f"{name} {took:.2f} s" for took, name in reversed(slow))


def summary(whole: float, without: list[str]) -> str:
    """Return how much was imported, where the seconds went, and what was left out."""
    text = f"{len(sys.modules)} modules in {whole:.2f} s"
    slowest = _slowest(whole) if whole >= _SLOW_S else ""
    text += f" ({slowest})" if slowest else ""
    left_out = without + failed
    if left_out:
        more = ", ..." if len(left_out) > _SHOWN_MAX else ""
        text += "; left out: " + ", ".join(left_out[:_SHOWN_MAX]) + more
    return text
