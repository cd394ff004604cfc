"""One group of the C interface, as the backend uses it: calls, works under way, life and death."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from .. import _c_api
from .._c_api import ABORTED, Buffer, Call
from .._callbacks import take_dropped
from .._handle import left_ms, warn
from .._library import library
from ._errors import DdprunError, error, last_error
from ._fork import own_locks
from ._tensors import TYPES, Lending, describe, is_plain
from ._waiter import waiter
from ._works import EndedWork, OperationWork, forget_dropped

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

_CALL_SIZE = ctypes.sizeof(Call)


class Engine:
    """A group. All calls may come from any thread; one at a time is inside the library."""

    def __init__(self, handle: int, rank: int, size: int, timeout_ms: int, keep: Any) -> None:
        self.rank = rank
        self.size = size
        self.timeout_ms = timeout_ms
        self.pid = os.getpid()
        self.count = 0  # Operations so far.
        self._handle: int | None = handle
        self._keep = keep  # The store's functions, for the group, its works and memory.
        self._submit = library().ddprun_submit
        self._call = Call()
        self._call.size = _CALL_SIZE
        self._call_at = ctypes.byref(self._call)
        self._one = (Buffer * 1)()  # The array of in_place().
        self._one_at = ctypes.cast(self._one, ctypes.POINTER(Buffer))
        self._work = ctypes.c_void_p()
        self._work_at = ctypes.byref(self._work)
        self._pending: dict[int, OperationWork] = {}
        own_locks(self)
        self._descriptor = -1
        self.collected: list[Any] | None = None  # Works begun while calls are coalesced.
        self._ended = EndedWork()

    def make_locks(self) -> None:
        """Make the locks; see _fork.py."""
        self._lock = threading.Lock()
        self._closes = threading.RLock()
        self._ends = threading.Lock()  # Held while the handle is freed, or used without `_lock`.
        for work in self._pending.values():
            work.make_locks()

    @property
    def is_open(self) -> bool:
        """Whether the group can be used."""
        return self._handle is not None

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
            call = self._call
            describe(self._one[0], tensor)
            call.in_, call.ins = None, 0
            call.out, call.outs = self._one_at, 1
            call.operation, call.op, call.factor = operation, op, 0.0
            call.root, call.tag, call.timeout_ms = root, -1, timeout_ms
            handle = self._issue(waits=waits)
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
            call = self._call
            call.in_, call.ins = (ins, len(ins)) if ins else (None, 0)
            call.out, call.outs = (outs, len(outs)) if outs else (None, 0)
            call.operation, call.op, call.factor = operation, op, factor
            call.root, call.tag, call.timeout_ms = root, tag, timeout_ms
            handle = self._issue(waits=waits)
        if handle is not None:
            return self._begun(handle, operation, result, lending.keep, after, root)
        if after is not None:
            after()
        return self._ended

    def _issue(self, *, waits: bool) -> int | None:
        """Make the call in `_call`, under the lock; return the work, or None if it has ended."""
        call = self._call
        if self._handle is None:
            raise self._closed(NAMES[call.operation])
        if call.timeout_ms == 0:
            call.timeout_ms = self.timeout_ms
        self.count += 1
        status = self._submit(self._handle, self._call_at, None if waits else self._work_at)
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
        """Finish what nobody has waited for, from the first on."""
        for work in list(self._pending.values()):
            if not work.has_ended():
                break
            work.finish()
        forget_dropped()

    def _closed(self, operation: str) -> DdprunError:
        return error(
            ABORTED,
            f"{operation}: the process group was destroyed or aborted",
            operation=operation,
            rank=self.rank,
        )

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
            with self._ends:
                status = library().ddprun_group_completion_fd(
                    self._handle, ctypes.byref(descriptor)
                )
            if status != 0:
                raise last_error("get_future")
            self._descriptor = descriptor.value
        waiter.watch(self, self._descriptor)

    def allocate(self, size: int) -> tuple[int, int]:
        """Return the address and the handle of memory that the ranks of a host share."""
        data, memory = ctypes.c_void_p(), ctypes.c_void_p()
        with self._lock:
            if self._handle is None:
                raise self._closed("allocate")
            status = library().ddprun_allocate(
                self._handle, size, ctypes.byref(data), ctypes.byref(memory)
            )
        if status != 0:
            raise last_error("allocate")
        return data.value or 0, memory.value or 0

    def transport(self) -> str:
        """Return the transport between the ranks: shm, cpu, gloo or self."""
        with self._ends:
            if self._handle is None:
                return "closed"
            return str(library().ddprun_backend(self._handle).decode())

    def abort(self) -> None:
        """End all operations of this rank at once, from any thread."""
        with self._ends:
            if self._handle is not None and os.getpid() == self.pid:
                library().ddprun_group_abort(self._handle)

    def complete(self, until: float) -> None:
        """At exit, complete what is under way, if it ends in time, and end all else."""
        with self._ends:
            if self._handle is None or os.getpid() != self.pid:
                return
            if self._is_left(until):
                if library().ddprun_group_shutdown(self._handle, left_ms(until)) != 0:
                    warn(self.rank)
            else:
                library().ddprun_group_abort(self._handle)
                warn(self.rank)

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
            handle = self._handle
            if handle is None or os.getpid() != self.pid:
                self._handle = None
                return
            library().ddprun_group_shutdown(handle, self.timeout_ms)
            with self._lock, self._ends:
                self._handle = None
            self.finish_ended()
            waiter.drop(self._descriptor)
            library().ddprun_group_destroy(handle)
        dropped = take_dropped()  # By the store's functions.
        if dropped is not None:
            raise dropped
