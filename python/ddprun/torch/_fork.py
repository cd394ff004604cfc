"""Locks in a child of fork(): whoever held one may be a thread that the child lacks."""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol


class _Owner(Protocol):
    def make_locks(self) -> None:
        """Make the locks, at first or anew."""


_owners: weakref.WeakSet[Any] = weakref.WeakSet()


def own_locks(owner: _Owner) -> None:
    """Make the owner's locks, and in a child of this process others."""
    owner.make_locks()
    _owners.add(owner)


def _make_anew() -> None:
    for owner in list(_owners):
        owner.make_locks()


os.register_at_fork(after_in_child=_make_anew)
