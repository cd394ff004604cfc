"""What differs between the generations of torch, and works for those from 2.14 on.

There torch wraps a work that was made in Python in a holder which forwards wait() and get_future()
only: is_completed() would stay False for ever, exception() None, and the sender of a message from
any source unknown. The methods of torch's ProcessGroup are replaced by ones that return the work
itself where this backend has made one; for other backends they return what torch returns.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch

TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

# Python classes can be backends proper since 2.14.
IS_BACKEND = TORCH >= (2, 14)
# Before 2.14, torch's C++ code called the methods of a work's Python half without keeping it.
KEEPS_WORKS = TORCH >= (2, 1)


_METHODS = (
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "scatter",
    "send",
    "_end_coalescing",
)


class _Made(threading.local):
    """The work that this thread's call has made last."""

    is_wanted = False
    work: Any = None


_made = _Made()


def note(work: Any) -> None:
    """Remember a new work if a method below waits for it."""
    if _made.is_wanted:
        _made.work = work


def _forwarding(method: Any) -> Any:
    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        if _made.is_wanted:
            return method(*arguments, **options)
        _made.is_wanted = True
        try:
            held = method(*arguments, **options)
            return held if _made.work is None or held is None else _made.work
        finally:
            _made.is_wanted = False
            _made.work = None

    return call


def install(group_class: Any) -> None:
    """Replace the methods; more than one call does no harm."""
    for name in _METHODS:
        method = getattr(group_class, name, None)
        if method is not None and not hasattr(method, "__wrapped__"):
            setattr(group_class, name, _forwarding(method))
