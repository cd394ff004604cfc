"""Which modules are imported before the fork, and their import."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Collection, Iterator

from . import _libraries, _reads, _source
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

failed: dict[str, str] = {}  # Names that could not be imported, and why.
seconds: dict[str, float] = {}  # Of the imports of each top-level name, with what they import.
# Empty; or names that must not be imported before the fork, and why: all import the last one.
blamed: list[tuple[list[str], str]] = []


def names_for(wanted: str, command: Command, learned: Learned) -> tuple[list[str], str]:
    """Return what to import; or nothing, and why: no reason, if nothing is known of the program."""
    if wanted != "auto":
        return wanted.split(","), ""
    variable, where = _source.read(command.source())
    if variable:
        return [], f"{where} sets {variable}, which modules may read when they are imported"
    return learned.names(), ""


def set_too_late(learned: Learned, changed: Collection[bytes]) -> tuple[str, str]:
    """Return a variable that the program sets before an import that may read it, and which does.

    Modules that set variables themselves have done so here, too.
    """
    for name in learned.set_before():
        if os.fsencode(name) not in changed and _source.is_read_early(name):
            reader = _reads.reader_of(name) or _libraries.reader_of(name)
            if reader:
                return name, reader
    return "", ""


def import_all(names: list[str], dropped: list[str], of_ranks: list[str]) -> Iterator[str]:
    """Import one name after the other; yield each that was new. Stops at one to be blamed."""
    with _reads.Reads(of_ranks) as reads:
        for name in names:
            if name in sys.modules or any(name == d or name.startswith(d + ".") for d in dropped):
                continue
            began = time.monotonic()
            reads.begin(name)
            is_whole = _import(name)
            top = name.partition(".")[0]
            seconds[top] = seconds.get(top, 0.0) + time.monotonic() - began
            by, flaw = reads.flaw()
            if flaw:
                blamed[:] = [(_outermost([name, *by]), flaw)]
            with_it = next((each for each in dropped if each in sys.modules), "")
            if with_it and is_whole and not flaw:
                blamed[:] = [([name], f"imports {with_it}, which must not be preloaded")]
            if with_it or flaw or not is_whole:
                return
            if name in sys.modules:
                yield name


def _outermost(names: list[str]) -> list[str]:
    """Return these modules, without those that a package among them contains."""
    return [n for n in dict.fromkeys(names) if not any(n.startswith(o + ".") for o in names)]


def _import(name: str) -> bool:
    """Return whether nothing is left of it if it failed."""
    before = set(sys.modules)
    try:
        importlib.import_module(name)
    except BaseException as error:
        failed[name] = str(error) or repr(error)
        if set(sys.modules) - before and not _is_absent(name, error):
            blamed[:] = [([name], f"cannot be imported: {error!r}"[:200])]
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
    left_out = without + list(failed)
    if left_out:
        more = ", ..." if len(left_out) > _SHOWN_MAX else ""
        text += "; left out: " + ", ".join(left_out[:_SHOWN_MAX]) + more
    return text
