"""What modules read of the environment while they are imported."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import ItemsView, Iterator
from types import FrameType
from typing import Any

_BETWEEN = (__name__, "os", "_collections_abc", "collections.abc")  # A mapping's own methods.
_IMPORTER = (__package__ or "") + "._modules"


class _Text(str):
    """A value in a copy of the environment; unlike a str it shows whether the copy still exists."""


class _Seen:
    """What was read."""

    def __init__(self) -> None:
        self.of_ranks: tuple[str, ...] = ()
        self.importing = ""
        self.readers: dict[str, str] = {}  # By a name, or the beginning of names and "*".
        self.read = ""  # The first name of a rank's that was read, ...
        self.by: list[str] = []  # ... and the modules being imported then, the outermost first.
        self.copier = ""  # The module that has iterated over all names last, ...
        self.copying: set[str] = set()  # ... and those that it has not read since.
        self.copied: list[tuple[weakref.ref[_Text], list[str]]] = []  # Values of names of ranks.

    def all_by_caller(self) -> str:
        """Note that the caller may have read all variables that begin as its package's name."""
        caller = _caller()
        self.readers[caller.partition(".")[0].upper() + "*"] = caller
        return caller

    def one(self, key: str) -> None:
        self.readers.setdefault(key, self.importing)
        if not self.read and is_among(key, self.of_ranks):
            self.read, self.by = key, _being_imported()

    def copy(self, key: str, value: str) -> str:
        """Return a value for a copy. What a module keeps of it lacks the variables of ranks."""
        self.copying.discard(key)
        if not is_among(key, self.of_ranks):
            return value
        text = _Text(value)
        self.copied.append((weakref.ref(text), _being_imported()))
        return text


_seen = _Seen()


class _Watched(type(os.environ)):  # type: ignore[misc]
    """os.environ while modules are imported."""

    def __getitem__(self, key: str) -> str:
        if isinstance(key, str) and key in _seen.copying and _caller() == _seen.copier:
            return _seen.copy(key, str(super().__getitem__(key)))
        if isinstance(key, str):
            _seen.one(key)
        return str(super().__getitem__(key))

    def __iter__(self) -> Iterator[str]:
        """Iterate, for those who look for names of their own, or copy all: fsspec does both."""
        _seen.copier = _seen.all_by_caller()
        _seen.copying = {self.decodekey(key) for key in self._data}
        return iter(list(super().__iter__()))

    def items(self) -> ItemsView[str, str]:
        """Return all, for those who look for names of their own: tqdm does. Not a read of each."""
        _seen.all_by_caller()
        plain = {self.decodekey(key): self.decodevalue(self._data[key]) for key in self._data}
        return plain.items()


def is_among(name: str, patterns: tuple[str, ...]) -> bool:
    return any(
        name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1]))
        for pattern in patterns
    )


def _caller() -> str:
    """Return the module that uses the environment now."""
    frame: FrameType | None = sys._getframe(1)
    while frame and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")) if frame else ""


def _being_imported() -> list[str]:
    """Return the modules whose imports wait for what is done now, the outermost first."""
    names: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame and frame.f_globals.get("__name__") != _IMPORTER:
        name = frame.f_globals.get("__name__")
        if frame.f_code.co_name == "<module>" and name in sys.modules:
            names.insert(0, name)
        frame = frame.f_back
    return names


class Reads:
    """Watches the environment, as a context of imports."""

    def __init__(self, of_ranks: list[str]) -> None:
        _seen.of_ranks = tuple(of_ranks)
        self._plain = type(os.environ)

    def __enter__(self) -> Reads:
        environ: Any = os.environ
        environ.__class__ = _Watched
        return self

    def __exit__(self, *_: object) -> None:
        environ: Any = os.environ
        environ.__class__ = self._plain

    def begin(self, name: str) -> None:
        """From now on this module is imported."""
        _seen.importing = name
        _seen.copying = set()

    def flaw(self) -> tuple[list[str], str]:
        """Return modules that must not be imported before a fork, and why; or none.

        All of them import the last one, which has read what belongs to a rank, or holds a copy of
        the environment, which lacks what belongs to a rank.
        """
        if _seen.read:
            return _seen.by, f"reads {_seen.read} when it is imported"
        for by in _held_copies():
            return by, "copies all variables of the environment when it is imported"
        return [], ""


def _held_copies() -> Iterator[list[str]]:
    held = [(text, by) for text, by in _seen.copied if text() is not None]
    if held:
        gc.collect()
    _seen.copied = []
    for text, by in held:
        if text() is not None:
            yield by


def reader_of(name: str) -> str:
    """Return an import during which this variable was read; empty: there is none."""
    found = (reader for read, reader in _seen.readers.items() if is_among(name, (read,)))
    return next(found, "")
