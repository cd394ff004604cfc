"""Process groups: ranks that exchange arrays. A thin layer over ``ddprun/c_api.h``."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from ._buffers import lend
from ._errors import BadArgument
from ._handles import _check, _milliseconds, _number, _text_or_none
from ._library import library
from ._structs import InitOptions
from ._works import AsyncCalls, _reduction, _result_of


class ProcessGroup(AsyncCalls):
    """The ranks of a job, or a part of them. :func:`ddprun.init` makes one.

    All ranks of the group call the same collectives in the same order. An array is anything with
    the buffer protocol (numpy.ndarray, array.array, bytearray, memoryview), contiguous, of bool,
    integers of 8 to 64 bits, float16, float32, float64, complex64 or complex128; or a numpy array
    of ml_dtypes.bfloat16. `timeout` is in seconds; None selects the group's. Calls release the
    interpreter's lock. A group can be used in a ``with`` statement.

    `op` is sum, avg, min, max, prod, band, bor or bxor. Not all are defined for all elements: avg
    not for integers and bool, min and max not for complex numbers, band, bor and bxor for integers
    and bool alone. Of bool, sum and max are "or", prod and min "and".
    """

    _ends_last = True

    def __init__(self, handle: int) -> None:
        super().__init__(handle, library().ddprun_group_destroy)
        self._rank = int(library().ddprun_rank(handle))

    def all_reduce(self, array: Any, op: str = "sum", timeout: float | None = None) -> None:
        """Replace `array` by its reduction over all ranks."""
        lent = lend(array, writable=True)
        self._call("all_reduce", lent[0], _reduction(op), _milliseconds(timeout))

    def reduce(
        self,
        array: Any,
        out: Any = None,
        root: int = 0,
        op: str = "sum",
        timeout: float | None = None,
    ) -> None:
        """Reduce `array` over all ranks into `out` of rank `root`; others need no `out`."""
        lent, result = lend(array, writable=False), _result_of(array, out)
        self._call(
            "reduce",
            lent[0],
            result[0],
            _reduction(op),
            _number(root, "root"),
            _milliseconds(timeout),
        )

    def reduce_scatter(
        self, array: Any, out: Any, op: str = "sum", timeout: float | None = None
    ) -> None:
        """Reduce `array` over all ranks; `out` receives this rank's part of the result."""
        lent, result = lend(array, writable=False), lend(out, writable=True)
        self._call("reduce_scatter", lent[0], result[0], _reduction(op), _milliseconds(timeout))

    def broadcast(self, array: Any, root: int = 0, timeout: float | None = None) -> None:
        """Replace `array` by that of rank `root`."""
        lent = lend(array, writable=True)
        self._call("broadcast", lent[0], _number(root, "root"), _milliseconds(timeout))

    def all_gather(self, array: Any, out: Any, timeout: float | None = None) -> None:
        """Concatenate the arrays of all ranks in `out`, in the order of ranks."""
        lent, result = lend(array, writable=False), lend(out, writable=True)
        self._call("all_gather", lent[0], result[0], _milliseconds(timeout))

    def all_to_all(self, array: Any, out: Any, timeout: float | None = None) -> None:
        """Send the n-th part of `array` to rank n; `out` receives a part from each rank."""
        lent, result = lend(array, writable=False), lend(out, writable=True)
        self._call("all_to_all", lent[0], result[0], _milliseconds(timeout))

    def gather(
        self, array: Any, out: Any = None, root: int = 0, timeout: float | None = None
    ) -> None:
        """Concatenate the arrays of all ranks in `out` of rank `root`; others need no `out`."""
        lent, result = lend(array, writable=False), _result_of(array, out)
        self._call("gather", lent[0], result[0], _number(root, "root"), _milliseconds(timeout))

    def scatter(self, array: Any, out: Any, root: int = 0, timeout: float | None = None) -> None:
        """Give each rank its part of `array` of rank `root`; others pass None as `array`."""
        result = lend(out, writable=True)
        lent = lend(b"" if array is None else array, writable=False)
        if array is None:
            lent[0].type = result[0].type
        self._call("scatter", lent[0], result[0], _number(root, "root"), _milliseconds(timeout))

    def send(self, array: Any, destination: int, timeout: float | None = None) -> None:
        """Send `array` to rank `destination`, which calls :meth:`recv`."""
        lent = lend(array, writable=False)
        self._call("send", lent[0], _number(destination, "destination"), _milliseconds(timeout))

    def recv(self, array: Any, source: int, timeout: float | None = None) -> None:
        """Receive `array` from rank `source`, which calls :meth:`send`."""
        lent = lend(array, writable=True)
        self._call("recv", lent[0], _number(source, "source"), _milliseconds(timeout))

    def barrier(self, timeout: float | None = None) -> None:
        """Wait until all ranks have called it."""
        self._call("barrier", _milliseconds(timeout))

    def split(self, color: int, key: int = 0) -> ProcessGroup | None:
        """Form a group of the ranks that pass the same `color`, ordered by `key`.

        All ranks call it. A rank that passes a negative color gets None.
        """
        part = ctypes.c_void_p()
        self._call("group_split", _number(color, "color"), _number(key, "key"), ctypes.byref(part))
        return ProcessGroup(part.value) if part.value is not None else None

    def shrink(self, lost: Sequence[int] = (), patience: float | None = None) -> ProcessGroup:
        """Form a group of the ranks that call this, without those in `lost`; after a failure.

        Aborts this group. Ranks that do not call within `patience` seconds (10) are left out.
        """
        ranks = (ctypes.c_int32 * len(lost))(*(_number(each, "a lost rank") for each in lost))
        smaller = ctypes.c_void_p()
        limit = _milliseconds(patience, "patience")
        self._call("group_shrink", ranks, len(lost), limit, ctypes.byref(smaller))
        assert smaller.value is not None
        return ProcessGroup(smaller.value)

    def abort(self) -> None:
        """End all operations of the group, on all ranks; from any thread."""
        library().ddprun_group_abort(self._live("group"))

    def close(self) -> None:
        """Complete operations in progress and leave the group. Further calls have no effect."""
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
    workers; without a launcher the program is alone, rank 0 of 1. `init_method` is env://,
    file:///path or tcp://host:port, the latter two with `rank` and `world_size`; `backend` is auto,
    shm, gloo, cpu or nccl; `host` is a name for this machine instead of its own, which lets one
    machine act as several. Timeouts are in seconds.
    """
    if rank >= 0 and world_size == 0:
        raise BadArgument(f"rank {rank} is given, but no world_size")
    options = InitOptions(
        ctypes.sizeof(InitOptions),
        _text_or_none(init_method, "init_method"),
        _text_or_none(backend, "backend"),
        _number(rank, "rank"),
        _number(world_size, "world_size"),
        _milliseconds(init_timeout, "init_timeout"),
        _milliseconds(op_timeout, "op_timeout"),
        _text_or_none(host, "host"),
    )
    group = ctypes.c_void_p()
    _check(library().ddprun_group_init(ctypes.byref(options), ctypes.byref(group)), "init", rank)
    assert group.value is not None
    return ProcessGroup(group.value)
