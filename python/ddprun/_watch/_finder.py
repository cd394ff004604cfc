"""Calls a function once a module was imported, by whomever."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable


class _Finder(MetaPathFinder):
    """Finds nothing itself: it has the others find a module, and adds a call to its loader."""

    def __init__(self) -> None:
        self.awaited: dict[str, Callable[[], None]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        call = self.awaited.pop(name, None)
        if call is None:
            return None
        if not self.awaited:
            sys.meta_path.remove(self)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                _then(spec.loader, call)
                return spec
        return None


def _then(loader: Any, call: Callable[[], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        execute(module)
        call()

    loader.exec_module = exec_module


_finder = _Finder()


def after_import(name: str, call: Callable[[], None]) -> None:
    """Have `call` called when the module was imported; at once if it is there."""
    if name in sys.modules:
        call()
        return
    _finder.awaited[name] = call
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
