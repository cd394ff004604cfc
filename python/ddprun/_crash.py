"""A crash of a worker: its stacks of C++ and of Python, for the launcher's verdict."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from pathlib import Path

from ._library import library

_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)


def _have_handlers() -> bool:
    """Return whether the program, or a library of it such as a JVM, handles one of the signals."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return True
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
    mask = int(caught.split()[1], 16)
    return any(mask >> (each - 1) & 1 for each in _SIGNALS)


def report_crashes() -> None:
    """Report crashes of a worker, unless DDPRUN_CRASH_REPORT is 0. Before its group is made.

    The library writes its report and then calls Python's faulthandler, which prints where Python
    was.
    """
    variables = os.environ
    if not variables.get("TORCHELASTIC_ERROR_FILE") or variables.get("DDPRUN_CRASH_REPORT") == "0":
        return
    if not faulthandler.is_enabled() and not _have_handlers():
        with contextlib.suppress(Exception):  # Standard error may be missing.
            faulthandler.enable()
    if faulthandler.is_enabled():
        library().ddprun_install_crash_report_before()
    else:
        library().ddprun_install_crash_report()


def install_crash_report() -> None:
    """Let a crash (SIGSEGV, SIGABRT and the like) leave its stack for ddprun's verdict.

    :func:`ddprun.init` does this in workers; called first, it covers what crashes before.
    """
    library().ddprun_install_crash_report()
