"""What everything that the library creates has in common: its calls, its life, and its end.

A :class:`Handle` is such a thing, and :class:`Work` an operation under way. Handles live until they
are closed, collected by Python, or released in order at the end of the process; not in a child of
fork(), which lacks the threads behind them.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import functools
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Callable, Protocol

from ._arguments import milliseconds
from ._errors import BY_STATUS, BadArgument, Error, TimedOut
from ._library import foreign, is_foreign, library

# When Python's exit handlers run, it is unknown whether the program succeeds or ends by
# sys.exit(1). In the latter case its peers may never do their part of the operations in progress.
EXIT_LIMIT_S = 10.0


# Locks. In a child of fork() a lock may be held by a thread that the child lacks.


class _LockOwner(Protocol):
    def make_locks(self) -> None:
        """Make the locks, at first or anew."""


_lock_owners: weakref.WeakSet[Any] = weakref.WeakSet()


def own_locks(owner: _LockOwner) -> None:
    """Make the owner's locks, and in a child of this process others."""
    owner.make_locks()
    _lock_owners.add(owner)


def _make_locks_anew() -> None:
    for owner in list(_lock_owners):
        owner.make_locks()


os.register_at_fork(after_in_child=_make_locks_anew)


# Errors.


def host_name() -> str:
    """Return the name of this rank's host, as its errors have it."""
    return os.environ.get("DDPRUN_HOST") or socket.gethostname()


def last_message() -> str:
    """Return the message of this thread's last failed call; raise for a foreign library."""
    message = str(library().ddprun_last_error().decode(errors="replace"))
    if is_foreign(message):
        raise foreign()
    return message


def check(status: int, operation: str, rank: int = -1) -> None:
    """Raise the exception for `status`, which this thread's last call has returned."""
    if status == 0:
        return
    raise BY_STATUS.get(status, Error)(
        last_message(),
        rank=rank,
        host=host_name(),
        operation=operation,
        peer=library().ddprun_last_error_peer(),
    )


# Handles.


def create(name: str, *arguments: Any, operation: str, rank: int = -1) -> int:
    """Call a function of the library whose last argument receives a new handle; return that."""
    handle = ctypes.c_void_p()
    status = getattr(library(), "ddprun_" + name)(*arguments, ctypes.byref(handle))
    check(status, operation, rank)
    assert handle.value is not None
    return handle.value


def destroy_in(pid: int, destroy: Any, handle: int) -> None:
    """Destroy a handle, but not in a child of fork() of the process that has created it."""
    if os.getpid() == pid:
        destroy(handle)


def shared_memory(address: int, size: int, handle: int) -> ctypes.Array[ctypes.c_char]:
    """Return memory that the ranks of a host share; it lives as long as anything refers to it."""
    memory = (ctypes.c_char * size).from_address(address)
    destroy = library().ddprun_memory_destroy
    # At exit the system frees it, even if it is still read.
    weakref.finalize(memory, destroy_in, os.getpid(), destroy, handle).atexit = False
    return memory


class Handle:
    """What the library has created, until it is released: explicitly, by Python, or at exit."""

    _what = "handle"  # Its name in messages.
    _rank = -1  # For errors.
    _is_last = False  # At exit, released after the others.
    _ends_at_exit = True  # False: not released at exit, as it ends in another way.
    _is_memory = False  # It is only memory: usable in a child of fork(), too.

    def __init__(self, handle: int, destroy: Any) -> None:
        self._handle = handle
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, destroy_in, self._pid, destroy, handle)
        self._finalizer.atexit = False  # _leave_all() calls it.
        self._users: list[int] = []  # Threads in calls with the handle.
        self._change = threading.Condition()  # Of `_users`.
        self._free: Callable[[], None] | None = None  # Called by the last user.
        self._is_closed = False
        if self._ends_at_exit:
            _open.add(self)

    def _destroy(self) -> None:
        """Free the handle; if calls with it are under way, the last of them does so."""
        # A direct call of the finalizer would do nothing after Python's own exit handlers.
        found = self._finalizer.detach()
        if found is None:
            return
        if os.getpid() != self._pid:  # A thread of the parent may hold a lock there.
            self._is_closed = True
            return
        _, destroy, arguments, _ = found
        with self._change:
            self._is_closed = True
            self._free = functools.partial(destroy, *arguments)
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

    def _enter(self) -> int:
        """Return the handle, which lives until :meth:`_leave` is called."""
        # Without a lock, which would cost half a call: a thread that closes sets `_is_closed`
        # and then reads the users, a thread that enters does both in the other order.
        handle = self._live()
        self._users.append(threading.get_ident())
        if self._is_closed:
            self._leave()
            raise self._closed()
        return handle

    def _leave(self) -> None:
        self._users.remove(threading.get_ident())
        if self._is_closed:
            with self._change:
                self._change.notify_all()
            self._free_unused()

    @contextlib.contextmanager
    def _use(self) -> Iterator[int]:
        handle = self._enter()
        try:
            yield handle
        finally:
            self._leave()

    def _closed(self) -> Error:
        return BadArgument(f"the {self._what} is closed")

    def _live(self) -> int:
        """Return the handle if it can be used in this process."""
        if self._is_closed:
            raise self._closed()
        if not self._is_memory and os.getpid() != self._pid:
            raise BadArgument(
                f"the {self._what} belongs to process {self._pid}, from which this one was forked: "
                "call ddprun.init() in the processes that use it"
            )
        return self._handle

    def _call(
        self, name: str, *arguments: Any, operation: str = "", group: Handle | None = None
    ) -> None:
        """Call a function of the library with this handle, and raise what it has failed with.

        group: its handle is the next argument, and the error is one of the group.
        """
        handle = self._enter()
        try:
            function = getattr(library(), "ddprun_" + name)
            if group is None:
                self._settle(function(handle, *arguments), operation or name)
            else:
                with group._use() as ranks:
                    group._settle(function(handle, ranks, *arguments), operation or name)
        finally:
            self._leave()

    def _ask(self, name: str) -> Any:
        """Return the result of a function of the library that cannot fail."""
        with self._use() as handle:
            return getattr(library(), "ddprun_" + name)(handle)

    def _settle(self, status: int, operation: str) -> None:
        """Raise what a call with this handle has failed with."""
        check(status, operation, self._rank)


