"""Finds what is installed with this package: the program ddprun, and libddprun.so.

The library's functions get the types of the C interface.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

from ._c_api import C_API_VERSION, FUNCTIONS
from ._errors import LibraryError


def prefix() -> Path:
    """Return the folder of libddprun.so, its header and its CMake package.

    A C program finds them with ``cmake -DCMAKE_PREFIX_PATH=$(python3 -c 'import ddprun;
    print(ddprun.prefix())')`` and ``find_package(ddprun)``, which gives ``ddprun::c_api``.
    """
    return Path(__file__).resolve().parent / "_lib"


def _declare(library: ctypes.CDLL, path: Path) -> None:
    """Give each function its types; raise LibraryError for a library that is not ours."""
    try:
        version = library.ddprun_c_api_version()
    except AttributeError:
        raise LibraryError(f"{path} is not ddprun's library") from None
    if version != C_API_VERSION:
        raise LibraryError(
            f"{path} has version {version} of the C interface, this package needs version "
            f"{C_API_VERSION}: install both from one wheel, and unset DDPRUN_LIB"
        )
    for name, (result, arguments) in FUNCTIONS.items():
        try:
            function = getattr(library, "ddprun_" + name)
        except AttributeError:
            raise LibraryError(
                f"{path} lacks ddprun_{name}: it is older than this package; install both from "
                "one wheel, and unset DDPRUN_LIB"
            ) from None
        function.restype = result
        function.argtypes = arguments


def foreign() -> LibraryError:
    """Return the exception for a library whose structs are not those of this package."""
    try:
        own = metadata.version("ddprun")
    except metadata.PackageNotFoundError:
        own = "a source tree"
    return LibraryError(
        f"{_path()} is of ddprun {library().ddprun_version().decode()}, whose structs lack fields "
        f"that this package, of {own}, uses: install both from one wheel, and unset DDPRUN_LIB"
    )


def is_foreign(text: str) -> bool:
    """Return whether the library has refused a struct for its size, which this package sets."""
    return "this library does not support this size of the struct" in text


def _path() -> Path:
    return Path(os.environ.get("DDPRUN_LIB") or prefix() / "libddprun.so")


@functools.cache
def library() -> ctypes.CDLL:
    """Load the library once: that of the package, or the one that DDPRUN_LIB names."""
    path = _path()
    if not path.exists():
        raise LibraryError(
            f"{path} does not exist: install ddprun's wheel, or let DDPRUN_LIB name a libddprun.so"
        )
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryError(f"{path} cannot be loaded: {error}") from error
    _declare(loaded, path)
    return loaded


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
