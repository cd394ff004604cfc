"""Collectives and messages as ``ddprun_submit`` takes them: one struct, blocking or not."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Union

from . import _c_api
from ._arguments import lend, milliseconds, number
from ._c_api import Buffer, Call
from ._core import Work
from ._errors import BadArgument
from ._membership import Membership

_REDUCTIONS = ("sum", "avg", "min", "max", "prod", "band", "bor", "bxor", "premul_sum")
_OPS: dict[str, int] = {name: getattr(_c_api, name.upper()) for name in _REDUCTIONS}
# Operations that also take one array per rank, as input or as output.
_PARTS_IN = ("all_to_all", "reduce_scatter", "scatter")
_PARTS_OUT = ("all_gather", "all_to_all", "gather")
_IN_ORDER = -1  # The tag of messages that have none.

# One array, or a list with one per rank.
Arrays = Union[Any, Sequence[Any]]


def _reduction(op: str) -> int:
    if not isinstance(op, str) or op not in _OPS:
        raise BadArgument(f"op {op!r} is not one of {', '.join(_OPS)}")
    return _OPS[op]


def _factor(op: str, factor: float | None) -> float:
    if (factor is None) == (op == "premul_sum"):
        raise BadArgument(
            "premul_sum needs a factor" if factor is None else f"a factor is not for {op}"
        )
    return float(factor or 0)


def _tag(tag: int | None) -> int:
    if tag is None:
        return _IN_ORDER
    if number(tag, "tag") < 0:
        raise BadArgument(f"the tag {tag} is negative")
    return tag


def _side(arrays: Arrays, *, parts: bool, writable: bool) -> tuple[Any, list[Any]]:
    """Return the structs of an array, or of a list of `parts`, and what keeps their memory."""
    each = arrays if parts and isinstance(arrays, (list, tuple)) else [arrays]
    lent = [lend(array, writable=writable) for array in each]
    return (Buffer * len(lent))(*(buffer for buffer, _ in lent)), [keep for _, keep in lent]


class Operations(Membership):
    """Issues operations of a group."""

    def _started(self, handle: int, lent: Any, operation: str) -> Work:
        return Work(handle, lent, self._rank, operation)

    def _run(self, operation: str, **what: Any) -> None:
        """Carry out an operation."""
        call, _lent = self._described(operation, **what)
        self._call("submit", ctypes.byref(call), None, operation=operation)

    def _begin(self, operation: str, **what: Any) -> Work:
        """Begin an operation."""
        call, lent = self._described(operation, **what)
        work = ctypes.c_void_p()
        self._call("submit", ctypes.byref(call), ctypes.byref(work), operation=operation)
        assert work.value is not None
        return self._started(work.value, lent, operation)

    def _described(
        self,
        operation: str,
        *,
        ins: Arrays = None,
        outs: Arrays = None,
        op: str | None = None,
        factor: float | None = None,
        root: int = 0,
        peer: str = "root",
        tag: int | None = None,
        timeout: float | None = None,
    ) -> tuple[Call, Any]:
        """Return the struct of a call, and what has to live as long as the operation.

        `peer` is the name of the argument that `root` was.
        """
        call = Call(size=ctypes.sizeof(Call), operation=getattr(_c_api, operation.upper()))
        kept: list[Any] = []
        if ins is not None:
            structs, keep = _side(ins, parts=operation in _PARTS_IN, writable=False)
            call.in_, call.ins = structs, len(structs)
            kept += [structs, keep]
        if outs is not None:
            structs, keep = _side(outs, parts=operation in _PARTS_OUT, writable=True)
            call.out, call.outs = structs, len(structs)
            kept += [structs, keep]
        if op is not None:
            call.op, call.factor = _reduction(op), _factor(op, factor)
        call.root = number(root, peer)
        call.tag = _tag(tag)
        call.timeout_ms = milliseconds(timeout)
        return call, kept
