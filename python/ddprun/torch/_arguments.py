"""What callers of torch pass, as the C interface takes it: tensors, reductions, options of calls.

Tensors are used in place where their memory is plain, through a copy otherwise.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Callable

import torch

from .._arguments import NUMBERS
from .._c_api import (
    AVG,
    BAND,
    BOR,
    BXOR,
    MAX,
    MIN,
    PREMUL_SUM,
    PROD,
    SUM,
    UNSUPPORTED,
    Buffer,
)
from ._errors import bad_argument, error

# Element type -> ddprun_type, as far as this torch has them.
TYPES: dict[Any, int] = {
    getattr(torch, name): number for name, number in NUMBERS.items() if hasattr(torch, name)
}
_BYTES = NUMBERS["uint8"]  # The type for moving types that the library lacks.
_SIZE = ctypes.sizeof(Buffer)


def is_plain(tensor: Any) -> bool:
    """Return whether the tensor's values lie one after the other in this process's memory."""
    return bool(
        tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def is_integer(tensor: Any) -> bool:
    """Return whether elements are whole numbers."""
    kind = tensor.dtype
    return not (kind.is_floating_point or kind.is_complex or kind is torch.bool)


def check_reducible(tensor: Any, operation: str, rank: int) -> None:
    """Raise for an element type with which the library cannot compute."""
    if tensor.dtype not in TYPES:
        raise bad_argument(f"elements of {tensor.dtype} cannot be reduced", operation, rank)


def check(tensor: Any, operation: str, rank: int, *, written: bool) -> None:
    """Raise for a tensor of which not even a copy could be sent."""
    if not isinstance(tensor, torch.Tensor):
        raise bad_argument(f"a tensor is needed, not {type(tensor).__name__}", operation, rank)
    if tensor.device.type != "cpu":
        raise bad_argument(
            f"this group is for CPU tensors, the tensor is on {tensor.device}", operation, rank
        )
    if tensor.layout is not torch.strided:
        raise bad_argument(f"tensors of layout {tensor.layout} are not supported", operation, rank)
    overlaps = any(step == 0 and length > 1 for step, length in zip(tensor.stride(), tensor.shape))
    if written and overlaps:
        raise bad_argument(
            "elements of the tensor share memory (it was expanded), so it cannot receive; pass "
            "tensor.contiguous()",
            operation,
            rank,
        )


class Lending:
    """The arrays of one operation: what the library sees of them, and how results come back."""

    def __init__(self, operation: str, rank: int) -> None:
        self._operation = operation
        self._rank = rank
        self._copies: list[tuple[Any, Any]] = []
        self.keep: list[Any] = []
        self.divisor = 0  # The result's divisor, towards zero; 0: none.

    def plain(self, tensor: Any, *, written: bool) -> Any:
        """Return the tensor, or a plain copy, which is written back at the end if `written`."""
        if not (isinstance(tensor, torch.Tensor) and is_plain(tensor)):
            check(tensor, self._operation, self._rank, written=written)
            copy = tensor.detach().resolve_conj().resolve_neg().contiguous()
            if written:
                self._copies.append((tensor, copy))
            tensor = copy
        self.keep.append(tensor)
        return tensor

    def arrays(self, tensors: Sequence[Any], *, written: bool) -> Any:
        """Describe tensors, one array each."""
        found = (Buffer * len(tensors))()
        for buffer, tensor in zip(found, tensors):
            plain = self.plain(tensor, written=written)
            if "reduce" in self._operation:
                check_reducible(plain, self._operation, self._rank)
            describe(buffer, plain)
        return found

    def rows(self, tensor: Any, lengths: Sequence[int], *, written: bool) -> Any:
        """Describe parts of `lengths` rows of one tensor."""
        tensor = self.plain(tensor, written=written)
        row = tensor.numel() // tensor.shape[0] if tensor.dim() and tensor.shape[0] else 0
        found = (Buffer * len(lengths))()
        first = 0
        for buffer, length in zip(found, lengths):
            describe(buffer, tensor.narrow(0, first, length) if row else tensor)
            buffer.count = buffer.count if row else 0
            first += length
        return found

    def after(self) -> Callable[[], None] | None:
        """Return what has to be done once the operation has ended, if anything."""
        if not self._copies and not self.divisor:
            return None
        copies, results, divisor = self._copies, self.keep, self.divisor

        def write_back() -> None:
            with torch.no_grad():
                for result in results if divisor else ():
                    result.detach().div_(divisor, rounding_mode="trunc")
                for tensor, copy in copies:
                    tensor.detach().copy_(copy)

        return write_back


def describe(buffer: Buffer, tensor: Any) -> None:
    """Fill `buffer` with where a plain tensor is and what is in it."""
    buffer.size = _SIZE
    buffer.data = tensor.data_ptr()
    kind = TYPES.get(tensor.dtype)
    if kind is not None:
        buffer.type = kind
        buffer.count = tensor.numel()
    else:
        buffer.type = _BYTES
        buffer.count = tensor.numel() * tensor.element_size()


_SECONDS_MAX = 1e9  # timedelta.max, which stands for no limit, is beyond the library's clocks.

# By RedOpType, which is a number.
_OPS = (SUM, AVG, PROD, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM)


def reduction(op: Any) -> int:
    """Return the ddprun_op of a ReduceOp or RedOpType."""
    return _OPS[int(getattr(op, "op", op))]


def factor(op: Any) -> float:
    """Return the factor of a PREMUL_SUM, 0 of others."""
    if reduction(op) != PREMUL_SUM:
        return 0.0
    state = getattr(op, "__getstate__", lambda: None)()
    if state is None:  # torch 1.13 has the factor in C++ alone.
        raise error(UNSUPPORTED, "this torch does not tell the factor of a PREMUL_SUM")
    found = state[1]
    return float(found[0] if isinstance(found, (list, tuple)) else found)


def milliseconds(limit: timedelta | None) -> int:
    """Return a limit as the C interface takes it; 0 where none is set."""
    if limit is None:
        return 0
    seconds = limit.total_seconds()
    return max(1, round(min(seconds, _SECONDS_MAX) * 1000)) if seconds > 0 else 0


def limit(options: Any) -> int:
    """Return the time limit of a call in ms; 0 where the caller has set none."""
    timeout = getattr(options, "timeout", None)
    if timeout is None or timeout.days < 0:
        return 0
    return milliseconds(timeout)


def is_blocking(options: Any) -> bool:
    """Return whether the caller waits for the end at once; torch before 2.6 does not pass it on."""
    return not getattr(options, "asyncOp", True)
