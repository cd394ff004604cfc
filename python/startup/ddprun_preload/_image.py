"""A fork server as bytes, for later runs (``--preload-keep``).

The file has the agent's facts first, then what has to be equal when the bytes are used, then those
of agent/workers/process_image.cc. Who may read it is the agent's to see to.
"""

from __future__ import annotations

import ctypes
import functools
import marshal
import os
import site
import struct
import sys
from typing import TYPE_CHECKING, Any

from . import _libraries

# Beside the folder of sitecustomize.py, in the build tree and when installed.
STARTUP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARY = os.path.join(os.path.dirname(STARTUP), "libddprun-image.so")
_CONDITIONS_AT = 64 << 10  # Behind the facts of the agent: agent/process/kept_images.h.
_SIZES = struct.Struct("=QQ")  # Of the conditions, and where the process begins.
_CONDITIONS_MAX = 16 << 20
_PAGE = 4096

if TYPE_CHECKING:
    State = tuple[int, int]  # Nanoseconds of the last change, bytes.


@functools.lru_cache(maxsize=None)
def functions() -> Any:
    """Return the library with what Python has no functions for."""
    library = ctypes.PyDLL(_LIBRARY)
    for name, numbers in (("save", 2), ("become", 3)):
        function = getattr(library, "ddprun_image_" + name)
        function.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_int][:numbers]
        function.argtypes += [ctypes.c_char_p, ctypes.c_ulong]
        function.restype = ctypes.c_int
    return library


def _state_of(path: str) -> State | None:
    """Return the state of a file or folder; of a member of an archive, that of the archive."""
    while path:
        try:
            status = os.stat(path)
        except NotADirectoryError:
            path = os.path.dirname(path)
            continue
        except OSError:
            return None
        # A folder's bytes are a file system's own affair.
        size = 0 if os.path.isdir(path) else status.st_size
        return status.st_mtime_ns, size
    return None


def _file_of(module: object) -> str:
    """Without the module's own __getattribute__: that of a lazy module would import it."""
    try:
        path = object.__getattribute__(module, "__dict__").get("__file__")
    except AttributeError:
        return ""
    return path if isinstance(path, str) else ""


def states() -> dict[str, State | None]:
    """Return the files that this process has read its modules from, each with its state.

    With the folders of packages, where an installation comes or goes.
    """
    paths = {_file_of(module) for module in list(sys.modules.values())}
    paths |= _libraries.mapped_files()
    paths |= {os.path.join(STARTUP, "sitecustomize.py"), os.path.dirname(os.__file__)}
    paths |= {os.path.join(sys.prefix, "pyvenv.cfg"), *site.getsitepackages()}
    if site.ENABLE_USER_SITE:
        paths.add(site.getusersitepackages())
    return {path: _state_of(path) for path in sorted(paths) if path}


def changed(known: dict[str, State | None]) -> str:
    """Return a file that is another one than it was; empty: none is."""
    return next((path for path, state in known.items() if _state_of(path) != state), "")


def changed_since(known: dict[str, State | None], nanoseconds: int) -> str:
    """Return a file that may have changed while it was read."""
    return next((path for path, state in known.items() if state and state[0] >= nanoseconds), "")


def _read_status(*names: str) -> list[str]:
    with open("/proc/self/status", encoding="utf-8", errors="replace") as status:
        return [line.rstrip("\n") for line in status if line.partition(":")[0] in names]


def surroundings() -> dict[str, object]:
    """Return what libraries may read when they are loaded, beside the environment."""
    with open("/proc/self/limits", encoding="utf-8", errors="replace") as limits:
        text = limits.read()
    return {
        "the version of Python": sys.version,
        "the interpreter": sys.executable,
        "the working directory": os.getcwd(),
        "a limit (ulimit)": text,
        "the set of processors": _read_status("Cpus_allowed_list", "Mems_allowed_list"),
    }


def _rounded_up(size: int) -> int:
    return (size + _PAGE - 1) // _PAGE * _PAGE


def save(file: int, conditions: dict[str, Any]) -> tuple[int, str]:
    """Write this process. Return 0, or -1 and why it cannot be saved.

    Returns again, in a process that has become this one, the number that was given there.
    """
    data = marshal.dumps(conditions)
    begin = _rounded_up(_CONDITIONS_AT + _SIZES.size + len(data))
    os.pwrite(file, _SIZES.pack(len(data), begin) + data, _CONDITIONS_AT)
    why = ctypes.create_string_buffer(500)
    number = functions().ddprun_image_save(file, begin, why, len(why))
    return number, why.value.decode(errors="replace")


def conditions_of(file: int) -> tuple[dict[str, Any], int]:
    """Return the conditions, and where the process begins."""
    sizes = os.pread(file, _SIZES.size, _CONDITIONS_AT)
    size, begin = _SIZES.unpack(sizes) if len(sizes) == _SIZES.size else (0, 0)
    if not 0 < size < _CONDITIONS_MAX or begin > os.fstat(file).st_size:
        raise ValueError("it is damaged")
    return marshal.loads(os.pread(file, size, _CONDITIONS_AT + _SIZES.size)), begin


def become(file: int, begin: int, number: int) -> str:
    """Have this process become the one at that place of the file. Return why it cannot."""
    why = ctypes.create_string_buffer(500)
    functions().ddprun_image_become(file, begin, number, why, len(why))
    return why.value.decode(errors="replace")
