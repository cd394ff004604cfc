"""Tensors in memory that the ranks of a host share, which all_reduce sums in place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from .._core import shared_memory
from ._backend import DdprunBackend
from ._errors import bad_argument


def backend_of(group: Any = None) -> DdprunBackend:
    """Return this backend's half of a process group; None is the default group."""
    group = group if group is not None else dist.distributed_c10d._get_default_group()
    if isinstance(group, DdprunBackend):
        return group
    backend = group._get_backend(torch.device("cpu")) if hasattr(group, "_get_backend") else None
    if not isinstance(backend, DdprunBackend):
        raise bad_argument(
            'the process group is not of the backend "ddprun"', "backend_of", dist.get_rank()
        )
    return backend


def shared_zeros(shape: Sequence[int], dtype: Any = None, group: Any = None) -> Any:
    """Return a tensor of zeros in memory that the ranks of this host share.

    ``dist.all_reduce`` of it needs no copies. All ranks of the group call this with the same sizes
    in the same order. The memory lives as long as tensors on it.
    """
    dtype = dtype if dtype is not None else torch.get_default_dtype()
    if any(length < 0 for length in shape):
        raise bad_argument(f"a length in {tuple(shape)} is negative", "shared_zeros", -1)
    count = math.prod(shape)
    if count == 0:
        return torch.zeros(tuple(shape), dtype=dtype)
    size = count * torch.empty((), dtype=dtype).element_size()
    engine = backend_of(group)._engine
    address, handle = engine.allocate(size)
    memory = shared_memory(address, size, handle)
    return torch.frombuffer(memory, dtype=dtype).view(tuple(shape))
