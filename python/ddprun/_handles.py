"""Handles of the library, and what its statuses and Python's arguments become."""

from __future__ import annotations

import os
import socket

from ._arguments import milliseconds as _milliseconds
from ._arguments import number as _number
from ._arguments import text as _text_or_none
from ._arguments import whole
from ._errors import BY_STATUS, BadArgument, Error
from ._handle import _Handle as _Handle
from ._handle import _open as _open
from ._library import foreign, is_foreign, library


def _host() -> str:
    return os.environ.get("DDPRUN_HOST") or socket.gethostname()


def _check(status: int, operation: str, rank: int) -> None:
    """Raise the exception for `status`, with the sentence of this thread's last failed call."""
    if status == 0:
        return
    sentence = library().ddprun_last_error().decode(errors="replace")
    if is_foreign(sentence):
        raise foreign()
    raise BY_STATUS.get(status, Error)(
        sentence,
        rank=rank,
        host=_host(),
        operation=operation,
        peer=library().ddprun_last_error_peer(),
    )


def _long(value: int, what: str) -> int:
    try:
        return whole(value, what)
    except BadArgument:
        raise BadArgument(f"{what} must be a whole number of 64 bits, not {value!r}") from None


def _text(value: str, what: str) -> bytes:
    """Encode text for a string of C, which ends at a zero."""
    found = _text_or_none(value, what)
    if found is None:
        raise BadArgument(f"{what} must be a string, not None")
    return found


__all__ = [
    "_Handle",
    "_check",
    "_host",
    "_long",
    "_milliseconds",
    "_number",
    "_open",
    "_text",
    "_text_or_none",
]
