"""What the run's ledger learns of checkpoints (docs/ledger.md).

It is reported by the watch that ``ddprun --report`` loads into the process before the program. The
watch may be of another version than this package; without it no steps are reported either.
"""

from __future__ import annotations

import sys

_WATCH = "ddprun_watch._patches"


def stood_still(seconds: float) -> None:
    """Report that training stood still for so long: counts on the thread that trains."""
    _report("checkpoint", seconds)


def saved(ago: float) -> None:
    """Report that what this rank had computed `ago` seconds before now is safe, from any thread."""
    _report("saved", ago)


def _report(name: str, seconds: float) -> None:
    report = getattr(sys.modules.get(_WATCH), name, None)
    if report is not None:
        report(seconds)
