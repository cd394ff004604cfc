"""Operations under way, as torch's Work and Future, and the thread that completes futures."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Callable, Protocol

import torch

from .._c_api import TIMED_OUT
from .._core import destroy_in, own_locks, wait_for
from .._library import library
from . import _generations
from ._arguments import milliseconds
from ._errors import error, error_of, last_error, new_info
from ._generations import KEEPS_WORKS


class Watched(Protocol):
    """What the waiter needs of an engine."""

    def finish_ended(self) -> None:
        """Finish all works that have ended."""


class Waiter:
    """Waits for operations of the watched engines to end, and finishes them."""

    def __init__(self) -> None:
        own_locks(self)
        self._engines: dict[int, Watched] = {}  # By the descriptor that becomes readable at an end.
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._wake = (-1, -1)
        self._stops = False

    def make_locks(self) -> None:
        """Make the lock; see _core.own_locks()."""
        self._lock = threading.Lock()

    def watch(self, engine: Watched, descriptor: int) -> None:
        """Finish the engine's works as they end, from now on."""
        with self._lock:
            if self._pid != os.getpid():  # The thread stayed in the parent of a fork.
                self._start()
            is_new = self._engines.get(descriptor) is not engine
            self._engines[descriptor] = engine
        if is_new:
            self._poke()

    def is_this_thread(self) -> bool:
        """Return whether the caller is a callback of a future that this thread has completed."""
        return self._thread is not None and self._thread is threading.current_thread()

    def _start(self) -> None:
        self._engines = {}
        self._stops = False
        self._pid = os.getpid()
        self._wake = os.pipe()
        self._thread = threading.Thread(target=self._run, name="ddprun-waiter", daemon=True)
        self._thread.start()

    def drop(self, descriptor: int) -> None:
        """Forget an engine."""
        with self._lock:
            known = self._engines.pop(descriptor, None)
        if known is not None and self._pid == os.getpid():
            self._poke()

    def stop(self) -> None:
        """End the thread: none may be inside torch when the interpreter ends."""
        thread = self._thread
        if thread is None or self._pid != os.getpid():
            return
        self._stops = True
        self._poke()
        if thread is not threading.current_thread():
            thread.join()
        self._thread = None
        self._pid = 0

    def _poke(self) -> None:
        os.write(self._wake[1], b"x")

    def _run(self) -> None:
        while not self._stops:
            with self._lock:
                descriptors = list(self._engines)
            poll = select.poll()
            for descriptor in (self._wake[0], *descriptors):
                poll.register(descriptor, select.POLLIN)
            # An operation that ended before it was watched has been noted in its descriptor.
            for descriptor, _ in poll.poll():
                if descriptor == self._wake[0]:
                    os.read(descriptor, 4096)
                    continue
                engine = self._drained(descriptor)
                if engine is not None:
                    engine.finish_ended()

    def _drained(self, descriptor: int) -> Watched | None:
        """Reset a readable descriptor; return its engine, which may have changed since the poll."""
        with self._lock:
            engine = self._engines.get(descriptor)
            if engine is not None:
                with contextlib.suppress(BlockingIOError):
                    os.read(descriptor, 8)
            return engine


waiter = Waiter()


WorkBase: Any = torch._C._distributed_c10d.Work

_held: dict[int, Any] = {}


def hold(work: Any) -> None:
    """Keep a work until it was waited for, for a torch that does not."""
    if not KEEPS_WORKS:
        _held[id(work)] = work


def release(work: Any) -> None:
    """Keep it no longer."""
    _held.pop(id(work), None)
    _dropped.pop(id(work), None)


# References to a work that the program has dropped: one of `_held`, and three of forget_dropped().
_ALONE = 4
# torch's C++ code may still wait for dropped works, but not for so many.
_DROPPED_MAX = 64

_dropped: dict[int, bool] = {}  # Finished and dropped by the program, the oldest first.


def forget_dropped() -> None:
    """Release finished works that the program has dropped without a wait: fire and forget.

    Their tensors go when this is called again, they themselves when as many others have followed.
    """
    if KEEPS_WORKS or not _held:
        return
    for work in list(_held.values()):
        if not work.is_over() or sys.getrefcount(work) > _ALONE:
            _dropped.pop(id(work), None)
        elif id(work) in _dropped:
            work.drop_result()
        else:
            _dropped[id(work)] = True
    for oldest in list(_dropped)[: max(0, len(_dropped) - _DROPPED_MAX)]:
        _held.pop(oldest, None)
        _dropped.pop(oldest, None)


class Issuer(Protocol):
    """What a work needs of the engine that has issued it."""

    rank: int
    _pid: int

    def forget(self, work: OperationWork) -> None:
        """Keep a finished work no longer."""

    def watch(self) -> None:
        """Have works finished when they end, by the waiter's thread."""


