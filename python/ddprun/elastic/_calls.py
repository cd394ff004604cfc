"""Functions of the program that a job calls."""

from __future__ import annotations

import ctypes
from typing import Any, Callable

from .._callbacks import NOT_ENDED, Functions, not_ended, take_dropped
from ._errors import MembershipChanged, status_of


class Calls:
    """Calls functions of the program for the library, and keeps what they raise.

    An exception cannot pass through the library. The library receives a status instead, by which
    it decides whether the round is over, and :meth:`take` returns the exception if the library
    passes on that status.
    """

    def __init__(self) -> None:
        self._raised: BaseException | None = None
        self._status = 0  # The function's result for the library.
        self._saved = b""  # Read by the library until its next call.

    def guard(self, function: Callable[..., Any], *arguments: Any) -> int:
        """Call it; return 0, or what stands for its exception."""
        if self._is_interrupted():
            return self._status  # For the library this is the end of the round.
        self._raised, self._status = None, 0
        try:
            function(*arguments)
        except BaseException as error:
            self._raised, self._status = error, status_of(error)
        return self._status

    def take(self, status: int) -> BaseException | None:
        """Return the exception that `status`, of a call of the library, stands for."""
        stands = self._is_interrupted() or (status != 0 and status == self._status)
        found = self._raised if stands else None
        self._raised, self._status = None, 0
        return not_ended() if found is None and status == NOT_ENDED else found

    def _is_interrupted(self) -> bool:
        """Whether the last exception is not one of the body's own, which a lost rank may cause."""
        dropped = take_dropped()
        if dropped is not None:
            self._raised, self._status = dropped, NOT_ENDED
        return self._status == NOT_ENDED or not isinstance(
            self._raised, (Exception, MembershipChanged, type(None))
        )

    def of_state(self, save: Callable[[], bytes], load: Callable[[bytes], None]) -> Functions:
        """Return the functions that the library calls to save state and to load it."""

        def put(state: Any, size: Any) -> None:
            self._saved = save()
            state[0] = ctypes.cast(ctypes.c_char_p(self._saved), ctypes.c_void_p).value
            size[0] = len(self._saved)

        def take(state: int | None, size: int) -> None:
            load(ctypes.string_at(state, size) if state else b"")

        def save_apart(state: Any, size: Any) -> int:
            # For a bundle of a step whose body has just raised, which is what counts.
            before = self._raised, self._status
            status = self.guard(put, state, size)
            if isinstance(before[0], Exception):
                self._raised, self._status = before
            return status

        return Functions(
            save=save_apart,
            load=lambda state, size: self.guard(take, state, size),
        )