# Works.


def wait_for(work: int, limit_ms: int | None) -> tuple[bool, int]:
    """Wait for an operation, at most `limit_ms`; return whether it has ended, and its status."""
    if limit_ms is None:
        return True, library().ddprun_work_wait(work)
    done = ctypes.c_int(1)
    status = library().ddprun_work_wait_for(work, limit_ms, ctypes.byref(done))
    return bool(done.value), status


class Work(Handle):
    """An operation under way; its arrays must be left alone until :meth:`wait` has returned.

    The work keeps the arrays in memory until then. A work that is dropped is waited for. Usable
    from any thread, by one at a time.
    """

    _what = "work"

    def __init__(self, handle: int, lent: Any, rank: int, operation: str) -> None:
        super().__init__(handle, library().ddprun_work_destroy)
        self._lent: Any = lent
        self._rank = rank
        self._operation = operation

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the end and raise what went wrong.

        timeout: in seconds. When it has passed, :class:`ddprun.TimedOut` is raised and the
            operation continues: the group remains usable, and this can be called again. None waits
            for the end, of which the time limit of the operation itself is the latest.
        """
        with self._use() as work:
            has_ended, status = wait_for(work, None if timeout is None else milliseconds(timeout))
            if has_ended:
                self._lent = None
                self._settle(status, self._operation)
                return
        raise TimedOut(
            f"{self._operation} has not ended within {timeout} s given to wait(); it continues",
            rank=self._rank,
            host=host_name(),
            operation=self._operation,
        )

    def done(self) -> bool:
        """Return whether :meth:`wait` would return, or raise, at once."""
        return bool(self._ask("work_done"))

    def exception(self) -> Error | None:
        """Return what :meth:`wait` would raise; None before the end, and after success."""
        if not self.done():
            return None
        try:
            self.wait()
        except Error as error:
            return error
        return None

    def times(self) -> tuple[float, float] | None:
        """Return when the operation started, as time.monotonic(), and how many seconds it took.

        None before the end. It starts when those before it in the group have ended.
        """
        if not self.done():
            return None
        started, took = ctypes.c_int64(), ctypes.c_int64()
        with self._use() as work:
            status = library().ddprun_work_times(work, ctypes.byref(started), ctypes.byref(took))
            check(status, "times", self._rank)
        return started.value / 1e9, took.value / 1e9


# The end of the process.


class Leaver(Protocol):
    """What is left in order at the end of the process."""

    _pid: int
    _is_last: bool

    def _complete(self, until: float) -> None:
        """Complete what is under way, if it ends in time, and end all else."""

    def _destroy(self) -> None:
        """Leave."""


def complete_group(group: int, until: float, rank: int) -> None:
    """At exit, complete operations of a group, if they end in time, and abort the others."""
    if library().ddprun_group_shutdown(group, left_ms(until)) != 0:
        warn_of_abort(rank)


def left_ms(until: float) -> int:
    """Return the milliseconds until then, 0 if that is past."""
    return max(0, round((until - time.monotonic()) * 1000))


def warn_of_abort(rank: int) -> None:
    """Print that operations of this rank were aborted at its end."""
    print(
        f"ddprun: warning: rank {rank} has ended with operations under way, which other ranks did "
        f"not complete within {EXIT_LIMIT_S:g} s; they are aborted",
        file=sys.stderr,
        flush=True,
    )


def leave(leavers: Iterable[Leaver]) -> None:
    """Leave in order. After an uncaught exception leave at once: peers then see a lost rank."""
    if getattr(sys, "last_value", None) is not None:
        return
    own = [leaver for leaver in leavers if leaver._pid == os.getpid()]
    own.sort(key=lambda leaver: leaver._is_last)  # Works first: they are completed.
    until = time.monotonic() + EXIT_LIMIT_S
    for leaver in own:
        leaver._complete(until)
    for leaver in own:
        leaver._destroy()


_open: weakref.WeakSet[Handle] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    leave(list(_open))


# A crash of a worker: its stacks of C++ and of Python, for the launcher's verdict.

_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)


def _have_handlers() -> bool:
    """Return whether the program, or a library of it such as a JVM, handles one of the signals."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return True
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
    mask = int(caught.split()[1], 16)
    return any(mask >> (each - 1) & 1 for each in _SIGNALS)


def report_crashes() -> None:
    """Report crashes of a worker, unless DDPRUN_CRASH_REPORT is 0. Before its group is made.

    The library writes its report and then calls Python's faulthandler, which prints where Python
    was.
    """
    variables = os.environ
    if not variables.get("TORCHELASTIC_ERROR_FILE") or variables.get("DDPRUN_CRASH_REPORT") == "0":
        return
    if not faulthandler.is_enabled() and not _have_handlers():
        with contextlib.suppress(Exception):  # Standard error may be missing.
            faulthandler.enable()
    if faulthandler.is_enabled():
        library().ddprun_install_crash_report_before()
    else:
        library().ddprun_install_crash_report()


def install_crash_report() -> None:
    """Let a crash (SIGSEGV, SIGABRT and the like) leave its stack for ddprun's verdict.

    :func:`ddprun.init` does this in workers; called first, it covers what crashes before.
    """
    library().ddprun_install_crash_report()
