"""Makes "ddprun" known to torch.distributed."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from . import _generations, _nccl
from ._backend import DdprunBackend, make
from ._generations import IS_BACKEND


def _kind() -> type[DdprunBackend]:
    """Return the class of a group that is all of torch's group, before torch 2.14."""
    return _nccl.DispatchingBackend if _nccl.is_available() else DdprunBackend


def _create(options: Any, _: Any) -> DdprunBackend:
    """Make a group for torch 2, which describes it by a struct."""
    backend = make(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        list(options.global_ranks_in_group or ()),
        DdprunBackend if IS_BACKEND else _kind(),
    )
    if IS_BACKEND and _nccl.is_available():
        _nccl.add_to(options)
    return backend


def _create_in_1(store: Any, rank: int, size: int, timeout: timedelta) -> DdprunBackend:
    """Make a group for torch 1.13."""
    return make(store, rank, size, timeout, [], _kind())


def register() -> None:
    """Register the backend; importing ddprun.torch has done so. More than one call does no harm."""
    if hasattr(dist.Backend, "DDPRUN"):
        return
    if IS_BACKEND:
        _generations.install(dist.ProcessGroup)
    known = inspect.signature(dist.Backend.register_backend).parameters
    if "devices" in known:
        dist.Backend.register_backend("ddprun", _create, extended_api=True, devices=["cpu"])
    else:
        dist.Backend.register_backend("ddprun", _create_in_1)
