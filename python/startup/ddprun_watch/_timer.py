"""``ddprun/c/c_timer.h`` by ctypes, from the library that comes with the program.

The program's worker may have a package ``ddprun`` of another version, or none: neither is used.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Callable

# Beside the folder of sitecustomize.py, in the build tree and when installed.
LIBRARY = os.path.join(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
    "libddprun-watch.so",
)
_JOIN_MS = 60_000

_HANDLE, _STATUS = ctypes.c_void_p, ctypes.c_int32


class _InitOptions(ctypes.Structure):
    """``ddprun_init_options``."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("init_method", ctypes.c_char_p),
        ("backend", ctypes.c_char_p),
        ("rank", ctypes.c_int32),
        ("world_size", ctypes.c_int32),
        ("init_timeout_ms", ctypes.c_int64),
        ("op_timeout_ms", ctypes.c_int64),
        ("host", ctypes.c_char_p),
        ("device_given", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("max_ctas", ctypes.c_int32),
        ("may_shrink", ctypes.c_int32),
    )


def _library() -> ctypes.CDLL:
    if not os.path.exists(LIBRARY):
        raise OSError(f"{LIBRARY} does not exist: ddprun is not installed as a whole")
    library = ctypes.CDLL(LIBRARY)
    functions: list[tuple[str, object, list[object]]] = [
        ("last_error", ctypes.c_char_p, []),
        ("timer_create", _STATUS, [ctypes.POINTER(_HANDLE)]),
        ("timer_join", _STATUS, [_HANDLE, ctypes.POINTER(_InitOptions)]),
        ("timer_use_stream", _STATUS, [_HANDLE, ctypes.c_int32, ctypes.c_void_p]),
        ("timer_enter", _STATUS, [_HANDLE, _STATUS]),
        ("timer_end_step", _STATUS, [_HANDLE, ctypes.c_size_t]),
        ("timer_checkpoint", _STATUS, [_HANDLE, ctypes.c_int64]),
        ("timer_saved", _STATUS, [_HANDLE, ctypes.c_int64]),
        ("timer_destroy", None, [_HANDLE]),
    ]
    for name, result, arguments in functions:
        function = getattr(library, "ddprun_" + name)
        function.restype = result
        function.argtypes = arguments
    return library


class Timer:
    """The timer of this process."""

    def __init__(self) -> None:
        found = _library()
        handle = ctypes.c_void_p()
        if found.ddprun_timer_create(ctypes.byref(handle)) != 0 or handle.value is None:
            raise RuntimeError(found.ddprun_last_error().decode(errors="replace"))
        self._library = found
        self._handle: int | None = handle.value
        self._lock = threading.Lock()  # Of what other threads may call, too.
        self._pid = os.getpid()
        self._device = 0
        self._current: Callable[[int], int] | None = None
        self._stream: int | None = None

    def join(self) -> str:
        """Meet the timers of the other ranks; return why not, or an empty text."""
        options = _InitOptions(size=ctypes.sizeof(_InitOptions), rank=-1, init_timeout_ms=_JOIN_MS)
        if self._library.ddprun_timer_join(self._handle, ctypes.byref(options)) == 0:
            return ""
        return str(self._library.ddprun_last_error().decode(errors="replace"))

    def follow(self, device: int, current: Callable[[int], int]) -> None:
        """Take times in the stream of the GPU `device` that is `current` as a phase begins."""
        self._device = device
        self._current = current
        self._stream = None

    def enter(self, phase: int) -> None:
        """End the phase, and begin another one."""
        if self._handle is None:
            return
        if self._current is not None:
            self._use(self._current(self._device))
        self._library.ddprun_timer_enter(self._handle, phase)

    def _use(self, stream: int) -> None:
        if stream == self._stream:
            return
        self._stream = stream
        if self._library.ddprun_timer_use_stream(self._handle, self._device, stream) != 0:
            self._current = None  # CUDA cannot be queried: times are the host's.

    def end_step(self, size: int) -> None:
        """End the step, in which ranks have exchanged `size` bytes of gradients."""
        if self._handle is not None:
            self._library.ddprun_timer_end_step(self._handle, size)

    def checkpoint(self, stall: float) -> None:
        """Count `stall` seconds in which training stood still for a checkpoint."""
        with self._lock:
            if self._handle is not None:
                self._library.ddprun_timer_checkpoint(self._handle, max(0, round(stall * 1e9)))

    def saved(self, ago: float) -> None:
        """Count what was computed until `ago` seconds before now as safe. From any thread."""
        with self._lock:
            if self._handle is not None:
                self._library.ddprun_timer_saved(self._handle, max(0, round(ago * 1e9)))

    def close(self) -> None:
        """Leave the summary behind."""
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is not None and os.getpid() == self._pid:
            self._library.ddprun_timer_destroy(handle)

    def forget(self) -> None:
        """Be of no use any more: this is a forked child, which lacks the threads behind it."""
        self._handle = None
