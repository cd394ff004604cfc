"""What callers pass, as the library takes it; ctypes itself cuts numbers that do not fit."""

from __future__ import annotations

import numbers
import operator
from typing import Any

from ._errors import BadArgument

_SECONDS_MAX = 1e9  # 31 years; later moments do not fit into nanoseconds of 64 bits.
_U64 = 2**64


def whole(value: Any, what: str, low: int = -(2**63), high: int = 2**63 - 1) -> int:
    """Return a whole number of Python, numpy or torch that lies in a range."""
    try:
        number = operator.index(value)
    except TypeError:
        raise BadArgument(f"{what} must be a whole number, not {value!r}") from None
    if not low <= number <= high:
        raise BadArgument(f"{what} must be from {low} to {high}, not {number}")
    return number


def number(value: Any, what: str) -> int:
    """Return a whole number of 32 bits."""
    try:
        return whole(value, what, -(2**31), 2**31 - 1)
    except BadArgument:
        raise BadArgument(f"{what} must be a whole number of 32 bits, not {value!r}") from None


def long_number(value: Any, what: str) -> int:
    """Return a whole number of 64 bits."""
    try:
        return whole(value, what)
    except BadArgument:
        raise BadArgument(f"{what} must be a whole number of 64 bits, not {value!r}") from None


def count(value: Any, what: str) -> int:
    """Return a number that counts something, and may be 0."""
    return whole(value, what, 0)


def seed(value: Any, what: str = "seed") -> int:
    """Return the bits of a whole number of 64 bits, with a sign or without."""
    return whole(value, what, -(2**63), _U64 - 1) % _U64


def milliseconds(seconds: Any, what: str = "timeout") -> int:
    """Return a time limit in seconds; 0, the library's default, for None."""
    if seconds is None:
        return 0
    try:
        limit = float(seconds) if isinstance(seconds, numbers.Real) else 0.0
    except OverflowError:
        limit = 0.0
    if not 0 < limit <= _SECONDS_MAX:
        raise BadArgument(
            f"{what} must be a positive number of seconds, at most {_SECONDS_MAX:g}, not "
            f"{seconds!r}"
        )
    return max(1, round(limit * 1000))


def text_or_none(value: Any, what: str) -> bytes | None:
    """Return a string as C has it, which ends at a zero; None for None."""
    return None if value is None else text(value, what)


def text(value: Any, what: str) -> bytes:
    """Return a string as C has it, which ends at a zero."""
    if value is None:
        raise BadArgument(f"{what} must be a string, not None")
    if not isinstance(value, str) or "\0" in value:
        raise BadArgument(f"{what} must be a string without a zero character, not {value!r}")
    return value.encode()
