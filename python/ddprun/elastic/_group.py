"""The ranks of a round, as one step has them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from .._arguments import number
from .._core import Handle, Work
from .._errors import BadArgument
from .._group import ProcessGroup
from .._library import library
from ._errors import MembershipChanged, check


def _keep(_handle: int) -> None:
    """Destroy nothing: the handle is the library's."""


class StepWork(Work):
    """An operation of a step's group."""

    def __init__(self, handle: int, lent: Any, group: StepGroup, operation: str) -> None:
        super().__init__(handle, lent, group.rank, operation)
        self._group = group

    def _settle(self, status: int, operation: str) -> None:
        check(status, operation, self._rank, self._group)


class StepGroup(ProcessGroup):
    """A group that ends with its step, and whose errors may be MembershipChanged.

    Also a part of such a group, by :meth:`split`.
    """

    _ends_at_exit = False  # It ends with its step, or with the process.

    def __init__(
        self,
        handle: int,
        may_change: bool,
        step: int | None = None,
        whole: StepGroup | None = None,
    ) -> None:
        Handle.__init__(self, handle, library().ddprun_group_destroy if whole else _keep)
        self._step = step  # The library's; None between steps.
        self._whole = whole  # None: this is the whole group, and the library's.
        self._parts: list[StepGroup] = []
        self._rank = int(library().ddprun_rank(handle))
        self._may_change = may_change
        self._lost: MembershipChanged | None = None  # What was raised.

    def _started(self, handle: int, lent: Any, operation: str) -> Work:
        return StepWork(handle, lent, self, operation)

    def split(self, color: int, key: int = 0) -> ProcessGroup | None:
        """Form a group of the ranks that pass the same `color`, ordered by `key`.

        All ranks call it. A rank that passes a negative color gets None. The part ends with the
        step, too.
        """
        part = ctypes.c_void_p()
        self._call("group_split", number(color, "color"), number(key, "key"), ctypes.byref(part))
        if part.value is None:
            return None
        self._parts.append(StepGroup(part.value, self._may_change, self._step, self))
        return self._parts[-1]

    def shrink(self, lost: Sequence[int] = (), patience: float | None = None) -> ProcessGroup:
        """Refuse: the job itself goes on with the ranks that are left."""
        raise BadArgument("the ranks of a step are the job's, which leaves lost ones out itself")

    def close(self) -> None:
        """Leave a part; the group of a step ends with it, and is refused."""
        if self._whole is None:
            raise BadArgument("the group of a step ends with it, and must not be closed")
        self._end()

    def _end(self) -> None:
        while self._parts:
            self._parts.pop()._end()
        self._destroy()

    def _report(self, error: MembershipChanged) -> None:
        """Remember what is raised, for the step."""
        self._lost = error
        if self._whole is not None:
            self._whole._report(error)

    def _live(self) -> int:
        if not self._finalizer.alive:
            raise BadArgument("this group has ended with its step; use that of the present step")
        if self._step is not None:
            library().ddprun_step_group(self._step)  # Marks the computed shard as complete.
        return super()._live()

    def _settle(self, status: int, operation: str) -> None:
        check(status, operation, self._rank, self)
