"""One group of the C interface, as the backend uses it: calls, works under way, life and death."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from .. import _c_api
from .._c_api import ABORTED, Buffer, Call
from .._callbacks import take_dropped
from .._core import Handle, complete_group, own_locks, warn_of_abort
from .._library import library
from ._arguments import TYPES, Lending, describe, is_plain
from ._errors import DdprunError, error, last_error
from ._works import EndedWork, OperationWork, forget_dropped, waiter

_OPERATIONS = (
    "all_reduce",
    "broadcast",
    "all_gather",
    "send",
    "recv",
    "barrier",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "reduce",
)
NAMES: dict[int, str] = {getattr(_c_api, name.upper()): name for name in _OPERATIONS}

OTHERS_LIMIT_S = 1.0  # At exit, for the blocking calls of other threads, such as a daemon thread's.


class Engine(Handle):
    """A group. All calls may come from any thread; one operation at a time is issued."""

    _what = "process group"
    _ends_at_exit = False  # Its backend leaves it.

    def __init__(self, handle: int, rank: int, size: int, timeout_ms: int, keep: Any) -> None:
        super().__init__(handle, library().ddprun_group_destroy)
        self.rank = self._rank = rank
        self.size = size
        self.timeout_ms = timeout_ms
        self.count = 0  # Operations so far.
        self._keep = keep  # The store's functions, for the group, its works and memory.
        self._submit = library().ddprun_submit
        # The calls of run() and of in_place(), which has one array.
        self._described = Call(size=ctypes.sizeof(Call))
        self._one = (Buffer * 1)()
        self._short = Call(size=ctypes.sizeof(Call), out=self._one, outs=1, tag=-1)
        self._work = ctypes.c_void_p()
        self._work_at = ctypes.byref(self._work)
        self._pending: dict[int, OperationWork] = {}
        own_locks(self)
        self._descriptor = -1
        self.collected: list[Any] | None = None  # Works begun while calls are coalesced.
        self._ended = EndedWork()

    def make_locks(self) -> None:
        """Make the locks; see _core.own_locks()."""
        self._lock = threading.Lock()
        self._closes = threading.RLock()
        for work in self._pending.values():
            work.make_locks()

    def in_place(
        self, operation: int, tensor: Any, op: int, root: int, timeout_ms: int, *, waits: bool
    ) -> Any:
        """Carry out an operation on one tensor: the short way, without a copy, if it is plain."""
        if tensor.dtype not in TYPES or not is_plain(tensor):
            lending = Lending(NAMES[operation], self.rank)
            out = lending.arrays([tensor], written=True)
            return self.run(
                operation,
                lending,
                outs=out,
                op=op,
                root=root,
                timeout_ms=timeout_ms,
                result=[tensor],
                waits=waits,
            )
        with self._lock:
            call = self._short
            describe(self._one[0], tensor)
            call.operation, call.op = operation, op
            call.root, call.timeout_ms = root, timeout_ms or self.timeout_ms
            handle = self._issue(call, waits=waits)
        if handle is None:
            return self._ended
        return self._begun(handle, operation, [tensor], tensor, None, -1)

    def run(
        self,
        operation: int,
        lending: Lending,
        *,
        ins: Any = None,
        outs: Any = None,
        op: int = 0,
        root: int = -1,
        tag: int = -1,
        timeout_ms: int = 0,
        factor: float = 0.0,
        result: Sequence[Any] = (),
        waits: bool = False,
    ) -> Any:
        """Carry out an operation; return its work. `waits`: it has ended on return."""
        after = lending.after()
        with self._lock:
            call = self._described
            call.in_, call.ins = (ins, len(ins)) if ins else (None, 0)
            call.out, call.outs = (outs, len(outs)) if outs else (None, 0)
            call.operation, call.op, call.factor = operation, op, factor
            call.root, call.tag, call.timeout_ms = root, tag, timeout_ms or self.timeout_ms
            handle = self._issue(call, waits=waits)
        if handle is not None:
            return self._begun(handle, operation, result, lending.keep, after, root)
        if after is not None:
            after()
        return self._ended

    def _issue(self, call: Call, *, waits: bool) -> int | None:
        """Issue a call, under the lock; return the work, or None if it has ended."""
        if self._is_closed:
            raise self._closed(NAMES[call.operation])
        self.count += 1
        status = self._submit(self._handle, ctypes.byref(call), None if waits else self._work_at)
        if status != 0:
            raise take_dropped() or last_error(NAMES[call.operation])
        return None if waits else self._work.value

    def _begun(
        self, handle: int, operation: int, result: Sequence[Any], keep: Any, after: Any, root: int
    ) -> OperationWork:
        if self._pending:
            self._forget_ended()
        work = OperationWork(self, handle, NAMES[operation], result, keep, after, root)
        self._pending[id(work)] = work
        if self.collected is not None:
            self.collected.append(work)
        return work

    def _forget_ended(self) -> None:
        """Finish works that the program has not waited for, from the first on."""
        for work in list(self._pending.values()):
            if not work.has_ended():
                break
            work.finish()
        forget_dropped()

    def _closed(self, operation: str = "call") -> DdprunError:
        return error(
            ABORTED,
            f"{operation}: the process group was destroyed or aborted",
            operation=operation,
            rank=self.rank,
        )

    def _live(self) -> int:
        if self._is_closed:
            raise self._closed()
        return self._handle  # In a child of fork() the library refuses it.

    def _settle(self, status: int, operation: str) -> None:
        if status != 0:
            raise last_error(operation)

    def finish_ended(self) -> None:
        """Finish all works that have ended."""
        for work in list(self._pending.values()):
            if work.has_ended():
                work.finish()

    def forget(self, work: OperationWork) -> None:
        """Keep a finished work no longer."""
        self._pending.pop(id(work), None)

    def watch(self) -> None:
        """Have works finished when they end, by the waiter's thread."""
        if self._descriptor < 0:
            descriptor = ctypes.c_int(-1)
            place = ctypes.byref(descriptor)
            self._call("group_completion_fd", place, operation="get_future")
            self._descriptor = descriptor.value
        waiter.watch(self, self._descriptor)

    def allocate(self, size: int) -> tuple[int, int]:
        """Return the address and the handle of memory that the ranks of a host share."""
        data, memory = ctypes.c_void_p(), ctypes.c_void_p()
        with self._lock:
            if self._is_closed:
                raise self._closed("allocate")
            self._call("allocate", size, ctypes.byref(data), ctypes.byref(memory))
        return data.value or 0, memory.value or 0

    def transport(self) -> str:
        """Return the transport between the ranks: shm, cpu, gloo or self."""
        with contextlib.suppress(DdprunError):
            return str(self._ask("backend").decode())
        return "closed"

    def abort(self) -> None:
        """End all operations of this rank at once, from any thread."""
        if os.getpid() == self._pid:
            with contextlib.suppress(DdprunError), self._use() as group:
                library().ddprun_group_abort(group)

    def _complete(self, until: float) -> None:
        with contextlib.suppress(DdprunError), self._use() as group:
            if self._is_left(until):
                complete_group(group, until, self.rank)
            else:
                library().ddprun_group_abort(group)
                warn_of_abort(self.rank)

    def _is_left(self, until: float) -> bool:
        """Whether no other thread stays in a blocking call, which may wait for a lost peer."""
        patience = max(0.0, min(OTHERS_LIMIT_S, until - time.monotonic()))
        if not self._lock.acquire(timeout=patience):
            return False
        self._lock.release()
        return True

    def close(self) -> None:
        """Complete what is under way, within the group's time limit, and leave."""
        with self._closes:
            if self._is_closed:
                return
            if os.getpid() == self._pid:
                # Outside of `_lock`: this ends a blocking call of another thread.
                library().ddprun_group_shutdown(self._handle, self.timeout_ms)
                with self._lock:
                    self._is_closed = True
                self.finish_ended()
                waiter.drop(self._descriptor)
            self._destroy()
        dropped = take_dropped()  # By the store's functions.
        if dropped is not None:
            raise dropped