class OperationWork(WorkBase):
    """One operation; torch's names. The engine keeps it until it is finished."""

    def __init__(
        self,
        engine: Issuer,
        handle: int,
        operation: str,
        result: Sequence[Any],
        keep: Any,
        after: Callable[[], None] | None,
        source: int,
    ) -> None:
        super().__init__()
        self._engine = engine
        self._handle = handle
        self._operation = operation
        self._result = list(result)
        self._keep = keep
        self._after = after
        self._source = source
        self.make_locks()
        self._finished = False
        self._error: Exception | None = None
        self._trigger: Any = None  # The future that finish() sets.
        self._future: Any = None  # Follows it, with the result or the error.
        _generations.note(self)
        hold(self)

    def make_locks(self) -> None:
        """Make the lock; see _core.own_locks()."""
        self._lock = threading.Lock()

    def finish(self) -> None:
        """Take over the outcome of an operation that has ended; once, from whichever thread."""
        with self._lock:
            if self._finished:
                return
            _, status = wait_for(self._handle, None)
            if status != 0:
                info = new_info()
                library().ddprun_work_error(self._handle, ctypes.byref(info))
                failed = info.status != 0
                self._error = (
                    error_of(info, self._operation) if failed else last_error(self._operation)
                )
            elif self._after is not None:
                try:
                    self._after()
                except Exception as wrong:  # While using the tensor: wait() raises it.
                    self._error = wrong
            self._finished = True
            self._keep = self._after = None
            trigger = self._trigger
        self._engine.forget(self)
        if trigger is not None:
            trigger.set_result(None)
            release(self)

    def has_ended(self) -> bool:
        """Return whether finish() would not wait."""
        return self._finished or bool(library().ddprun_work_done(self._handle))

    def _outcome(self, _: Any = None) -> list[Any]:
        if self._error is not None:
            raise self._error
        return self._result

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the end, at most `timeout` if that is given, and raise what went wrong."""
        if not self._finished:
            limit = milliseconds(timeout)
            has_ended, _ = wait_for(self._handle, limit or None)  # finish() finds the error.
            if not has_ended:
                raise self._late(limit)
            self.finish()
        release(self)
        self._outcome()
        return True

    def _late(self, limit_ms: int) -> Exception:
        return error(
            TIMED_OUT,
            f"{self._operation} did not end within the timeout of {limit_ms} ms given to wait(); "
            "it continues",
            operation=self._operation,
            rank=self._engine.rank,
        )

    def get_future(self) -> Any:
        """Return a future of the list of output tensors."""
        with self._lock:
            if self._future is None:
                self._trigger = torch.futures.Future()
                # torch's C++ code takes only what a callback raises for an error.
                self._future = self._trigger.then(self._outcome)
                is_late = self._finished
            else:
                return self._future
        if is_late:
            self._trigger.set_result(None)
            release(self)
        elif waiter.is_this_thread() or self.has_ended():
            # A callback may wait for the future that it requests; no other thread completes it.
            self.finish()
        else:
            self._engine.watch()
            if self.has_ended():  # Perhaps before the first watch, which notices later ends only.
                self.finish()
        return self._future

    def is_over(self) -> bool:
        """Return whether its outcome has been taken over."""
        return self._finished

    def drop_result(self) -> None:
        """Keep its tensors no longer: the program has no reference to the work."""
        self._result = []

    def is_completed(self) -> bool:
        """Return whether wait() would not block."""
        return self.has_ended()

    def is_success(self) -> bool:
        """Return whether the operation has ended well."""
        return self.exception() is None and self._finished

    def exception(self) -> Exception | None:
        """Return what wait() would raise; None before the end and on success."""
        if self.has_ended():
            self.finish()
        return self._error

    def synchronize(self) -> None:
        """Wait, as wait() does."""
        self.wait()

    def result(self) -> list[Any]:
        """Return the output tensors, after the end."""
        self.wait()
        return self._result

    def source_rank(self) -> int:
        """Return the rank from which a message came."""
        return self._source

    _source_rank = source_rank

    def __del__(self) -> None:
        if self._finished:
            destroy_in(self._engine._pid, library().ddprun_work_destroy, self._handle)


class EndedWork(WorkBase):
    """What a call returns that was carried out at once, or consists of several operations."""

    def __init__(self, result: Sequence[Any] = (), works: Sequence[Any] = ()) -> None:
        super().__init__()
        self._result = list(result)
        self._works = list(works)
        self._future: Any = None
        _generations.note(self)
        hold(self)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for all parts."""
        release(self)
        for work in self._works:
            work.wait(timeout)
        return True

    def get_future(self) -> Any:
        """Return a future of the list of output tensors."""
        if self._future is None:
            parts = torch.futures.collect_all([work.get_future() for work in self._works])
            self._future = parts.then(self._outcome)
        return self._future

    def _outcome(self, parts: Any) -> list[Any]:
        for part in parts.value():
            part.value()  # Raises the error of a part.
        return self._result

    def is_over(self) -> bool:
        """Return whether the outcomes of all parts have been taken over."""
        return all(work.is_over() for work in self._works)

    def drop_result(self) -> None:
        """Keep its tensors no longer, nor those of its parts."""
        self._result = []
        for work in self._works:
            work.drop_result()

    def is_completed(self) -> bool:
        """Return whether wait() would not block."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Return whether all parts have ended well."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> Exception | None:
        """Return the first error of a part."""
        return next((work.exception() for work in self._works if work.exception()), None)

    def synchronize(self) -> None:
        """Wait, as wait() does."""
        self.wait()

    def result(self) -> list[Any]:
        """Return the output tensors."""
        self.wait()
        return self._result
