"""torch's reductions and call options as numbers of the C interface."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from .._c_api import AVG, BAND, BOR, BXOR, MAX, MIN, PREMUL_SUM, PROD, SUM, UNSUPPORTED
from ._errors import error

_SECONDS_MAX = 1e9  # timedelta.max, which stands for no limit, is beyond the library's clocks.

# By RedOpType, which is a number.
_OPS = (SUM, AVG, PROD, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM)


def reduction(op: Any) -> int:
    """Return the ddprun_op of a ReduceOp or RedOpType."""
    return _OPS[int(getattr(op, "op", op))]


def factor(op: Any) -> float:
    """Return the factor of a PREMUL_SUM, 0 of others."""
    if reduction(op) != PREMUL_SUM:
        return 0.0
    state = getattr(op, "__getstate__", lambda: None)()
    if state is None:  # torch 1.13 has the factor in C++ alone.
        raise error(UNSUPPORTED, "this torch does not tell the factor of a PREMUL_SUM")
    found = state[1]
    return float(found[0] if isinstance(found, (list, tuple)) else found)


def milliseconds(limit: timedelta | None) -> int:
    """Return a limit as the C interface takes it; 0 where none is set."""
    if limit is None:
        return 0
    seconds = limit.total_seconds()
    return max(1, round(min(seconds, _SECONDS_MAX) * 1000)) if seconds > 0 else 0


def limit(options: Any) -> int:
    """Return the time limit of a call in ms; 0 where the caller has set none."""
    timeout = getattr(options, "timeout", None)
    if timeout is None or timeout.days < 0:
        return 0
    return milliseconds(timeout)


def is_blocking(options: Any) -> bool:
    """Return whether the caller waits for the end at once; torch before 2.6 does not pass it on."""
    return not getattr(options, "asyncOp", True)
