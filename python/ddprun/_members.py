"""What a group has beside operations: its store, hosts, phases, memory, and common numbers."""

from __future__ import annotations

import ctypes
import os
import weakref

from ._collectives import Collectives
from ._errors import BadArgument, Unsupported
from ._handles import _number
from ._library import library
from ._store import Store, _text


def _free(handle: int, pid: int) -> None:
    if os.getpid() == pid:  # A child of fork() has the memory, but not what is behind the handle.
        library().ddprun_memory_destroy(handle)


class Members(Collectives):
    """The part of :class:`ddprun.ProcessGroup` that needs no arrays."""

    @property
    def store(self) -> Store:
        """The job's key-value store."""
        return Store(self)

    def host_of(self, rank: int) -> str:
        """Return the name of a rank's host."""
        size = library().ddprun_world_size(self._live("group"))
        if not 0 <= _number(rank, "rank") < size:
            raise BadArgument(f"there is no rank {rank} among {size}")
        return str(library().ddprun_host_of(self._live("group"), rank).decode(errors="replace"))

    def set_phase(self, name: str = "") -> None:
        """Say what this rank does from now on between operations: "evaluate", "save".

        ddprun distinguishes a long phase from a stuck rank by it, and names it. An empty name ends
        the phase. Names are cut after 23 bytes, and 16 of them are told apart. The phase
        "checkpoint", on all ranks, says to the ledger that what was computed before is safe once
        the next phase begins. It costs less than a microsecond in the library; nothing is sent.
        """
        self._call("set_phase", _text(name, "a phase"))

    def average(self, value: float) -> float:
        """Return the average of a number over all ranks, which all of them call."""
        result = ctypes.c_double()
        self._call("average", float(value), ctypes.byref(result))
        return result.value

    def shared_seed(self) -> int:
        """Return a random seed of 64 bits, the same on all ranks, which all of them call."""
        seed = ctypes.c_uint64()
        self._call("shared_seed", ctypes.byref(seed))
        return seed.value

    def allocate(self, size: int) -> memoryview:
        """Return `size` bytes of zeroed memory, which :meth:`all_reduce` sums without copies.

        The ranks of a host share it, but each writes and reads its own part, of which this is the
        whole. All ranks allocate the same sizes in the same order. It lives as long as something
        refers to it, also when the group is closed. For elements other than bytes::

            values = numpy.frombuffer(group.allocate(4 * count), numpy.float32)
            values = group.allocate(4 * count).cast("f")
        """
        if not isinstance(size, int) or not 0 <= size < 2**63:
            raise BadArgument(f"size must be a number of bytes, not {size!r}")
        if library().ddprun_device(self._live("group")) >= 0:
            raise Unsupported(
                "memory of a GPU is no buffer of Python; use torch's tensors",
                rank=self._rank,
                operation="allocate",
            )
        data, memory = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("allocate", size, ctypes.byref(data), ctypes.byref(memory))
        assert memory.value is not None
        if not data.value:
            library().ddprun_memory_destroy(memory.value)
            return memoryview(bytearray())
        owner = (ctypes.c_char * size).from_address(data.value)
        finalizer = weakref.finalize(owner, _free, memory.value, os.getpid())
        finalizer.atexit = False
        return memoryview(owner).cast("B")
