"""Sums of gradients whose bits do not depend on the ranks: ddprun/elastic/gradient_sums.h."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

from .._arguments import _view_of, seed, whole
from .._c_api import SUMS_GOOD, SUMS_NOT_FINITE, SUMS_OVER, SumOptions, SumResult
from .._core import Handle, create
from .._errors import BadArgument
from .._group import ProcessGroup
from .._library import library

_ELEMENTS_MAX = 2**48  # Per tensor; more than any memory holds.
_KINDS = {SUMS_GOOD: "good", SUMS_OVER: "over", SUMS_NOT_FINITE: "not_finite"}


class Sum(NamedTuple):
    """What :meth:`GradientSums.reduce` has found, the same on all ranks."""

    kind: str
    """"good"; "over": the step is to run again, from ``begin()``; "not_finite": some gradient was
    infinite or not a number, and so is the sum of its tensor."""
    note: int
    """The sum of what each rank passed."""
    shards: int
    """Calls of ``add()`` in this step, of all ranks."""
    tensor: int
    """Of "over" and "not_finite": the number of the first such tensor."""


def sum_of(found: SumResult) -> Sum:
    """Return what the library has filled in."""
    return Sum(_KINDS[found.kind], found.note, found.shards, found.tensor)


def _address_of(array: Any, count: int, *, writable: bool) -> tuple[int | None, Any]:
    """Where `count` f32 of the array are, and what keeps them there."""
    if array is None or count == 0:
        return None, None
    if hasattr(array, "data_ptr"):
        is_f32 = str(array.dtype) == "torch.float32" and array.device.type == "cpu"
        if not is_f32 or not array.is_contiguous() or array.numel() != count:
            raise BadArgument(f"a contiguous tensor of {count} float32 in host memory is needed")
        return array.data_ptr(), array
    view = _view_of(array)
    is_f32 = (view.format or "").lstrip("@=<") == "f"
    if not is_f32 or view.nbytes != 4 * count or (writable and view.readonly):
        raise BadArgument(f"an array of {count} float32 is needed, to be written to: {writable}")
    if view.readonly:
        view = memoryview(bytearray(view.tobytes()))
    place = ctypes.c_char.from_buffer(view)
    return ctypes.addressof(place), place


class GradientSums(Handle):
    """Sums of gradients over shards and ranks, with the same bits for any number of ranks.

    ::

        sums = GradientSums([weight.size, bias.size])
        sums.use(step.group)                      # in each new round
        sums.begin()
        for shard in step.shards(batches):
            sums.add(gradients_of(shard))
        found = step.reduce(sums, gradients)
        # found.kind == "over": again from begin(). Otherwise:
        step.commit(lambda: (update(weights, gradients), sums.commit()))

    Arrays are contiguous, of float32, in host memory: numpy.ndarray, array.array or torch.Tensor.
    Nothing is copied. Gradients are added as 64-bit integers, multiples of a unit that follows the
    size of each tensor's gradients from step to step. A tensor whose gradient grows more than
    256-fold from one step to the next is "over", and so are all in the first step of a run.

    sizes: elements of each tensor.
    exact: False for plain float32 sums, whose bits depend on the ranks, of half the bytes.
    equal: a number that must be equal on all ranks: a hash of everything else that the bits depend
    on.
    """

    _what = "sums"

    def __init__(self, sizes: Sequence[int], *, exact: bool = True, equal: int = 0) -> None:
        self.sizes = tuple(whole(size, "a size", 0, _ELEMENTS_MAX) for size in sizes)
        options = SumOptions(ctypes.sizeof(SumOptions), 0, seed(equal, "equal"), not exact, 0)
        lengths = (ctypes.c_size_t * len(self.sizes))(*self.sizes)
        handle = create(
            "sums_create", lengths, len(lengths), ctypes.byref(options), operation="GradientSums"
        )
        super().__init__(handle, library().ddprun_sums_destroy)

    def use(self, group: ProcessGroup) -> None:
        """Allocate the sums in the memory of `group`; collective."""
        self._call("sums_use", operation="GradientSums.use", group=group)

    def begin(self) -> None:
        """Start a step, or start it again."""
        self._call("sums_begin", operation="GradientSums.begin")

    def add(self, gradients: Sequence[Any]) -> None:
        """Add one shard's gradients, an array for each tensor, None where it has no gradient."""
        addresses, held = self._addresses(gradients, writable=False)
        self._call("sums_add", addresses, operation="GradientSums.add")
        del held

    def reduce(
        self, group: ProcessGroup, out: Sequence[Any], *, divide_by: float = 1.0, note: int = 0
    ) -> Sum:
        """Sum over all ranks, divided by `divide_by`, into an array for each tensor or None.

        `group` is that of :meth:`use`; collective.
        """
        addresses, held = self._addresses(out, writable=True)
        found = SumResult(ctypes.sizeof(SumResult))
        self._call(
            "sums_reduce",
            addresses,
            divide_by,
            whole(note, "note"),
            ctypes.byref(found),
            operation="GradientSums.reduce",
            group=group,
        )
        del held
        return sum_of(found)

    def hash(self, gradients: Sequence[Any]) -> int:
        """Return a hash of what :meth:`add` would add: for :meth:`Step.audit`."""
        addresses, held = self._addresses(gradients, writable=False)
        found = ctypes.c_uint64()
        self._call("sums_hash", addresses, ctypes.byref(found), operation="GradientSums.hash")
        del held
        return found.value

    @property
    def is_finite(self) -> bool:
        """Whether all that :meth:`add` was given in this step is finite; True if not `exact`."""
        return bool(self._ask("sums_is_finite"))

    def commit(self) -> None:
        """Keep the units of :meth:`reduce`: for every committed step, and only then."""
        self._call("sums_commit", operation="GradientSums.commit")

    def state(self) -> bytes:
        """Return the units of the committed steps: for ``job.keep_state()`` and checkpoints."""
        state, size = ctypes.c_void_p(), ctypes.c_size_t()
        places = ctypes.byref(state), ctypes.byref(size)
        # Not by _call(), which refuses a copy of the process: one writes a bundle after a crash.
        handle = self._live() if self._is_closed else self._handle
        self._settle(library().ddprun_sums_state(handle, *places), "GradientSums.state")
        return ctypes.string_at(state.value, size.value) if state.value else b""

    def restore(self, state: bytes) -> None:
        """Restore a result of :meth:`state` for the same sizes."""
        self._call("sums_restore", state, len(state), operation="GradientSums.restore")

    def _addresses(self, arrays: Sequence[Any], *, writable: bool) -> tuple[Any, list[Any]]:
        if len(arrays) != len(self.sizes):
            raise BadArgument(f"{len(arrays)} arrays were passed for {len(self.sizes)} tensors")
        pairs = [
            _address_of(array, count, writable=writable) for array, count in zip(arrays, self.sizes)
        ]
        addresses = (ctypes.c_void_p * len(pairs))(*(address for address, _ in pairs))
        return addresses, [held for _, held in pairs]
