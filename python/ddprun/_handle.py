"""What the library has created: how long it lives, whichever threads use it, and until when."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any, Callable

from ._errors import BadArgument
from ._library import library


def _release(destroy: Any, handle: int, pid: int) -> None:
    """Destroy a handle, but not in a child of fork(), which lacks the threads behind it."""
    if os.getpid() == pid:
        destroy(handle)


# Whether a program ends well or by sys.exit(1) is not known when Python's exit handlers run; after
# the latter its peers may never do their part of what is under way.
EXIT_LIMIT_S = 10.0

_open: weakref.WeakSet[_Handle] = weakref.WeakSet()


class _Handle:
    """What the library created, until it is released: explicitly, by Python, or at exit."""

    _is_last = False  # Released after the others.

    def __init__(self, handle: int, destroy: Any) -> None:
        self._handle = handle
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, _release, destroy, handle, self._pid)
        self._finalizer.atexit = False  # _release_all() does that.
        self._users: list[int] = []  # Threads in calls with the handle.
        self._change = threading.Condition()  # Of `_users`.
        self._free: Callable[[], None] | None = None  # What the last user calls.
        self._is_closed = False
        _open.add(self)

    def _destroy(self) -> None:
        """Free the handle; if calls with it are under way, the last of them does so."""
        # Called itself, a finalizer does nothing once Python's own exit handlers have run.
        found = self._finalizer.detach()
        if found is None:
            return
        _, release, arguments, _ = found
        with self._change:
            self._is_closed = True
            self._free = functools.partial(release, *arguments)
        self._free_unused()

    def _complete(self, until: float) -> None:
        """At exit, complete what is under way, if it ends in time, and end all else."""

    def _others(self) -> bool:
        """Return whether other threads are in calls; this one may be: a signal's handler closes."""
        me = threading.get_ident()
        return any(user != me for user in list(self._users))

    def _free_unused(self) -> None:
        with self._change:
            free = self._free if not self._users else None
            if free is not None:
                self._free = None
        if free is not None:
            free()

    def _enter(self, what: str) -> int:
        """Return the handle, which lives until :meth:`_leave` is called."""
        # Without a lock, which would cost half a call: whoever closes first says so and then looks
        # at the users, whoever enters does both in the other order.
        handle = self._live(what)
        self._users.append(threading.get_ident())
        if self._is_closed:
            self._leave()
            raise BadArgument(f"the {what} is closed")
        return handle

    def _leave(self) -> None:
        self._users.remove(threading.get_ident())
        if self._is_closed:
            with self._change:
                self._change.notify_all()
            self._free_unused()

    @contextlib.contextmanager
    def _use(self, what: str) -> Iterator[int]:
        handle = self._enter(what)
        try:
            yield handle
        finally:
            self._leave()

    def _live(self, what: str) -> int:
        if self._is_closed:
            raise BadArgument(f"the {what} is closed")
        if os.getpid() != self._pid:
            raise BadArgument(
                f"the {what} belongs to process {self._pid}, from which this one was forked: "
                "call ddprun.init() in the processes that use it"
            )
        return self._handle


def shared_memory(address: int, size: int, handle: int) -> ctypes.Array[ctypes.c_char]:
    """Return memory that the ranks of a host share; it lives as long as anything refers to it."""
    memory = (ctypes.c_char * size).from_address(address)
    destroy = library().ddprun_memory_destroy
    # At exit the system takes it back, whatever still reads it.
    weakref.finalize(memory, _release, destroy, handle, os.getpid()).atexit = False
    return memory


def left_ms(until: float) -> int:
    """Return the milliseconds until then, 0 if that is past."""
    return max(0, round((until - time.monotonic()) * 1000))


def warn(rank: int) -> None:
    """Say that operations of this rank were aborted at its end."""
    print(
        f"ddprun: warning: rank {rank} has ended with operations under way, which other ranks did "
        f"not complete within {EXIT_LIMIT_S:g} s; they are aborted",
        file=sys.stderr,
        flush=True,
    )


@atexit.register
def _release_all() -> None:
    """Leave in order. After an uncaught exception leave at once: peers then see a lost rank."""
    if getattr(sys, "last_value", None) is None:
        own = [handle for handle in _open if handle._pid == os.getpid()]
        handles = sorted(own, key=lambda each: each._is_last)
        until = time.monotonic() + EXIT_LIMIT_S
        for handle in handles:
            handle._complete(until)
        for handle in handles:
            handle._destroy()  # Works first: they are completed.
