"""Operations under way, and how they begin."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ._buffers import Lent, lend
from ._errors import BadArgument, TimedOut
from ._handles import _check, _Handle, _host, _milliseconds, _number
from ._library import library
from ._membership import Membership
from ._structs import Call

_OPS = {"sum": 0, "avg": 1, "min": 2, "max": 3, "prod": 4, "band": 5, "bor": 6, "bxor": 7}


# What ddprun_call names them.
_OPERATIONS = {
    "all_reduce": 1,
    "broadcast": 2,
    "all_gather": 3,
    "send": 4,
    "recv": 5,
    "barrier": 6,
    "reduce_scatter": 8,
    "all_to_all": 9,
    "gather": 10,
    "scatter": 11,
    "reduce": 12,
}


def _reduction(op: str) -> int:
    if op not in _OPS:
        raise BadArgument(f"op {op!r} is not one of {', '.join(_OPS)}")
    return _OPS[op]


def _result_of(array: Any, out: Any) -> Lent:
    """Lend `out`, or nothing, of the type of `array`, where it is None."""
    if out is not None:
        return lend(out, writable=True)
    nothing = lend(bytearray(), writable=True)
    nothing[0].type = lend(array, writable=False)[0].type
    return nothing


class Work(_Handle):
    """An operation under way; its array must be left alone until :meth:`wait` has returned."""

    def __init__(self, handle: int, lent: Sequence[Lent], rank: int, operation: str) -> None:
        super().__init__(handle, library().ddprun_work_destroy)
        self._lent: Sequence[Lent] | None = lent  # Their memory stays.
        self._rank = rank
        self._operation = operation

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the end and raise what went wrong.

        With a `timeout` in seconds, raise TimedOut if the operation has not ended by then; it goes
        on, and may be waited for again.
        """
        ended = ctypes.c_int(1)
        if timeout is None:
            status = library().ddprun_work_wait(self._live("work"))
        else:
            limit = _milliseconds(timeout)
            status = library().ddprun_work_wait_for(self._live("work"), limit, ctypes.byref(ended))
        if not ended.value:
            raise TimedOut(
                f"{self._operation} has not ended within {timeout} s",
                rank=self._rank,
                host=_host(),
                operation=self._operation,
                peer=-1,
            )
        self._lent = None
        self._settle(status)

    def _settle(self, status: int) -> None:
        _check(status, self._operation, self._rank)

    def done(self) -> bool:
        """Return whether :meth:`wait` would return at once."""
        return bool(library().ddprun_work_done(self._live("work")))


class AsyncCalls(Membership):
    """The operations of a group that return a :class:`Work`; the base of ProcessGroup.

    A thread of the group carries them out in the order of their calls. Arrays must be left alone
    until their work has ended. Messages with a `tag` are in no order with anything but messages of
    the same two ranks and tag.
    """

    def all_reduce_async(self, array: Any, op: str = "sum", timeout: float | None = None) -> Work:
        """Begin :meth:`all_reduce`."""
        out = lend(array, writable=True)
        return self._begin("all_reduce", None, out, op=_reduction(op), timeout=timeout)

    def reduce_async(
        self,
        array: Any,
        out: Any = None,
        root: int = 0,
        op: str = "sum",
        timeout: float | None = None,
    ) -> Work:
        """Begin :meth:`reduce`."""
        lent, result = lend(array, writable=False), self._of_root(out, root)
        return self._begin("reduce", lent, result, op=_reduction(op), root=root, timeout=timeout)

    def reduce_scatter_async(
        self, array: Any, out: Any, op: str = "sum", timeout: float | None = None
    ) -> Work:
        """Begin :meth:`reduce_scatter`."""
        lent, result = lend(array, writable=False), lend(out, writable=True)
        return self._begin("reduce_scatter", lent, result, op=_reduction(op), timeout=timeout)

    def broadcast_async(self, array: Any, root: int = 0, timeout: float | None = None) -> Work:
        """Begin :meth:`broadcast`."""
        return self._begin(
            "broadcast", None, lend(array, writable=True), root=root, timeout=timeout
        )

    def all_gather_async(self, array: Any, out: Any, timeout: float | None = None) -> Work:
        """Begin :meth:`all_gather`."""
        lent, result = lend(array, writable=False), lend(out, writable=True)
        return self._begin("all_gather", lent, result, timeout=timeout)

    def all_to_all_async(self, array: Any, out: Any, timeout: float | None = None) -> Work:
        """Begin :meth:`all_to_all`."""
        lent, result = lend(array, writable=False), lend(out, writable=True)
        return self._begin("all_to_all", lent, result, timeout=timeout)

    def gather_async(
        self, array: Any, out: Any = None, root: int = 0, timeout: float | None = None
    ) -> Work:
        """Begin :meth:`gather`."""
        lent, result = lend(array, writable=False), self._of_root(out, root)
        return self._begin("gather", lent, result, root=root, timeout=timeout)

    def scatter_async(
        self, array: Any, out: Any, root: int = 0, timeout: float | None = None
    ) -> Work:
        """Begin :meth:`scatter`."""
        lent = lend(array, writable=False) if self._rank == root else None
        return self._begin("scatter", lent, lend(out, writable=True), root=root, timeout=timeout)

    def send_async(
        self, array: Any, destination: int, tag: int = -1, timeout: float | None = None
    ) -> Work:
        """Begin :meth:`send`, or send a message that only a recv_async of this `tag` takes."""
        lent = lend(array, writable=False)
        return self._begin("send", lent, None, root=destination, tag=tag, timeout=timeout)

    def recv_async(
        self, array: Any, source: int, tag: int = -1, timeout: float | None = None
    ) -> Work:
        """Begin :meth:`recv`, or receive what a send_async of this `tag` sends."""
        out = lend(array, writable=True)
        return self._begin("recv", None, out, root=source, tag=tag, timeout=timeout)

    def barrier_async(self, timeout: float | None = None) -> Work:
        """Begin :meth:`barrier`."""
        return self._begin("barrier", None, None, timeout=timeout)

    def _of_root(self, out: Any, root: int) -> Lent | None:
        return lend(out, writable=True) if self._rank == root else None

    def _begin(
        self,
        operation: str,
        given: Lent | None,
        result: Lent | None,
        *,
        op: int = 0,
        root: int = 0,
        tag: int = -1,
        timeout: float | None = None,
    ) -> Work:
        call = Call(ctypes.sizeof(Call), _OPERATIONS[operation], op, factor=1.0)
        if given is not None:
            call.in_data, call.ins = ctypes.addressof(given[0]), 1
        if result is not None:
            call.out_data, call.outs = ctypes.addressof(result[0]), 1
        call.root, call.tag = _number(root, "a rank"), _number(tag, "tag")
        call.timeout_ms = _milliseconds(timeout)
        work = ctypes.c_void_p()
        handle = self._live("group")
        status = library().ddprun_submit(handle, ctypes.byref(call), ctypes.byref(work))
        self._settle(status, operation)
        assert work.value is not None
        return self._work_of(work.value, [each for each in (given, result) if each], operation)

    def _work_of(self, handle: int, lent: Sequence[Lent], operation: str) -> Work:
        return Work(handle, lent, self._rank, operation)
