"""The exceptions of the package, one for each kind of failure in ``ddprun/c_api.h``."""

from __future__ import annotations

from typing import Any

from . import _c_api


def restored(kind: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    """Return an exception without a call of its ``__init__``: pickle then sets its attributes."""
    base = OSError if issubclass(kind, OSError) else BaseException  # Has the memory's layout.
    found = base.__new__(kind, *arguments)
    found.args = arguments
    return found


class LibraryError(ImportError):
    """libddprun.so or the program ddprun is missing, or does not match this package."""


class Error(RuntimeError):
    """A call failed. After any error but BadArgument or Unsupported the group is unusable.

    rank: the rank that raises, -1 before ranks are known.
    host: the host of that rank.
    operation: the method that failed.
    peer: the rank that caused the failure, -1 if unknown.
    """

    def __init__(
        self, text: str, *, rank: int = -1, host: str = "", operation: str = "", peer: int = -1
    ) -> None:
        super().__init__(text)
        self.rank = rank
        self.host = host
        self.operation = operation
        self.peer = peer

    def __reduce__(self) -> tuple[Any, ...]:
        return restored, (type(self), self.args), self.__dict__


class BadArgument(Error, ValueError):
    """The call violates its contract; nothing was communicated."""


class BadEnvironment(Error):
    """RANK, WORLD_SIZE, MASTER_ADDR... are missing or contradict each other."""


class Unreachable(Error, ConnectionError):
    """The store or a peer cannot be reached."""


class TimedOut(Error, TimeoutError):
    """A deadline passed; the text names the ranks that are missing."""


class PeerLost(Error, ConnectionError):
    """A peer closed its connection or died."""


class Mismatch(Error):
    """Ranks disagree about shapes, counts, data types or the order of operations."""


class Aborted(Error):
    """The group was aborted, or an earlier operation failed."""


class Unsupported(Error):
    """The backend does not support the operation."""


class SystemFailure(Error, OSError):
    """A system call failed."""


class Corrupt(Error):
    """A file is torn or damaged."""


class WrongResult(Error):
    """A rank, this one or the one that is named, has computed something wrong."""


BY_STATUS: dict[int, type[Error]] = {
    _c_api.BAD_ARGUMENT: BadArgument,
    _c_api.BAD_ENVIRONMENT: BadEnvironment,
    _c_api.UNREACHABLE: Unreachable,
    _c_api.TIMED_OUT: TimedOut,
    _c_api.PEER_LOST: PeerLost,
    _c_api.MISMATCH: Mismatch,
    _c_api.ABORTED: Aborted,
    _c_api.UNSUPPORTED: Unsupported,
    _c_api.SYSTEM: SystemFailure,
    _c_api.CORRUPT: Corrupt,
    _c_api.WRONG_RESULT: WrongResult,
}


class RunError(RuntimeError):
    """A run that :func:`ddprun.launch` started has failed.

    verdict: what ``ddprun --error-file`` writes, see docs/verdict.md; empty if there is none.
    exit_code: that of ddprun.
    rank, host, fault: of the first cause; None where no worker was the cause.
    """

    def __init__(self, text: str, verdict: dict[str, Any], exit_code: int) -> None:
        super().__init__(text)
        cause = verdict.get("first_cause") or {}
        self.verdict = verdict
        self.exit_code = exit_code
        self.rank: int | None = cause.get("rank")
        self.host: str | None = cause.get("host")
        self.fault: str | None = cause.get("fault")

    def __reduce__(self) -> tuple[Any, ...]:
        return restored, (type(self), self.args), self.__dict__
