"""What ends a step, and how statuses of the C interface become exceptions in it."""

from __future__ import annotations

from typing import Any

from .. import _core
from .._c_api import ABORTED, MEMBERSHIP_CHANGED, PEER_LOST, UNREACHABLE
from .._errors import BY_STATUS, Error, restored
from .._library import library

# The kinds of failure that a lost rank may cause.
_MAY_BE_A_LOST_RANK = frozenset((UNREACHABLE, PEER_LOST, ABORTED, MEMBERSHIP_CHANGED))
_OTHERS_OWN = -1  # The result for an exception that is not the library's.


class MembershipChanged(BaseException):
    """The ranks of this step are no longer those of the job: the step is not committed.

    Raised by operations of ``step.group``, by sums, and by ``commit()``. :meth:`Job.run` catches
    it, joins the next round and calls the body again for the same step. Like
    :class:`asyncio.CancelledError` it does not derive from :class:`Exception`, so that ``except
    Exception`` in a body does not catch it; ``finally`` and ``with`` work as always. Code that
    catches it nevertheless should raise it again: every further operation of the step raises it,
    too, ``commit()`` refuses the step, and the step runs again, with a RuntimeWarning.

    rank, host, operation, peer: as of :class:`ddprun.Error`.
    """

    def __init__(
        self, text: str, *, status: int, rank: int, host: str, operation: str, peer: int
    ) -> None:
        super().__init__(text)
        self.status = status
        self.rank = rank
        self.host = host
        self.operation = operation
        self.peer = peer

    def __reduce__(self) -> tuple[Any, ...]:
        return restored, (type(self), self.args), self.__dict__

    def as_error(self) -> Error:
        """Return the exception for a job that gets no further round."""
        kind = BY_STATUS.get(self.status, Error)
        return kind(
            str(self), rank=self.rank, host=self.host, operation=self.operation, peer=self.peer
        )


def membership_changed(status: int, operation: str, rank: int) -> MembershipChanged:
    """Make the exception for the last call of this thread, which failed with `status`."""
    return MembershipChanged(
        _core.last_message(),
        status=status,
        rank=rank,
        host=_core.host_name(),
        operation=operation,
        peer=library().ddprun_last_error_peer(),
    )


def check(status: int, operation: str, rank: int, group: Any = None) -> None:
    """Raise for `status`; MembershipChanged if that may be the reason, in the step of `group`."""
    if status in _MAY_BE_A_LOST_RANK and getattr(group, "_may_change", False):
        error = membership_changed(status, operation, rank)
        group._report(error)
        raise error
    _core.check(status, operation, rank)


def status_of(error: BaseException) -> int:
    """Return what a function of the program returns to the library for its exception."""
    if isinstance(error, MembershipChanged):
        return error.status
    for status, kind in BY_STATUS.items():
        if isinstance(error, kind):
            return status
    return _OTHERS_OWN
