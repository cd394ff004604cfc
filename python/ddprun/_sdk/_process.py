"""What concerns this process as a whole."""

from __future__ import annotations

from .._library import library


def install_crash_report() -> None:
    """Let a crash (SIGSEGV, SIGABRT and the like) leave its stack for ddprun's verdict.

    :func:`ddprun.init` does this in workers; called first, it covers what crashes before.
    """
    library().ddprun_install_crash_report()
