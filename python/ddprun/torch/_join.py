"""Meeting the other ranks of a group over torch's store."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Sequence
from typing import Any

from .._c_api import CreateOptions, StoreCalls
from .._callbacks import Functions, take_dropped
from .._core import report_crashes
from .._library import library
from ._engine import Engine
from ._errors import last_error


class _Store:
    """torch's store as the functions that the library calls, from threads of its own."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._place = ctypes.create_string_buffer(1)  # Lent to the library until its next call.
        # torch 1.13's stores cannot check for a key: a counter beside each key shows it.
        self._can_check = hasattr(store, "check")
        self.failure: BaseException | None = None
        functions = self._functions = Functions(
            set=self._set, get=self._get, add=self._add, erase=self._erase
        )
        self.calls = StoreCalls(
            ctypes.sizeof(StoreCalls),
            functions.user,
            functions.of("set"),
            functions.of("get"),
            functions.of("add"),
            functions.of("erase"),
        )

    def _guarded(self, call: Any) -> int:
        try:
            with self._lock:
                call()
        except BaseException as failure:  # Nothing may be raised into the library.
            self.failure = failure
            return 1
        return 0

    def _note(self, name: str) -> None:
        if not self._can_check:
            self._store.add(name + "/there", 1)

    def _has(self, name: str) -> bool:
        if self._can_check:
            return bool(self._store.check([name]))
        return bool(self._store.add(name + "/there", 0) > 0)

    def interruption(self) -> BaseException | None:
        """Return what has been raised here that is no failure of the store, such as Ctrl-C."""
        dropped = take_dropped()
        if dropped is None and not isinstance(self.failure, Exception):
            return self.failure
        return dropped

    def _set(self, key: bytes, value: int, size: int) -> int:
        def put() -> None:
            self._store.set(key.decode(), ctypes.string_at(value, size) if size else b"")
            self._note(key.decode())

        return self._guarded(put)

    def _get(self, key: bytes, value: Any, size: Any) -> int:
        def get() -> None:
            name = key.decode()
            if not self._has(name):
                value[0] = None
                return
            found = self._store.get(name)
            self._place = ctypes.create_string_buffer(found, len(found) + 1)
            value[0] = ctypes.addressof(self._place)
            size[0] = len(found)

        return self._guarded(get)

    def _add(self, key: bytes, delta: int, total: Any) -> int:
        def add() -> None:
            total[0] = self._store.add(key.decode(), delta)
            self._note(key.decode())

        return self._guarded(add)

    def _erase(self, key: bytes) -> int:
        # Some stores cannot erase; a key that stays is never used again.
        if self._can_check:
            with contextlib.suppress(Exception), self._lock:
                self._store.delete_key(key.decode())
        return 0


def _own_connection(store: Any) -> Any:
    """Return a store with a connection of its own, as each carries one call at a time."""
    try:
        return store.clone()
    except (AttributeError, RuntimeError, NotImplementedError):
        return store


def join(
    store: Any, rank: int, size: int, timeout_ms: int, job_ranks: Sequence[int] | None
) -> Engine:
    """Meet the other ranks; collective over exactly these."""
    report_crashes()
    own = _Store(_own_connection(store))
    # A store serves several groups of one name in turn; all ranks make them equally often.
    turn = store.add(f"ddprun/turn/{rank}", 1)
    options = CreateOptions()
    options.size = ctypes.sizeof(CreateOptions)
    options.prefix = f"ddprun/{turn}".encode()
    options.rank = rank
    options.world_size = size
    options.init_timeout_ms = options.op_timeout_ms = timeout_ms
    if job_ranks:
        options.job_ranks = (ctypes.c_int32 * size)(*job_ranks)
    group = ctypes.c_void_p()
    status = library().ddprun_group_create(
        ctypes.byref(own.calls), ctypes.byref(options), ctypes.byref(group)
    )
    interruption = own.interruption()
    if interruption is not None:
        library().ddprun_group_destroy(group)
        raise interruption
    if status != 0:
        raise last_error("init_process_group") from own.failure
    assert group.value is not None
    return Engine(group.value, rank, size, timeout_ms, own)
