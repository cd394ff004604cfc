"""What callers pass, as the library takes it: numbers, texts, limits, arrays.

ctypes itself cuts numbers that do not fit. Of arrays whatever has the buffer protocol becomes a
``ddprun_buffer``, without a copy.
"""

from __future__ import annotations

import ctypes
import numbers
import operator
from typing import Any, NamedTuple

from ._c_api import Buffer
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


class ElementType(NamedTuple):
    """The type of an array's elements; its place in ELEMENT_TYPES is its ``ddprun_type``."""

    name: str  # numpy's and torch's name.
    size: int  # Bytes.
    formats: tuple[str, ...]  # Of the buffer protocol; bfloat16 has none.


ELEMENT_TYPES = (
    ElementType("float32", 4, ("f",)),
    ElementType("float64", 8, ("d",)),
    ElementType("float16", 2, ("e",)),
    ElementType("bfloat16", 2, ()),
    ElementType("int32", 4, ("i", "l")),
    ElementType("int64", 8, ("q", "l")),
    ElementType("uint8", 1, ("B", "c")),
    ElementType("int8", 1, ("b",)),
    ElementType("int16", 2, ("h",)),
    ElementType("uint16", 2, ("H",)),
    ElementType("uint32", 4, ("I", "L")),
    ElementType("uint64", 8, ("Q", "L")),
    ElementType("bool", 1, ("?",)),
    ElementType("complex64", 8, ("Zf", "F")),
    ElementType("complex128", 16, ("Zd", "D")),
)

NUMBERS = {each.name: number for number, each in enumerate(ELEMENT_TYPES)}

# "l" and "L" have the size that the platform's C gives them.
BY_FORMAT = {
    (code, each.size): number for number, each in enumerate(ELEMENT_TYPES) for code in each.formats
}

# The array for the library, and the object that keeps its memory in place.
Lent = tuple[Buffer, Any]


def _view_of(array: Any) -> memoryview:
    try:
        view = memoryview(array)
    except (TypeError, ValueError, BufferError) as error:
        raise BadArgument(
            f"{type(array).__name__} has no buffer protocol ({error}); pass a numpy array, an "
            "array.array, a bytearray or a memoryview (of a torch tensor on the CPU: "
            "tensor.numpy())"
        ) from None
    if not view.c_contiguous:
        raise BadArgument("the array is not contiguous; pass a contiguous copy")
    return view


def _type_of(view: memoryview) -> int:
    code = view.format.lstrip("@=<") if view.format else "B"
    try:
        return BY_FORMAT[code, view.itemsize]
    except KeyError:
        raise BadArgument(
            f"elements of format {view.format!r} and {view.itemsize} bytes are not supported; "
            f"supported are {', '.join(NUMBERS)}"
        ) from None


def _is_bfloat16(array: Any) -> bool:
    """Return whether this is a numpy array of bfloat16, as the package ml_dtypes adds it."""
    return getattr(getattr(array, "dtype", None), "name", None) == "bfloat16"


def lend(array: Any, *, writable: bool) -> Lent:
    """Describe `array`; it must not be resized before the second part of the result is released."""
    if _is_bfloat16(array):
        view, kind = _view_of(array.view("uint16")), NUMBERS["bfloat16"]
    else:
        view = _view_of(array)
        kind = _type_of(view)
    if view.readonly:
        if writable:
            raise BadArgument(f"the {type(array).__name__} cannot be written to")
        view = memoryview(bytearray(view.tobytes()))  # ctypes takes the address of writable memory.
    count = view.nbytes // ELEMENT_TYPES[kind].size
    data: int | None = None
    keep: Any = view
    if view.nbytes:
        keep = ctypes.c_char.from_buffer(view)
        data = ctypes.addressof(keep)
    return Buffer(ctypes.sizeof(Buffer), data, count, kind, 0), keep
