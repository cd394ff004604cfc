"""The job's key-value store."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Union

from ._errors import BadArgument
from ._handles import _milliseconds

if TYPE_CHECKING:
    from ._members import Members

_PATIENCE = 300.0  # Seconds.

Text = Union[str, bytes]


def _bytes(value: Any, what: str) -> bytes:
    """Return a text as bytes; bytes-like objects are those bytes."""
    if isinstance(value, str):
        return value.encode()
    try:
        return bytes(memoryview(value))
    except TypeError:
        raise BadArgument(f"{what} must be str or bytes, not {type(value).__name__}") from None


def _text(value: Text, what: str) -> bytes:
    """Return a text as C takes it, which ends at the first zero."""
    found = _bytes(value, what)
    if b"\0" in found:
        raise BadArgument(f"{what} must not contain a zero, as {value!r} does")
    return found


def _key(key: Text) -> bytes:
    return _text(key, "a key")


def _keys(keys: Sequence[Text]) -> Any:
    if isinstance(keys, (str, bytes)):
        keys = [keys]
    return (ctypes.c_char_p * len(keys))(*(_key(each) for each in keys))


class Store:
    """The store through which the ranks of a job have met; :attr:`ddprun.ProcessGroup.store`.

    All ranks of the job, in whatever group, see the same keys; ddprun's own begin with
    ``ddprun/``. Keys are str or bytes without a zero, values str or bytes; what is read is
    bytes. Values are meant to be short: addresses, names, counts. From any thread, but a call that
    waits holds up those of other threads. Failures are :class:`ddprun.Error`; the group stays as
    it is.
    """

    def __init__(self, group: Members) -> None:
        self._group = group

    def set(self, key: Text, value: Text) -> None:
        """Set `key` to `value`."""
        found = _bytes(value, "a value")
        self._group._call("store_set", _key(key), found, len(found))

    def get(self, key: Text, timeout: float = _PATIENCE) -> bytes:
        """Return the value of `key`; wait until there is one, at most `timeout` seconds.

        Raises :class:`ddprun.TimedOut`, which names the key.
        """
        value, size = ctypes.c_void_p(), ctypes.c_size_t()
        limit = _milliseconds(timeout)
        self._group._call("store_get", _key(key), limit, ctypes.byref(value), ctypes.byref(size))
        return ctypes.string_at(value.value, size.value) if value.value else b""

    def add(self, key: Text, amount: int = 1) -> int:
        """Add to a counter that starts at 0, of 64 bits, and return its new value."""
        if not isinstance(amount, int) or not -(2**63) <= amount < 2**63:
            raise BadArgument(f"amount must be a whole number of 64 bits, not {amount!r}")
        total = ctypes.c_int64()
        self._group._call("store_add", _key(key), amount, ctypes.byref(total))
        return total.value

    def check(self, keys: Sequence[Text]) -> bool:
        """Return whether all of `keys` exist; without waiting."""
        names, exist = _keys(keys), ctypes.c_int()
        self._group._call("store_check", names, len(names), ctypes.byref(exist))
        return bool(exist.value)

    def wait(self, keys: Sequence[Text], timeout: float = _PATIENCE) -> None:
        """Wait until all of `keys` exist, at most `timeout` seconds; raise TimedOut if not."""
        names = _keys(keys)
        self._group._call("store_wait", names, len(names), _milliseconds(timeout))

    def erase(self, key: Text) -> bool:
        """Remove `key`; return whether it existed."""
        existed = ctypes.c_int()
        self._group._call("store_erase", _key(key), ctypes.byref(existed))
        return bool(existed.value)
