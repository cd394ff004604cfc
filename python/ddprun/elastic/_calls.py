"""Functions of the program that a job calls."""

from __future__ import annotations

import ctypes
from typing import Any, Callable

from .._elastic_structs import LOAD_STATE, SAVE_STATE
from ._errors import status_of


class Calls:
    """Calls functions of the program for the library, and keeps what they raise.

    An exception cannot pass through the library: it is told a status, by which it decides whether
    the round is over, and :meth:`take` returns the exception if it passes on that status.
    """

    def __init__(self) -> None:
        self._raised: BaseException | None = None
        self._status = 0  # What the library was told of it.
        self._saved = b""  # What it reads until its next call.

    def guard(self, function: Callable[..., Any], *arguments: Any) -> int:
        """Call it; return 0, or what stands for its exception."""
        if isinstance(self._raised, (KeyboardInterrupt, SystemExit)):
            return self._status  # The library has taken it for the end of the round.
        self._raised, self._status = None, 0
        try:
            function(*arguments)
        except BaseException as error:
            self._raised, self._status = error, status_of(error)
        return self._status

    def take(self, status: int) -> BaseException | None:
        """Return the exception that `status`, of a call of the library, stands for."""
        found = self._raised if status != 0 and status == self._status else None
        self._raised, self._status = None, 0
        return found

    def of_state(self, save: Callable[[], bytes], load: Callable[[bytes], None]) -> tuple[Any, Any]:
        """Return the functions that the library calls to save state and to load it."""

        def put(state: Any, size: Any) -> None:
            self._saved = save()
            state[0] = ctypes.cast(ctypes.c_char_p(self._saved), ctypes.c_void_p).value
            size[0] = len(self._saved)

        def take(state: int | None, size: int) -> None:
            load(ctypes.string_at(state, size) if state else b"")

        return (
            SAVE_STATE(lambda _, state, size: self.guard(put, state, size)),
            LOAD_STATE(lambda _, state, size: self.guard(take, state, size)),
        )
