"""Handles of the library, and what its statuses and Python's arguments become."""

from __future__ import annotations

import os
import socket

from ._errors import BY_STATUS, BadArgument, Error
from ._handle import _Handle as _Handle
from ._handle import _open as _open
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
