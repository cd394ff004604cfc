"""The exceptions of the backend: both torch's DistBackendError and ddprun's own."""

from __future__ import annotations

import ctypes
from typing import Any

import torch.distributed as dist

from .. import _c_api
from .._c_api import BAD_ARGUMENT, MISSING_MAX, TIMED_OUT, ErrorInfo
from .._core import last_message
from .._errors import BY_STATUS, Error, restored
from .._library import foreign, library

# torch 1.13 has no class of its own for this.
_Base: Any = getattr(dist, "DistBackendError", type("DistBackendError", (), {}))

_NAMES = (
    "bad_argument",
    "bad_environment",
    "unreachable",
    "timed_out",
    "peer_lost",
    "mismatch",
    "aborted",
    "unsupported",
    "system",
    "corrupt",
    "membership_changed",
    "state_lost",
    "wrong_result",
)
_KINDS: dict[int, str] = {getattr(_c_api, name.upper()): name for name in _NAMES}


class DdprunError(_Base, Error):
    """An operation of the backend failed.

    After any kind but bad_argument and unsupported the group is unusable.

    Also an instance of the class of the package for its kind, such as :class:`ddprun.TimedOut`.

    kind: the kind of failure, such as "timed_out" or "peer_lost".
    rank, host: of the rank that raises; rank in the job.
    operation: what failed.
    peer: the rank that caused the failure, -1 if unknown.
    missing: the ranks that had not called when a deadline passed.
    """

    def __init__(self, text: str, *, kind: str, missing: tuple[int, ...] = (), **more: Any) -> None:
        Error.__init__(self, text, **more)
        self.kind = kind
        self.missing = missing

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.kind, self.args), self.__dict__


def _class_of(status: int) -> type[DdprunError]:
    base = BY_STATUS.get(status)
    return type(base.__name__, (DdprunError, base), {}) if base is not None else DdprunError


_CLASSES: dict[int, type[DdprunError]] = {status: _class_of(status) for status in _KINDS}


def _restored(kind: str, arguments: tuple[Any, ...]) -> BaseException:
    status = {name: status for status, name in _KINDS.items()}.get(kind, 0)
    return restored(_CLASSES.get(status, DdprunError), arguments)


def error(status: int, text: str, *, missing: tuple[int, ...] = (), **more: Any) -> DdprunError:
    """Make the exception for a status of the C interface."""
    chosen = _CLASSES.get(status, DdprunError)
    return chosen(text, kind=_KINDS.get(status, "internal"), missing=missing, **more)


def bad_argument(text: str, operation: str, rank: int) -> DdprunError:
    """Make the exception for a call that violates its contract: nothing was communicated."""
    return error(BAD_ARGUMENT, f"{operation}: {text}", operation=operation, rank=rank)


def new_info() -> ErrorInfo:
    """Return an empty ``ddprun_error_info``."""
    info = ErrorInfo()
    info.size = ctypes.sizeof(ErrorInfo)
    return info


def error_of(info: ErrorInfo, operation: str = "") -> DdprunError:
    """Make the exception that `info` describes."""
    text = info.message.decode(errors="replace")
    if info.status == TIMED_OUT:
        text += " (the timeout passed)"  # Programs for other backends search for "timeout".
    return error(
        info.status,
        text,
        missing=tuple(info.missing[: min(info.missing_count, MISSING_MAX)]),
        rank=info.rank,
        host=info.host.decode(errors="replace"),
        operation=info.operation.decode(errors="replace") or operation,
        peer=info.peer,
    )


def last_error(operation: str = "") -> DdprunError:
    """Make the exception for the last call of this thread, which failed."""
    last_message()  # Raises for a library that is not of this release.
    info = new_info()
    if library().ddprun_last_error_info(ctypes.byref(info)) != 0:
        raise foreign()
    return error_of(info, operation)
