"""The job's key-value store: small values that ranks exchange outside collectives."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Callable

from .._arguments import long_number, milliseconds, text

# How long to wait for a value if no timeout is given, in seconds, as in PyTorch.
PATIENCE = 300.0


def _key(key: str) -> bytes:
    return text(key, "a key")


def _keys(keys: Sequence[str]) -> Any:
    return (ctypes.c_char_p * len(keys))(*(_key(each) for each in keys))


class Store:
    """Values by key, shared by all ranks of the job; ``group.store`` is it.

    Keys are text, values bytes. May be used from any thread; a call that waits blocks those of
    other threads. Lives as long as the group.
    """

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def set(self, key: str, value: bytes) -> None:
        """Store `value`."""
        self._call("store_set", _key(key), bytes(value), len(value))

    def get(self, key: str, timeout: float = PATIENCE) -> bytes:
        """Return the value; wait until there is one, at most `timeout` seconds."""
        value, size = ctypes.c_void_p(), ctypes.c_size_t()
        self._call(
            "store_get", _key(key), milliseconds(timeout), ctypes.byref(value), ctypes.byref(size)
        )
        return ctypes.string_at(value, size.value) if value.value else b""

    def add(self, key: str, delta: int) -> int:
        """Add to a decimal counter that starts at 0; return its new value."""
        total = ctypes.c_int64()
        self._call("store_add", _key(key), long_number(delta, "delta"), ctypes.byref(total))
        return total.value

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys exist."""
        exist = ctypes.c_int()
        self._call("store_check", _keys(keys), len(keys), ctypes.byref(exist))
        return bool(exist.value)

    def wait(self, keys: Sequence[str], timeout: float = PATIENCE) -> None:
        """Wait until all keys exist, at most `timeout` seconds."""
        self._call("store_wait", _keys(keys), len(keys), milliseconds(timeout))

    def erase(self, key: str) -> bool:
        """Forget the key; return whether it existed."""
        existed = ctypes.c_int()
        self._call("store_erase", _key(key), ctypes.byref(existed))
        return bool(existed.value)
