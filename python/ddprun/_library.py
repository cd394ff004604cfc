"""Loads libddprun.so and declares the functions of ``ddprun/c_api.h`` that this package calls."""

from __future__ import annotations

import ctypes
import functools
import os
from importlib import metadata
from pathlib import Path

from ._elastic_structs import FUNCTIONS as _ELASTIC_FUNCTIONS
from ._errors import LibraryError
from ._sdk._structs import FUNCTIONS as _SDK_FUNCTIONS
from ._structs import Buffer, Call, CreateOptions, ErrorInfo, InitOptions, Metric, StoreCalls

C_API_VERSION = 1

_Group = ctypes.c_void_p
_WorkHandle = ctypes.c_void_p
_Timer = ctypes.c_void_p

_BUFFER = ctypes.POINTER(Buffer)
_HANDLE = ctypes.POINTER(ctypes.c_void_p)
_VOID, _SIZE, _DOUBLE = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_double
_SIZES, _TEXTS = ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_char_p)
_INT, _MS, _STATUS, _TEXT = ctypes.c_int, ctypes.c_int64, ctypes.c_int32, ctypes.c_char_p

# name: (result, arguments), as in c_api.h. Others are in _elastic_structs.py and _sdk/_structs.py.
_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "version": (_TEXT, []),
    "last_error": (_TEXT, []),
    "last_error_peer": (_INT, []),
    "last_error_info": (_STATUS, [ctypes.POINTER(ErrorInfo)]),
    "group_init": (_STATUS, [ctypes.POINTER(InitOptions), _HANDLE]),
    "group_create": (
        _STATUS,
        [ctypes.POINTER(StoreCalls), ctypes.POINTER(CreateOptions), _HANDLE],
    ),
    "group_completion_fd": (_STATUS, [_Group, ctypes.POINTER(_INT)]),
    "group_shutdown": (_STATUS, [_Group, _MS]),
    "allocate": (_STATUS, [_Group, ctypes.c_size_t, _HANDLE, _HANDLE]),
    "memory_destroy": (None, [ctypes.c_void_p]),
    "host_of": (_TEXT, [_Group, _INT]),
    "group_destroy": (None, [_Group]),
    "group_split": (_STATUS, [_Group, _INT, _INT, _HANDLE]),
    "group_abort": (None, [_Group]),
    "rank": (_INT, [_Group]),
    "world_size": (_INT, [_Group]),
    "local_rank": (_INT, [_Group]),
    "local_world_size": (_INT, [_Group]),
    "group_rank": (_INT, [_Group]),
    "restart_count": (_INT, [_Group]),
    "run_id": (_TEXT, [_Group]),
    "set_phase": (_STATUS, [_Group, _TEXT]),
    "expect_steps": (_STATUS, [_Group, _MS]),
    "group_shrink": (_STATUS, [_Group, ctypes.POINTER(_STATUS), _SIZE, _MS, _HANDLE]),
    "store_set": (_STATUS, [_Group, _TEXT, _VOID, _SIZE]),
    "store_get": (_STATUS, [_Group, _TEXT, _MS, _HANDLE, _SIZES]),
    "store_add": (_STATUS, [_Group, _TEXT, _MS, ctypes.POINTER(_MS)]),
    "store_check": (_STATUS, [_Group, _TEXTS, _SIZE, ctypes.POINTER(_INT)]),
    "store_wait": (_STATUS, [_Group, _TEXTS, _SIZE, _MS]),
    "store_erase": (_STATUS, [_Group, _TEXT, ctypes.POINTER(_INT)]),
    "broadcast_bytes": (_STATUS, [_Group, _VOID, _SIZE, _INT, _HANDLE, _SIZES]),
    "all_gather_bytes": (_STATUS, [_Group, _VOID, _SIZE, _HANDLE, ctypes.POINTER(_SIZES)]),
    "gather_bytes": (_STATUS, [_Group, _VOID, _SIZE, _INT, _HANDLE, ctypes.POINTER(_SIZES)]),
    "average": (_STATUS, [_Group, _DOUBLE, ctypes.POINTER(_DOUBLE)]),
    "shared_seed": (_STATUS, [_Group, ctypes.POINTER(ctypes.c_uint64)]),
    "metrics_create": (_STATUS, [_HANDLE]),
    "metrics_destroy": (None, [_VOID]),
    "metrics_add": (_STATUS, [_VOID, _TEXT, _DOUBLE, _DOUBLE]),
    "metrics_reduce": (_STATUS, [_VOID, _Group, _SIZES]),
    "metrics_get": (_STATUS, [_VOID, _SIZE, ctypes.POINTER(Metric)]),
    "install_crash_report": (None, []),
    "install_crash_report_before": (None, []),
    "backend": (_TEXT, [_Group]),
    "all_reduce": (_STATUS, [_Group, _BUFFER, _STATUS, _MS]),
    "all_reduce_async": (_STATUS, [_Group, _BUFFER, _STATUS, _MS, _HANDLE]),
    "reduce": (_STATUS, [_Group, _BUFFER, _BUFFER, _STATUS, _INT, _MS]),
    "reduce_scatter": (_STATUS, [_Group, _BUFFER, _BUFFER, _STATUS, _MS]),
    "broadcast": (_STATUS, [_Group, _BUFFER, _INT, _MS]),
    "all_gather": (_STATUS, [_Group, _BUFFER, _BUFFER, _MS]),
    "all_to_all": (_STATUS, [_Group, _BUFFER, _BUFFER, _MS]),
    "gather": (_STATUS, [_Group, _BUFFER, _BUFFER, _INT, _MS]),
    "scatter": (_STATUS, [_Group, _BUFFER, _BUFFER, _INT, _MS]),
    "send": (_STATUS, [_Group, _BUFFER, _INT, _MS]),
    "recv": (_STATUS, [_Group, _BUFFER, _INT, _MS]),
    "barrier": (_STATUS, [_Group, _MS]),
    "submit": (_STATUS, [_Group, ctypes.POINTER(Call), _HANDLE]),
    "work_wait": (_STATUS, [_WorkHandle]),
    "work_wait_for": (_STATUS, [_WorkHandle, _MS, ctypes.POINTER(_INT)]),
    "work_error": (_STATUS, [_WorkHandle, ctypes.POINTER(ErrorInfo)]),
    "work_times": (_STATUS, [_WorkHandle, ctypes.POINTER(_MS), ctypes.POINTER(_MS)]),
    "work_done": (_INT, [_WorkHandle]),
    "work_destroy": (None, [_WorkHandle]),
    **_ELASTIC_FUNCTIONS,
    **_SDK_FUNCTIONS,
    "timer_create": (_STATUS, [_HANDLE]),
    "timer_join": (_STATUS, [_Timer, ctypes.POINTER(InitOptions)]),
    "timer_use_stream": (_STATUS, [_Timer, ctypes.c_int32, ctypes.c_void_p]),
    "timer_enter": (_STATUS, [_Timer, _STATUS]),
    "timer_end_step": (_STATUS, [_Timer, ctypes.c_size_t]),
    "timer_destroy": (None, [_Timer]),
}


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
    for name, (result, arguments) in _FUNCTIONS.items():
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
