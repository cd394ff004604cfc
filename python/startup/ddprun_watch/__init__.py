"""Watches a training loop of PyTorch from outside: ``ddprun --report`` and ``--on-stall``.

Nothing is imported, and nothing changes, until the program imports torch itself. Loaded by
sitecustomize.py, with which it is installed beside ddprun's programs: it needs nothing of the
Python that it is loaded into, and no package ``ddprun``, whose name it leaves alone.
"""

from __future__ import annotations

import importlib

from ._finder import after_import


def _of_torch(what: str, door: str, dump: str) -> None:
    importlib.import_module(__name__ + "._patches").watch_torch(what)
    if door:
        importlib.import_module(__name__ + "._door").open_door(door, dump)


def _of_backend() -> None:
    importlib.import_module(__name__ + "._patches").watch_backend()


def install(what: str, door: str = "", dump: str = "") -> None:
    """Watch torch as soon as it is imported. `what`: "times", or "phases" only.

    At the socket `door` the agent may ask where this rank is; `dump` gets all that is known then.
    """
    after_import("torch", lambda: _of_torch(what, door, dump))
    after_import("ddprun.torch._backend", _of_backend)
