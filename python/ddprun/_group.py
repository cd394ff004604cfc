"""Process groups: ranks that exchange arrays. A thin layer over ``ddprun/c_api.h``."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from ._handles import _check, _milliseconds, _number
from ._library import library
from ._members import Members
from ._structs import InitOptions


class ProcessGroup(Members):
    """The ranks of a job, or a part of them. :func:`ddprun.init` makes one.

    All ranks of the group call the same collectives in the same order. An array is anything with
    the buffer protocol (numpy.ndarray, array.array, bytearray, memoryview), contiguous, of float16,
    float32, float64, int32, int64 or uint8. `timeout` is in seconds; None selects the group's.
    Calls release the interpreter's lock. A group can be used in a ``with`` statement.

    `op` is sum, avg, min, max, prod, band, bor or bxor (of bits), or premul_sum, which multiplies
    each rank's elements by its `factor` and adds them up. Not all are defined for all elements: avg
    and premul_sum not for integers, band, bor and bxor for integers alone.

    One thread at a time may be in a call of a group, but for :meth:`abort`.
    """

    _ends_last = True

    def __init__(self, handle: int) -> None:
        super().__init__(handle, library().ddprun_group_destroy)
        self._rank = int(library().ddprun_rank(handle))

    @property
    def rank(self) -> int:
        """The number of this rank in the group, from 0."""
        return self._rank

    @property
    def world_size(self) -> int:
        """The number of ranks of the group."""
        return int(library().ddprun_world_size(self._live("group")))

    @property
    def local_rank(self) -> int:
        """The number of this rank among those of its host."""
        return int(library().ddprun_local_rank(self._live("group")))

    @property
    def restart_count(self) -> int:
        """How often the launcher has restarted the job."""
        return int(library().ddprun_restart_count(self._live("group")))

    @property
    def backend(self) -> str:
        """The backend that was chosen: shm, gloo, cpu, nccl or self."""
        return str(library().ddprun_backend(self._live("group")).decode())

    def split(self, color: int, key: int = 0) -> ProcessGroup | None:
        """Form a group of the ranks that pass the same `color`, ordered by `key`.

        All ranks call it. A rank that passes a negative color gets None.
        """
        part = ctypes.c_void_p()
        self._call("group_split", _number(color, "color"), _number(key, "key"), ctypes.byref(part))
        return ProcessGroup(part.value) if part.value is not None else None

    def shrink(self, lost: Iterable[int] = (), patience: float | None = None) -> ProcessGroup:
        """Go on without ranks that are lost: form a group of those that call this, in their order.

        For use after a failure, or to avoid one. This group is aborted, and is still to be closed.
        It needs the job's store, so it fails if a lost rank hosted that, and a launcher that keeps
        the other ranks running when one fails.

        lost: ranks that are known to be, by any of those that call.
        patience: seconds after which ranks that have not called are left out; None: 10. Those that
            call later get :class:`ddprun.Aborted`.
        """
        ranks = [_number(each, "a lost rank") for each in lost]
        smaller = ctypes.c_void_p()
        self._call(
            "group_shrink",
            (ctypes.c_int32 * len(ranks))(*ranks),
            len(ranks),
            _milliseconds(patience, "patience"),
            ctypes.byref(smaller),
        )
        assert smaller.value is not None
        return ProcessGroup(smaller.value)

    def abort(self) -> None:
        """End all operations of the group, on all ranks; from any thread."""
        library().ddprun_group_abort(self._live("group"))

    def close(self) -> None:
        """Complete what is under way and leave the group. More than one call does no harm."""
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
        # Peers would wait for operations that this rank does not reach any more; its end shows
        # them that it is lost, and the launcher who failed first.
        if error is None:
            self.close()

    def __repr__(self) -> str:
        if not self._finalizer.alive or os.getpid() != self._pid:
            return "<ddprun.ProcessGroup closed>"
        return f"<ddprun.ProcessGroup rank {self.rank} of {self.world_size} on {self.backend}>"

    def _call(self, name: str, *arguments: Any, operation: str = "") -> None:
        handle = self._live("group")
        status = getattr(library(), "ddprun_" + name)(handle, *arguments)
        _check(status, operation or name, self._rank)


def init(
    init_method: str | None = None,
    backend: str | None = None,
    rank: int = -1,
    world_size: int = 0,
    init_timeout: float | None = None,
    op_timeout: float | None = None,
) -> ProcessGroup:
    """Meet the other ranks of the job and return the group of all.

    Without arguments the environment that ddprun or torchrun gives its workers says who and where
    the ranks are; a program that nobody launched is alone, rank 0 of 1. `init_method` is env://,
    file:///path or tcp://host:port, the latter two with `rank` and `world_size`; `backend` is auto,
    shm, gloo, cpu or nccl. Timeouts are in seconds.
    """
    options = InitOptions(
        ctypes.sizeof(InitOptions),
        init_method.encode() if init_method is not None else None,
        backend.encode() if backend is not None else None,
        _number(rank, "rank"),
        _number(world_size, "world_size"),
        _milliseconds(init_timeout, "init_timeout"),
        _milliseconds(op_timeout, "op_timeout"),
    )
    group = ctypes.c_void_p()
    _check(library().ddprun_group_init(ctypes.byref(options), ctypes.byref(group)), "init", rank)
    assert group.value is not None
    return ProcessGroup(group.value)
