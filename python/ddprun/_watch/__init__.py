"""Watches a training loop of PyTorch from outside: ``ddprun --report`` and ``--on-stall``.

Nothing is imported, and nothing changes, until the program imports torch itself. Loaded by
python/startup/sitecustomize.py.
"""

from __future__ import annotations

import importlib

from ._finder import after_import


def _of_torch(what: str) -> None:
    importlib.import_module(__name__ + "._patches").watch_torch(what)


def _of_backend() -> None:
    importlib.import_module(__name__ + "._patches").watch_backend()


def install(what: str) -> None:
    """Watch torch as soon as it is imported. `what`: "times", or "phases" only."""
    after_import("torch", lambda: _of_torch(what))
    after_import("ddprun.torch._backend", _of_backend)
