"""The thread that completes futures: one a process, started with the first future asked for."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from typing import Protocol

from .._core import own_locks


class Watched(Protocol):
    """What the waiter needs of an engine."""

    def finish_ended(self) -> None:
        """Finish all works that have ended."""


class Waiter:
    """Waits for operations of the watched engines to end, and finishes them."""

    def __init__(self) -> None:
        own_locks(self)
        self._engines: dict[int, Watched] = {}  # By the descriptor that becomes readable at an end.
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._wake = (-1, -1)
        self._stops = False

    def make_locks(self) -> None:
        """Make the lock; see _core.own_locks()."""
        self._lock = threading.Lock()

    def watch(self, engine: Watched, descriptor: int) -> None:
        """Finish the engine's works as they end, from now on."""
        with self._lock:
            if self._pid != os.getpid():  # The thread stayed in the parent of a fork.
                self._start()
            is_new = self._engines.get(descriptor) is not engine
            self._engines[descriptor] = engine
        if is_new:
            self._poke()

    def is_this_thread(self) -> bool:
        """Return whether the caller is a callback of a future that this thread has completed."""
        return self._thread is not None and self._thread is threading.current_thread()

    def _start(self) -> None:
        self._engines = {}
        self._stops = False
        self._pid = os.getpid()
        self._wake = os.pipe()
        self._thread = threading.Thread(target=self._run, name="ddprun-waiter", daemon=True)
        self._thread.start()

    def drop(self, descriptor: int) -> None:
        """Forget an engine."""
        with self._lock:
            known = self._engines.pop(descriptor, None)
        if known is not None and self._pid == os.getpid():
            self._poke()

    def stop(self) -> None:
        """End the thread: none may be inside torch when the interpreter ends."""
        thread = self._thread
        if thread is None or self._pid != os.getpid():
            return
        self._stops = True
        self._poke()
        if thread is not threading.current_thread():
            thread.join()
        self._thread = None
        self._pid = 0

    def _poke(self) -> None:
        os.write(self._wake[1], b"x")

    def _run(self) -> None:
        while not self._stops:
            with self._lock:
                descriptors = list(self._engines)
            poll = select.poll()
            for descriptor in (self._wake[0], *descriptors):
                poll.register(descriptor, select.POLLIN)
            # An operation that ended before it was watched has been noted in its descriptor.
            for descriptor, _ in poll.poll():
                if descriptor == self._wake[0]:
                    os.read(descriptor, 4096)
                    continue
                engine = self._drained(descriptor)
                if engine is not None:
                    engine.finish_ended()

    def _drained(self, descriptor: int) -> Watched | None:
        """Reset a readable descriptor; return its engine, which may have changed since the poll."""
        with self._lock:
            engine = self._engines.get(descriptor)
            if engine is not None:
                with contextlib.suppress(BlockingIOError):
                    os.read(descriptor, 8)
            return engine


waiter = Waiter()
