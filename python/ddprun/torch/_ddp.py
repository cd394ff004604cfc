"""A thin DistributedDataParallel whose gradients lie in memory that the ranks of a host share.

torch's own wrapper keeps its buckets in private memory, from and to which an all_reduce through
shared memory must copy. Here ``p.grad`` is a view of a bucket in shared memory, which is reduced in
place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from ._backend import backend_of, shared_zeros

_BROADCAST_BYTES = 250 * 1024 * 1024


class _Bucket:
    """Gradients that are reduced together."""

    def __init__(self, parameters: list[Any], group: Any) -> None:
        self.parameters = parameters
        self.flat = shared_zeros(
            [sum(each.numel() for each in parameters)], parameters[0].dtype, group
        )
        self.views: list[Any] = []
        first = 0
        for each in parameters:
            self.views.append(self.flat[first : first + each.numel()].view(each.shape))
            first += each.numel()
        self.missing: set[int] = set()
        self.work: Any = None


def _in_buckets(parameters: list[Any], first_bytes: int, bytes_each: int) -> list[list[Any]]:
    """Group parameters of one type, last ones first: their gradients are ready first."""
    buckets: list[list[Any]] = []
    size, limit = 0, first_bytes
    for each in reversed(parameters):
        length = each.numel() * each.element_size()
        if not buckets or size + length > limit or buckets[-1][0].dtype != each.dtype:
            if buckets:
                limit = bytes_each
            buckets.append([])
            size = 0
        buckets[-1].append(each)
        size += length
    return buckets


def _after_accumulation(parameter: Any, hook: Any) -> Any:
    """Have `hook` called with the parameter once its gradient has been added up."""
    if hasattr(parameter, "register_post_accumulate_grad_hook"):
        parameter.register_post_accumulate_grad_hook(hook)
        return None
    accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    accumulator.register_hook(lambda *_: hook(parameter))
    return accumulator  # Must be kept, or its hook is lost.


def _is_in_backward() -> bool:
    """Return whether this is called by a backward pass; False where torch cannot tell."""
    task = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and task() != -1


class DistributedDataParallel(torch.nn.Module):
    """Averages gradients over all ranks while the backward pass runs.

    Use it like torch's: wrap the module, then create the optimizer from ``parameters()``.
    Parameters and buffers are taken from rank 0. Gradients are dense CPU tensors. ``p.grad`` is a
    view of shared memory after the backward pass; clear it with ``zero_grad()``, of the optimizer
    or of this. If an exception ends a backward pass, it must do so on all ranks; clear the
    gradients afterwards.

    bucket_cap_mb: size of the groups of gradients that are reduced together, in MiB.
    find_unused_parameters: whether parameters may get no gradient in a backward pass.
    broadcast_buffers: whether ranks take rank 0's buffers before each forward pass in training.
    """

    def __init__(
        self,
        module: Any,
        process_group: Any = None,
        bucket_cap_mb: float = 25,
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
    ) -> None:
        super().__init__()
        self.module = module
        self.process_group = process_group or dist.distributed_c10d._get_default_group()
        self.find_unused_parameters = find_unused_parameters
        self.broadcast_buffers = broadcast_buffers
        self._synchronises = True
        self._is_in_pass = False
        self._next = 0
        chosen = [each for each in module.parameters() if each.requires_grad]
        if not chosen:
            raise ValueError("the module has no parameter that requires a gradient")
        backend_of(self.process_group)  # Refuses groups of other backends.
        self._check_shapes(chosen)
        self._broadcast([*module.parameters(), *module.buffers()])
        size = int(bucket_cap_mb * 2**20)
        parts = _in_buckets(chosen, min(size, 2**20), size)
        self._buckets = [_Bucket(part, self.process_group) for part in parts]
        self._places = {
            each: (bucket, at)
            for bucket in self._buckets
            for at, each in enumerate(bucket.parameters)
        }
        self._accumulators = [_after_accumulation(each, self._ready) for each in chosen]

    def _check_shapes(self, parameters: list[Any]) -> None:
        """Compare the parameters' shapes with rank 0's before anything of them is sent."""
        mine = [(tuple(each.shape), str(each.dtype)) for each in parameters]
        first: list[Any] = [mine]
        source = dist.get_global_rank(self.process_group, 0)
        dist.broadcast_object_list(first, src=source, group=self.process_group)
        equal = torch.tensor([int(first[0] == mine)])
        dist.all_reduce(equal, op=dist.ReduceOp.MIN, group=self.process_group)
        if not equal.item():
            raise RuntimeError(
                "the parameters that require gradients differ between ranks in number, shape or "
                "type; this rank's "
                + ("are those of rank 0" if first[0] == mine else "differ from rank 0's")
            )

    def _broadcast(self, tensors: list[Any]) -> None:
        found = [each.detach() for each in tensors]
        if found:
            dist._broadcast_coalesced(self.process_group, found, _BROADCAST_BYTES, 0)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Call the module."""
        if self._is_in_pass and not _is_in_backward():
            self._abandon_pass()
        if self._synchronises and self.training and self.broadcast_buffers:
            self._broadcast(list(self.module.buffers()))
        return self.module(*inputs, **options)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Add gradients up without reducing them, until the first pass outside."""
        before, self._synchronises = self._synchronises, False
        try:
            yield
        finally:
            self._synchronises = before

    def _ready(self, parameter: Any) -> None:
        """Take a gradient; it is called once for each parameter in a backward pass."""
        if not self._synchronises:
            return
        if not self._is_in_pass:
            self._begin_pass()
        bucket, at = self._places[parameter]
        self._fill(bucket, at)
        parameter.grad = bucket.views[at]
        bucket.missing.discard(at)
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            self._reduce()

    def _fill(self, bucket: _Bucket, at: int) -> None:
        """Have the parameter's gradient, if it has one, in the bucket."""
        view, gradient = bucket.views[at], bucket.parameters[at].grad
        with torch.no_grad():
            if gradient is None:
                view.zero_()
            elif gradient is not view:
                view.copy_(gradient)

    def _begin_pass(self) -> None:
        self._is_in_pass = True
        self._next = 0
        for bucket in self._buckets:
            bucket.missing = set(range(len(bucket.parameters)))
        torch.autograd.Variable._execution_engine.queue_callback(self._finish_pass)

    def _abandon_pass(self) -> None:
        """Drop a backward pass that an exception has ended; nothing finishes it."""
        self._is_in_pass = False
        for bucket in self._buckets:
            work, bucket.work = bucket.work, None
            if work is not None:
                work.wait()
                bucket.flat.zero_()  # The gradient may have been cleared while it was reduced.

    def _reduce(self) -> None:
        """Start the next bucket; all ranks start them in the same order."""
        bucket = self._buckets[self._next]
        bucket.work = dist.all_reduce(
            bucket.flat, op=dist.ReduceOp.AVG, group=self.process_group, async_op=True
        )
        self._next += 1

    def _finish_pass(self) -> None:
        """Wait for all buckets, at the end of the backward pass.

        Where this raises, the pass is left for the next forward pass to abandon.
        """
        unused = [(bucket, at) for bucket in self._buckets for at in sorted(bucket.missing)]
        if unused and not self.find_unused_parameters:
            raise RuntimeError(self._unused_text(unused))
        for bucket, at in unused:
            self._fill(bucket, at)
        while self._next < len(self._buckets):
            self._reduce()
        used = self._used_anywhere() if self.find_unused_parameters else None
        for bucket in self._buckets:
            bucket.work.wait()
            bucket.work = None
        for bucket, at in unused:
            if used is not None and used[self._number(bucket, at)]:
                bucket.parameters[at].grad = bucket.views[at]
            bucket.missing.clear()
        self._is_in_pass = False

    def _used_anywhere(self) -> list[bool]:
        flags = [
            float(at not in bucket.missing)
            for bucket in self._buckets
            for at in range(len(bucket.parameters))
        ]
        used = torch.tensor(flags)
        dist.all_reduce(used, op=dist.ReduceOp.MAX, group=self.process_group)
        return [bool(flag) for flag in used.tolist()]

    def _number(self, bucket: _Bucket, at: int) -> int:
        before = self._buckets[: self._buckets.index(bucket)]
        return sum(len(each.parameters) for each in before) + at

    def _unused_text(self, unused: list[tuple[_Bucket, int]]) -> str:
        names = {each: name for name, each in self.module.named_parameters()}
        some = [names[bucket.parameters[at]] for bucket, at in unused[:5]]
        return (
            f"{len(unused)} parameters have no gradient after the backward pass "
            f"({', '.join(some)}{', ...' if len(unused) > 5 else ''}): the loss does not depend "
            "on them on this rank; pass find_unused_parameters=True if that is meant"
        )
