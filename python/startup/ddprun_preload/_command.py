"""The command of the workers: ``python -u script``, ``-m module`` or ``-c text``, and arguments."""

from __future__ import annotations

import importlib.machinery
import os
import sys
import zipimport
from collections.abc import Collection

from . import _kernel

_SUFFIXES = tuple(importlib.machinery.all_suffixes())


class Command:
    """What the agent has started this interpreter with."""

    def __init__(self, argv: list[bytes]) -> None:
        self.argv = argv
        self.option = argv[2] if len(argv) > 3 and argv[2] in (b"-m", b"-c") else b""
        self._first_argument = 4 if self.option else 3
        self.program = os.fsdecode(argv[self._first_argument - 1])
        if self.option == b"-c" and len(argv) > 4:  # --run-path: the file comes after the code.
            self.program = os.fsdecode(argv[4])

    def fits(self, argv: list[bytes]) -> bool:
        """Whether a fork of this process can be a worker with that command."""
        end = self._first_argument
        return len(argv) == len(self.argv) and argv[:end] == self.argv[:end]

    def shared(self) -> list[bytes]:
        """Return the part of the command that the interpreter has read at its start."""
        return self.argv[: self._first_argument]

    def take_arguments(self, argv: list[bytes]) -> None:
        """Have the program find the arguments of its own rank."""
        arguments = [os.fsdecode(argument) for argument in argv[self._first_argument :]]
        sys.argv[1:] = arguments
        if hasattr(sys, "orig_argv"):
            sys.orig_argv[self._first_argument :] = arguments

    def first_path(self) -> str:
        """Return what will be the first entry of sys.path."""
        if self.option:
            return os.getcwd()
        path = os.path.realpath(self.program)
        is_application = os.path.isdir(path) or (
            not path.endswith((".py", ".pyc")) and _is_zip(path)
        )
        return path if is_application else os.path.dirname(path)

    def hides(self, names: Collection[str]) -> str:
        """Return a file of the program's that its import would find before a module in `names`."""
        path = self.first_path()
        for entry in _entries(path):
            name, dot, _ = entry.partition(".")
            if name not in names:
                continue
            if dot and entry.endswith(_SUFFIXES):
                return os.path.join(path, entry)
            if not dot and any(
                os.path.isfile(os.path.join(path, name, "__init__" + s)) for s in _SUFFIXES
            ):
                return os.path.join(path, entry)
        return ""

    def source(self) -> str:
        """Return the file that the program begins in, if that is known without importing it."""
        if self.option != b"-m":
            path = os.path.realpath(self.program)
            return os.path.join(path, "__main__.py") if os.path.isdir(path) else path
        path = os.path.join(os.getcwd(), *self.program.split("."))
        return os.path.join(path, "__main__.py") if os.path.isdir(path) else path + ".py"


def own_command() -> Command:
    return Command(_kernel.first_command())


def _is_zip(path: str) -> bool:
    try:
        zipimport.zipimporter(path)
    except (ImportError, OSError):
        return False
    return True


def _entries(path: str) -> list[str]:
    if os.path.isdir(path):
        return os.listdir(path)
    try:
        files = zipimport.zipimporter(path)._files  # type: ignore[attr-defined]
    except (ImportError, OSError, AttributeError):
        return []
    names = [name.split("/") for name in files]
    packages = {name[0] + ".py" for name in names if len(name) == 2 and name[1] == "__init__.py"}
    return [name[0] for name in names if len(name) == 1] + sorted(packages)
