"""CUDA tensors: torch's own NCCL backend beside this one, in the same group.

NCCL's communicator is made by the first operation on a CUDA tensor, so that groups that never see
one, and hosts without GPUs, are as they would be without this file. From torch 2.14 on torch itself
chooses between the two by where a tensor is. Before, a group of this backend is all of torch's
group, and chooses here.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ._backend import DdprunBackend

_c10d: Any = torch._C._distributed_c10d

# Methods that torch before 2.14 calls with tensors, by its names.
_OPERATIONS = (
    "allreduce",
    "allreduce_coalesced",
    "broadcast",
    "reduce",
    "allgather",
    "_allgather_base",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "gather",
    "scatter",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced",
    "alltoall",
    "alltoall_base",
    "send",
    "recv",
    "recv_anysource",
    "recvAnysource",
)
# Methods that NCCL's object offers to Python for one tensor at a time only.
_OF_SEVERAL = {
    "allgather_into_tensor_coalesced": "_allgather_base",
    "reduce_scatter_tensor_coalesced": "_reduce_scatter_base",
}


def is_available() -> bool:
    """Return whether this process has GPUs, and a torch with NCCL."""
    return bool(dist.is_nccl_available() and torch.cuda.is_available())


def _create(
    store: Any, rank: int, size: int, timeout: timedelta, ranks: Sequence[int], *, is_bound: bool
) -> Any:
    """Return torch's NCCL backend; it connects at once only where the group is bound to a GPU."""
    options = _c10d.ProcessGroupNCCL.Options()
    options._timeout = timeout
    if hasattr(options, "global_ranks_in_group"):
        options.global_ranks_in_group = list(ranks)
    kind = _c10d.ProcessGroupNCCL  # Connects with its first operation.
    if hasattr(options, "lazy_init"):  # torch 2.15 connects lazily with this option.
        kind = _c10d.ProcessGroupNCCL2
        options.lazy_init = not is_bound
    # A store serves several groups of one name in turn, as for this backend (_join.py).
    turn = store.add(f"ddprun/turn/{rank}", 0)
    return kind(dist.PrefixStore(f"ddprun/{turn}/cuda/", store), rank, size, options)


def add_to(options: Any) -> None:
    """Add NCCL to a group of torch 2.14 or later that was not given a backend for CUDA by name."""
    group = options.process_group
    # torch has noted the group's default backend: for "cpu:ddprun,cuda:nccl" it is NCCL.
    if group.name() != "custom":
        return
    nccl = _create(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        options.global_ranks_in_group or (),
        is_bound=group.bound_device_id is not None,
    )
    group._register_backend(torch.device("cuda"), dist.ProcessGroup.BackendType.NCCL, nccl)


def _is_cuda(arguments: Any) -> bool:
    """Return whether the first tensor in the arguments of a call, or in their lists, is."""
    for each in arguments:
        if isinstance(each, torch.Tensor):
            return bool(each.is_cuda)
        if isinstance(each, (list, tuple)) and each:
            return _is_cuda(each)
    return False


class DispatchingBackend(DdprunBackend):
    """A group of a torch before 2.14, which hands operations on CUDA tensors to NCCL."""

    _made: Any = None

    def _nccl(self) -> Any:
        if self._made is None:
            self._made = _create(
                self._store,
                self._engine.rank,
                self._engine.size,
                self._timeout,
                self._job_ranks,
                is_bound=False,
            )
        return self._made

    def _get_backend(self, device: Any) -> Any:
        return self._nccl() if device.type == "cuda" else super()._get_backend(device)

    def barrier(self, opts: Any = None) -> Any:
        """Wait until all ranks have called it; for work on GPUs too if `opts` names some."""
        return self._nccl().barrier(opts) if opts and opts.device_ids else super().barrier(opts)

    def _start_coalescing(self, *device: Any) -> None:
        if device and device[0].type == "cuda":
            self._nccl()._start_coalescing()
        else:
            super()._start_coalescing(*device)

    def _end_coalescing(self, device: Any) -> Any:
        if getattr(device, "type", "") == "cuda":
            return self._nccl()._end_coalescing()
        return super()._end_coalescing(device)

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the time limit of later operations."""
        super().set_timeout(timeout)
        if hasattr(self._made, "_set_default_timeout"):
            self._made._set_default_timeout(timeout)

    _set_default_timeout = setTimeout = set_timeout

    def abort(self) -> None:
        """End all operations of this rank with an error, from any thread."""
        super().abort()
        self._end_nccl("abort", "_abort")

    def shutdown(self) -> None:
        """Complete what is under way and leave the group."""
        super().shutdown()
        self._end_nccl("shutdown", "_shutdown")
        self._made = None

    def _end_nccl(self, *names: str) -> None:
        """Call the method that this torch has under one of these names; 1.13 has none."""
        if os.getpid() != self._engine._pid:
            return  # A child of fork() has its parent's connections.
        for end in [getattr(self._made, name) for name in names if hasattr(self._made, name)][:1]:
            end()


def _dispatching(name: str) -> Any:
    own = getattr(DdprunBackend, name)

    @functools.wraps(own)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        if not _is_cuda(arguments):
            return own(self, *arguments, **options)
        nccl = self._nccl()
        if name not in _OF_SEVERAL:
            return getattr(nccl, name)(*arguments, **options)
        nccl._start_coalescing()
        for output, tensor in zip(*arguments[:2]):
            getattr(nccl, _OF_SEVERAL[name])(output, tensor, *arguments[2:], **options)
        return nccl._end_coalescing()

    return call


for _name in _OPERATIONS:
    setattr(DispatchingBackend, _name, _dispatching(_name))
