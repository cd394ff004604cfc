"""Process groups: ranks that exchange arrays. A thin layer over ``ddprun/c_api.h``."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence
from types import TracebackType

from ._arguments import milliseconds, number, text_or_none
from ._c_api import InitOptions
from ._collectives import Collectives
from ._core import complete_group, create, report_crashes, shared_memory
from ._errors import BadArgument, Unsupported
from ._library import library


class ProcessGroup(Collectives):
    """The ranks of a job, or a part of them. :func:`ddprun.init` makes one.

    All ranks of the group call the same collectives in the same order. An array is anything with
    the buffer protocol (numpy.ndarray, array.array, bytearray, memoryview), contiguous, of bool,
    integers of 8 to 64 bits, float16, float32, float64, complex64 or complex128; or a numpy array
    of ml_dtypes.bfloat16. `timeout` is in seconds; None selects the group's. Calls release the
    interpreter's lock. A group can be used in a ``with`` statement.

    `op` is sum, avg, min, max, prod, band, bor, bxor, or premul_sum, which multiplies each rank's
    elements by its `factor` and adds them up. Not all are defined for all elements: avg and
    premul_sum not for integers and bool, min and max not for complex numbers, band, bor and bxor
    for integers and bool alone. Of bool, sum and max are "or", prod and min "and".

    One thread at a time may be in a call of a group, but for :meth:`abort`.
    """

    _is_last = True
    _patience: float | None = None  # How long to wait for other threads' calls, in seconds.

    def __init__(self, handle: int) -> None:
        super().__init__(handle, library().ddprun_group_destroy)
        self._rank = int(library().ddprun_rank(handle))

    def split(self, color: int, key: int = 0) -> ProcessGroup | None:
        """Form a group of the ranks that pass the same `color`, ordered by `key`.

        All ranks call it. A rank that passes a negative color gets None.
        """
        part = ctypes.c_void_p()
        self._call("group_split", number(color, "color"), number(key, "key"), ctypes.byref(part))
        return ProcessGroup(part.value) if part.value is not None else None

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
        if self._ask("device") >= 0:
            raise Unsupported(
                "memory of a GPU is no buffer of Python; use torch's tensors",
                rank=self.rank,
                operation="allocate",
            )
        data, memory = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("allocate", size, ctypes.byref(data), ctypes.byref(memory))
        assert memory.value is not None
        if not data.value or not size:
            library().ddprun_memory_destroy(memory.value)
            return memoryview(bytearray())
        return memoryview(shared_memory(data.value, size, memory.value)).cast("B")

    def shrink(self, lost: Sequence[int] = (), patience: float | None = None) -> ProcessGroup:
        """Go on without ranks that are lost: form a group of those that call this, in their order.

        For use after a failure, or to avoid one. This group is aborted, and is still to be closed.
        It needs the job's store, so it fails if a lost rank hosted that, and a launcher that keeps
        the other ranks running when one fails.

        lost: ranks that are known to be, by any of those that call.
        patience: seconds after which ranks that have not called are left out; None: 10. Those that
            call later get :class:`ddprun.Aborted`.
        """
        ranks = (ctypes.c_int32 * len(lost))(*(number(each, "a lost rank") for each in lost))
        smaller = ctypes.c_void_p()
        limit = milliseconds(patience, "patience")
        self._call("group_shrink", ranks, len(lost), limit, ctypes.byref(smaller))
        assert smaller.value is not None
        return ProcessGroup(smaller.value)

    def abort(self) -> None:
        """End all operations of the group, on all ranks; from any thread."""
        with self._use() as group:
            library().ddprun_group_abort(group)

    def close(self) -> None:
        """Complete operations in progress and leave the group. Further calls have no effect.

        Calls of other threads are completed, too, by their own time limits at the latest.
        """
        if os.getpid() == self._pid:
            self._destroy()

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After an error peers would wait in close() for operations that this rank never reaches.
        # The end of the process shows peers that the rank is lost, and the launcher which failed.
        if error is None:
            self.close()

    def __repr__(self) -> str:
        if self._is_closed or os.getpid() != self._pid:
            return "<ddprun.ProcessGroup closed>"
        return f"<ddprun.ProcessGroup rank {self.rank} of {self.world_size} on {self.backend}>"

    def _destroy(self) -> None:
        if os.getpid() == self._pid:
            self._is_closed = True
            with self._change:
                self._change.wait_for(lambda: not self._others(), self._patience)
        super()._destroy()

    def _complete(self, until: float) -> None:
        if self._others():
            self.abort()
            self._patience = 1.0
        with contextlib.suppress(BadArgument), self._use() as group:
            complete_group(group, until, self._rank)


def _check_seat(rank: int, world_size: int) -> None:
    """Refuse a rank and world size that the library would take for those of the environment."""
    if number(world_size, "world_size") < 0:
        raise BadArgument(f"world_size must not be negative, as {world_size} is")
    if world_size == 0 and number(rank, "rank") != -1:
        raise BadArgument(f"rank {rank} was passed without world_size")
    if world_size > 0 and not 0 <= number(rank, "rank") < world_size:
        raise BadArgument(f"there is no rank {rank} in a world_size of {world_size}")


def init(
    init_method: str | None = None,
    backend: str | None = None,
    rank: int = -1,
    world_size: int = 0,
    init_timeout: float | None = None,
    op_timeout: float | None = None,
    host: str | None = None,
) -> ProcessGroup:
    """Meet the other ranks of the job and return the group of all.

    Without arguments the ranks are read from the environment that ddprun or torchrun gives its
    workers, or else from that of srun, mpirun, mpiexec or flux run; a program that none of them
    started is alone, rank 0 of 1. `init_method` is env://, file:///path or tcp://host:port, the
    latter two with `rank` and `world_size`; `backend` is auto, shm, gloo, cpu or nccl; `host` is a
    name for this machine instead of its own, which lets one machine act as several. Timeouts are in
    seconds.
    """
    _check_seat(rank, world_size)
    report_crashes()
    options = InitOptions(
        ctypes.sizeof(InitOptions),
        text_or_none(init_method, "init_method"),
        text_or_none(backend, "backend"),
        rank,
        world_size,
        milliseconds(init_timeout, "init_timeout"),
        milliseconds(op_timeout, "op_timeout"),
        text_or_none(host, "host"),
    )
    return ProcessGroup(create("group_init", ctypes.byref(options), operation="init", rank=rank))
