"""Process groups: ranks that exchange arrays. A thin layer over ``ddprun/c_api.h``."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from types import TracebackType
from typing import Any

from ._arguments import milliseconds as _milliseconds
from ._arguments import number as _number
from ._arguments import text
from ._buffers import Lent, lend
from ._errors import BY_STATUS, BadArgument, Error
from ._handle import _Handle as _Handle
from ._handle import _open as _open
from ._handle import left_ms, warn
from ._library import foreign, is_foreign, library
from ._structs import InitOptions

_OPS = {"sum": 0, "avg": 1, "min": 2, "max": 3, "prod": 4}


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


def _reduction(op: str) -> int:
    if not isinstance(op, str) or op not in _OPS:
        raise BadArgument(f"op {op!r} is not one of {', '.join(_OPS)}")
    return _OPS[op]


class Work(_Handle):
    """An operation under way; its array must be left alone until :meth:`wait` has returned."""

    def __init__(self, handle: int, lent: Lent, rank: int, operation: str) -> None:
        super().__init__(handle, library().ddprun_work_destroy)
        self._lent: Lent | None = lent
        self._rank = rank
        self._operation = operation

    def wait(self) -> None:
        """Wait for the end and raise what went wrong."""
        with self._use("work") as work:
            status = library().ddprun_work_wait(work)
            self._lent = None
            _check(status, self._operation, self._rank)

    def done(self) -> bool:
        """Return whether :meth:`wait` would return at once."""
        with self._use("work") as work:
            return bool(library().ddprun_work_done(work))


class ProcessGroup(_Handle):
    """The ranks of a job, or a part of them. :func:`ddprun.init` makes one.

    All ranks of the group call the same collectives in the same order. An array is anything with
    the buffer protocol (numpy.ndarray, array.array, bytearray, memoryview), contiguous, of float16,
    float32, float64, int32, int64 or uint8. `timeout` is in seconds; None selects the group's.
    Calls release the interpreter's lock. A group can be used in a ``with`` statement.
    """

    _is_last = True
    _patience: float | None = None  # With calls of other threads, in seconds.

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
        with self._use("group") as group:
            return int(library().ddprun_world_size(group))

    @property
    def local_rank(self) -> int:
        """The number of this rank among those of its host."""
        with self._use("group") as group:
            return int(library().ddprun_local_rank(group))

    @property
    def restart_count(self) -> int:
        """How often the launcher has restarted the job."""
        with self._use("group") as group:
            return int(library().ddprun_restart_count(group))

    @property
    def backend(self) -> str:
        """The backend that was chosen: shm, gloo, cpu, nccl or self."""
        with self._use("group") as group:
            return str(library().ddprun_backend(group).decode())

    def all_reduce(self, array: Any, op: str = "sum", timeout: float | None = None) -> None:
        """Replace `array` by its sum, avg, min, max or prod over all ranks."""
        lent = lend(array, writable=True)
        self._call("all_reduce", lent[0], _reduction(op), _milliseconds(timeout))

    def all_reduce_async(self, array: Any, op: str = "sum", timeout: float | None = None) -> Work:
        """Begin :meth:`all_reduce`."""
        lent = lend(array, writable=True)
        work = ctypes.c_void_p()
        self._call(
            "all_reduce_async", lent[0], _reduction(op), _milliseconds(timeout), ctypes.byref(work)
        )
        assert work.value is not None
        return Work(work.value, lent, self._rank, "all_reduce")

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
        lent = lend(array, writable=False)
        result = lend(bytearray() if out is None else out, writable=True)
        if out is None:
            result[0].type = lent[0].type
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
        """Fill `array` with what rank `source` sends."""
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

    def abort(self) -> None:
        """End all operations of the group, on all ranks; from any thread."""
        with self._use("group") as group:
            library().ddprun_group_abort(group)

    def close(self) -> None:
        """Complete what is under way and leave the group. More than one call does no harm.

        Calls of other threads are under way, too: they end, by their own time limits at the latest.
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
        # Peers would wait for operations that this rank does not reach any more; its end shows
        # them that it is lost, and the launcher who failed first.
        if error is None:
            self.close()

    def __repr__(self) -> str:
        if self._is_closed or os.getpid() != self._pid:
            return "<ddprun.ProcessGroup closed>"
        return f"<ddprun.ProcessGroup rank {self.rank} of {self.world_size} on {self.backend}>"

    def _call(self, name: str, *arguments: Any) -> None:
        handle = self._enter("group")
        try:
            _check(getattr(library(), "ddprun_" + name)(handle, *arguments), name, self._rank)
        finally:
            self._leave()

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
        with contextlib.suppress(BadArgument), self._use("group") as group:
            if library().ddprun_group_shutdown(group, left_ms(until)) != 0:
                warn(self._rank)


def _check_seat(rank: int, world_size: int) -> None:
    """Refuse what the library would take for the default, by which the environment says it."""
    if _number(world_size, "world_size") < 0:
        raise BadArgument(f"world_size must not be negative, as {world_size} is")
    if world_size == 0 and _number(rank, "rank") != -1:
        raise BadArgument(f"rank {rank} was passed without world_size")
    if world_size > 0 and not 0 <= _number(rank, "rank") < world_size:
        raise BadArgument(f"there is no rank {rank} in a world_size of {world_size}")


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
    _check_seat(rank, world_size)
    options = InitOptions(
        ctypes.sizeof(InitOptions),
        text(init_method, "init_method"),
        text(backend, "backend"),
        rank,
        world_size,
        _milliseconds(init_timeout, "init_timeout"),
        _milliseconds(op_timeout, "op_timeout"),
    )
    group = ctypes.c_void_p()
    _check(library().ddprun_group_init(ctypes.byref(options), ctypes.byref(group)), "init", rank)
    assert group.value is not None
    return ProcessGroup(group.value)
