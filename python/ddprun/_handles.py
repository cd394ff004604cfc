"""Handles of the library, and what its statuses and Python's arguments become."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import weakref
from typing import Any

from ._errors import BY_STATUS, BadArgument, Error
from ._library import library


def _host() -> str:
    return os.environ.get("DDPRUN_HOST") or socket.gethostname()


def _check(status: int, operation: str, rank: int) -> None:
    """Raise the exception for `status`, with the sentence of this thread's last failed call."""
    if status == 0:
        return
    raise BY_STATUS.get(status, Error)(
        library().ddprun_last_error().decode(errors="replace"),
        rank=rank,
        host=_host(),
        operation=operation,
        peer=library().ddprun_last_error_peer(),
    )


def _milliseconds(seconds: float | None, what: str = "timeout") -> int:
    if seconds is None:
        return 0  # The group's.
    if not seconds > 0:
        raise BadArgument(f"{what} must be a positive number of seconds, not {seconds!r}")
    return max(1, round(seconds * 1000))


def _whole(value: int, what: str, bits: int) -> int:
    if not isinstance(value, int) or not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise BadArgument(f"{what} must be a whole number of {bits} bits, not {value!r}")
    return value


def _number(value: int, what: str) -> int:
    return _whole(value, what, 32)


def _long(value: int, what: str) -> int:
    return _whole(value, what, 64)


def _text(value: str, what: str) -> bytes:
    """Encode text for a string of C, which ends at a zero."""
    if not isinstance(value, str) or "\0" in value:
        raise BadArgument(f"{what} must be text without a zero, not {value!r}")
    return value.encode()


def _text_or_none(value: str | None, what: str) -> bytes | None:
    return None if value is None else _text(value, what)


def _release(destroy: Any, handle: int, pid: int) -> None:
    """Destroy a handle, but not in a child of fork(), which lacks the threads behind it."""
    if os.getpid() == pid:
        destroy(handle)


_open: weakref.WeakSet[_Handle] = weakref.WeakSet()


class _Handle:
    """What the library created, until it is released: explicitly, by Python, or at exit."""

    _ends_last = False  # At exit after others: works are completed before their group.

    def __init__(self, handle: int, destroy: Any) -> None:
        self._handle = handle
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, _release, destroy, handle, self._pid)
        self._finalizer.atexit = False  # _release_all() does that.
        _open.add(self)

    def _destroy(self) -> None:
        # Called itself, a finalizer does nothing once Python's own exit handlers have run.
        found = self._finalizer.detach()
        if found is not None:
            _, release, arguments, _ = found
            release(*arguments)

    def _live(self, what: str) -> int:
        if not self._finalizer.alive:
            raise BadArgument(f"the {what} is closed")
        if os.getpid() != self._pid:
            raise BadArgument(
                f"the {what} belongs to process {self._pid}, from which this one was forked: "
                "call ddprun.init() in the processes that use it"
            )
        return self._handle


@atexit.register
def _release_all() -> None:
    """Leave in order. After an uncaught exception leave at once: peers then see a lost rank."""
    if getattr(sys, "last_value", None) is None:
        for handle in sorted(_open, key=lambda each: each._ends_last):
            handle._destroy()
