"""Arrays of Python as ``ddprun_buffer``: whatever has the buffer protocol, without a copy."""

from __future__ import annotations

import ctypes
from typing import Any

from ._errors import BadArgument
from ._structs import Buffer

# Format of the buffer protocol -> ddprun_type, by the size of an element where that differs.
_TYPES = {
    ("f", 4): 0,
    ("d", 8): 1,
    ("e", 2): 2,
    ("i", 4): 4,
    ("l", 4): 4,
    ("l", 8): 5,
    ("q", 8): 5,
    ("B", 1): 6,
    ("c", 1): 6,
}

# The array as the library takes it, and what keeps its memory where it is.
Lent = tuple[Buffer, Any]


def _view_of(array: Any) -> memoryview:
    try:
        view = memoryview(array)
    except TypeError:
        raise BadArgument(
            f"{type(array).__name__} has no buffer protocol; pass a numpy array, an array.array, "
            "a bytearray or a memoryview (of a torch tensor on the CPU: tensor.numpy())"
        ) from None
    if not view.c_contiguous:
        raise BadArgument("the array is not contiguous; pass a contiguous copy")
    return view


def _type_of(view: memoryview) -> int:
    code = view.format.lstrip("@=<") if view.format else "B"
    try:
        return _TYPES[code, view.itemsize]
    except KeyError:
        raise BadArgument(
            f"elements of format {view.format!r} and {view.itemsize} bytes are not supported; "
            "supported are float16, float32, float64, int32, int64 and uint8"
        ) from None


def lend(array: Any, *, writable: bool) -> Lent:
    """Describe `array`; it must not be resized before the second part of the result is released."""
    view = _view_of(array)
    kind = _type_of(view)
    if view.readonly:
        if writable:
            raise BadArgument(f"the {type(array).__name__} cannot be written to")
        view = memoryview(bytearray(view.tobytes()))  # ctypes takes the address of writable memory.
    count = view.nbytes // (2 if kind == 2 else 4 if kind in (0, 4) else 1 if kind == 6 else 8)
    data: int | None = None
    keep: Any = view
    if view.nbytes:
        keep = ctypes.c_char.from_buffer(view)
        data = ctypes.addressof(keep)
    return Buffer(ctypes.sizeof(Buffer), data, count, kind, 0), keep
