"""Finds the program ddprun that was installed with this package."""

from __future__ import annotations

import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

from ._errors import LibraryError


def program() -> str:
    """Return the path of the program ddprun."""
    try:
        files = metadata.files("ddprun") or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "ddprun" and os.access(file.locate(), os.X_OK):
            path = Path(os.path.abspath(file.locate()))
            if path.is_file():
                return str(path)
    beside = Path(sys.executable).parent / "ddprun"
    found = str(beside) if beside.is_file() else shutil.which("ddprun")
    if found is None:
        raise LibraryError(
            "the program ddprun is neither installed with this package nor in PATH: install "
            "ddprun's wheel"
        )
    return found
