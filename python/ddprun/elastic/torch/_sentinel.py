"""Notices the end of a round while the program is in an operation of another library."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Callable

from ..._buffers import lend
from ..._library import library

_FOREVER_MS = 365 * 24 * 3600 * 1000


class Sentinel:
    """Calls ``then()`` in a thread of its own when the round of `group` is over.

    The thread waits for a message that no rank sends, in a part of the group that is for this only.
    Like every operation of the round, its receive ends once the agent reports that a rank is lost.
    """

    def __init__(self, group: Any, then: Callable[[], None]) -> None:
        part = ctypes.c_void_p()
        group._call("group_split", 0, group.rank, ctypes.byref(part))
        assert part.value is not None
        self._part = part.value
        self._next = (group.rank + 1) % group.world_size
        self._then = then
        self._is_closed = False
        self._thread = threading.Thread(target=self._wait, name="ddprun sentinel", daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        lent = lend(bytearray(1), writable=True)
        library().ddprun_recv(self._part, lent[0], self._next, _FOREVER_MS)
        if not self._is_closed:
            self._then()

    def close(self) -> None:
        """End it, and that of every other rank: to be called as the round is left."""
        if self._is_closed:
            return
        self._is_closed = True
        library().ddprun_group_abort(self._part)
        self._thread.join()
        library().ddprun_group_destroy(self._part)
