"""Functions of the program that the library calls; one that was cut short counts as failed.

An exception that reaches ctypes is printed, and the library gets any number instead of a result. A
signal that arrives while the library waits is such a case: Python calls the handler when the next
function begins, before its first statement. So results go through memory that means "failed" until
the function has ended (ddprun/c/c_functions.h), and an exception that ctypes drops is kept for the
caller of the library.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from typing import Any, Callable

from ._c_api import NOT_ENDED
from ._c_api import Functions as ProgramFunctions
from ._errors import Error
from ._library import library

__all__ = ["NOT_ENDED", "Functions", "not_ended", "take_dropped"]

_TYPES: dict[str, Any] = dict(ProgramFunctions._fields_)
_IS_LAST = ("body", "between")  # Their last argument is the place for the result.


class _Dropped(threading.local):
    """One thread's exception. It goes with the thread, whose number the system uses again."""

    exception: BaseException | None = None


_dropped = _Dropped()


def _entry(function: Callable[..., int], at: int) -> Callable[..., int]:
    """Return a function that writes the result of `function` to the address it is given."""

    def enter(*arguments: Any) -> int:
        place = arguments[at]
        others = arguments[:at] if at else arguments[1:]
        ctypes.c_int32.from_address(place).value = function(*others)
        return 0

    return enter


_CODE = _entry(int, 0).__code__


def _is_ours(unraisable: Any) -> bool:
    trace = unraisable.exc_traceback
    return trace is not None and trace.tb_frame.f_code is _CODE


def _is_pythons_thread() -> bool:
    me = threading.get_ident()
    return any(thread.ident == me for thread in threading.enumerate())


def _keep_what_ctypes_drops() -> None:
    before = sys.unraisablehook
    if getattr(before, "is_of_ddprun", False):
        return

    def hook(unraisable: Any) -> None:
        is_ours = _is_ours(unraisable)
        if is_ours and _dropped.exception is None:
            _dropped.exception = unraisable.exc_value
        # A thread of the library has no caller in Python to raise it in.
        if not is_ours or not _is_pythons_thread():
            before(unraisable)

    hook.is_of_ddprun = True  # type: ignore[attr-defined]
    sys.unraisablehook = hook


class Functions:
    """Functions of the program, to be kept as long as the library may call them.

    Each returns its status. ``of(name)`` and `user` are what the library is given.
    """

    def __init__(self, **functions: Callable[..., int]) -> None:
        _keep_what_ctypes_drops()
        self._own = ProgramFunctions(ctypes.sizeof(ProgramFunctions))
        for name, function in functions.items():
            at = -1 if name in _IS_LAST else 0
            setattr(self._own, name, _TYPES[name](_entry(function, at)))
        self._given = library().ddprun_functions_with_results().contents
        self.user = ctypes.addressof(self._own)

    def of(self, name: str) -> Any:
        """Return the library's function that calls the one of this name, given `user`."""
        return getattr(self._given, name)


def take_dropped() -> BaseException | None:
    """Return what ctypes has dropped in this thread since the last call of this."""
    dropped, _dropped.exception = _dropped.exception, None
    return dropped


def not_ended() -> Error:
    """Return the exception for NOT_ENDED without a known cause."""
    return Error("a function of the program did not run to its end; Python has printed why")
