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
        if name not in self.awaited:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None) if finder is not self else None
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                self._watch(spec.loader, name)
                return spec
        return None

    def _watch(self, loader: Any, name: str) -> None:
        """Have the module's call follow its import: programs also ask only whether it is there."""
        execute = getattr(loader, "exec_module", None)
        if execute is None:  # A folder without code.
            return

        def exec_module(module: ModuleType) -> None:
            loader.exec_module = execute
            execute(module)
            call = self.awaited.pop(name, None)
            if call is not None:
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
