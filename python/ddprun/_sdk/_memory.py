"""Memory that the ranks of a host share, as a buffer of Python."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import TYPE_CHECKING

from .._errors import BadArgument, Unsupported
from .._library import library

if TYPE_CHECKING:
    from .._group import ProcessGroup


def _free(handle: int, pid: int) -> None:
    if os.getpid() == pid:  # A child of fork() has the memory, but not what is behind the handle.
        library().ddprun_memory_destroy(handle)


def allocated(group: ProcessGroup, size: int) -> memoryview:
    """Carry out :meth:`ProcessGroup.allocate`."""
    if not isinstance(size, int) or not 0 <= size < 2**63:
        raise BadArgument(f"size must be a number of bytes, not {size!r}")
    if group._ask("device") >= 0:
        raise Unsupported(
            "memory of a GPU is no buffer of Python; use torch's tensors",
            rank=group.rank,
            operation="allocate",
        )
    data, memory = ctypes.c_void_p(), ctypes.c_void_p()
    group._call("allocate", size, ctypes.byref(data), ctypes.byref(memory))
    assert memory.value is not None
    if not data.value or not size:
        library().ddprun_memory_destroy(memory.value)
        return memoryview(bytearray())
    owner = (ctypes.c_char * size).from_address(data.value)
    finalizer = weakref.finalize(owner, _free, memory.value, os.getpid())
    finalizer.atexit = False
    return memoryview(owner).cast("B")
