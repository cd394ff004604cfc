"""Operations under way."""

from __future__ import annotations

import ctypes
from typing import Any

from ._arguments import milliseconds
from ._errors import Error, TimedOut
from ._handle import _Handle
from ._library import library
from ._status import _check, _host


class Work(_Handle):
    """An operation under way; its arrays must be left alone until :meth:`wait` has returned.

    The work keeps the arrays in memory until then. A work that is dropped is waited for. Usable
    from any thread, by one at a time.
    """

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
        done = ctypes.c_int(1)
        with self._use("work") as work:
            if timeout is None:
                status = library().ddprun_work_wait(work)
            else:
                limit = milliseconds(timeout)
                status = library().ddprun_work_wait_for(work, limit, ctypes.byref(done))
            if done.value:
                self._lent = None
                self._settle(status)
                return
        raise TimedOut(
            f"{self._operation} has not ended within {timeout} s given to wait(); it continues",
            rank=self._rank,
            host=_host(),
            operation=self._operation,
        )

    def done(self) -> bool:
        """Return whether :meth:`wait` would return, or raise, at once."""
        with self._use("work") as work:
            return bool(library().ddprun_work_done(work))

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
        with self._use("work") as work:
            status = library().ddprun_work_times(work, ctypes.byref(started), ctypes.byref(took))
            _check(status, "times", self._rank)
        return started.value / 1e9, took.value / 1e9

    def _settle(self, status: int) -> None:
        _check(status, self._operation, self._rank)
