"""State of which every rank has only a part: a thin layer over keep_sharded() of c_elastic.h."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from .._buffers import ELEMENT_TYPES, Lent, lend
from .._c_api import Buffer
from .._core import check
from .._group import ProcessGroup
from .._library import library

FORMATS = {"float32": "f", "float64": "d", "int32": "i", "int64": "q", "uint8": "B"}


class Sharded:
    """Elements that are divided among the ranks, with a copy of each part on another rank.

    Created by :meth:`Job.keep_sharded`. Only for bodies of steps and functions of ``between()``;
    what is returned is valid until the step is committed.
    """

    def __init__(
        self, handle: int, count: int, held: Any, live: Callable[[], Any] = lambda: None
    ) -> None:
        self._handle = handle
        self._live = live  # Raises if the job is closed, and with it the handle.
        self._held = held  # What the library calls.
        self.count = count
        self.first = 0
        """The number of this rank's first element, as of the last call of now() or next()."""

    def now(self) -> memoryview:
        """Return this rank's elements as of the last committed step, not to be written to."""
        return self._part("sharded_now").toreadonly()

    def next(self) -> memoryview:
        """Return this rank's elements after this step, to be written before ``commit()``."""
        return self._part("sharded_next")

    def gather(self, group: ProcessGroup, whole: Any) -> None:
        """Write all elements as of now() into the array `whole`; collective."""
        self._live()
        lent: Lent = lend(whole, writable=True)
        buffer, held = lent
        function = library().ddprun_sharded_gather
        status = function(self._handle, group._live(), ctypes.byref(buffer))
        group._settle(status, "Sharded.gather")
        del held

    def _part(self, name: str) -> memoryview:
        self._live()
        first, part = ctypes.c_size_t(), Buffer(ctypes.sizeof(Buffer))
        function = getattr(library(), f"ddprun_{name}")
        check(function(self._handle, ctypes.byref(first), ctypes.byref(part)), "Sharded")
        self.first = first.value
        return view_of(part)


def view_of(part: Buffer) -> memoryview:
    """Return the elements that the library has described."""
    kind = ELEMENT_TYPES[part.type]
    form: Any = FORMATS[kind.name]
    if not part.count:
        return memoryview(bytearray()).cast("B").cast(form)
    memory = (ctypes.c_char * (part.count * kind.size)).from_address(part.data)
    return memoryview(memory).cast("B").cast(form)
