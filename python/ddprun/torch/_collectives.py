"""c10d's collectives, by the names that torch's C++ code calls, as calls of the C interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import torch

from .._c_api import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    AVG,
    BARRIER,
    BROADCAST,
    GATHER,
    PREMUL_SUM,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
    SUM,
)
from ._arguments import Lending, factor, is_blocking, is_integer, limit, reduction
from ._engine import NAMES, Engine
from ._errors import bad_argument
from ._works import EndedWork

# Fills one tensor for each rank by that rank's; returns the work.
Gather = Callable[[Sequence[Any], Any], Any]


def _gathered(gather: Gather, tensor: Any, lengths: list[int]) -> list[Any]:
    """Return the tensors of all ranks, which differ in their first dimension."""
    rest = tensor.shape[1:]
    outputs = [torch.empty((length, *rest), dtype=tensor.dtype) for length in lengths]
    gather(outputs, tensor.contiguous()).wait()
    return outputs


def _sparse_sum(gather: Gather, tensor: Any, opts: Any, rank: int, size: int) -> Any:
    """Replace `tensor` by the sum over all `size` ranks, coalesced."""
    if opts is not None and reduction(opts.reduceOp) != SUM:
        raise bad_argument("sparse tensors can only be summed", "all_reduce", rank)
    if tensor.layout is not torch.sparse_coo or tensor.device.type != "cpu":
        raise bad_argument(
            f"sparse tensors must be COO tensors on the CPU, not {tensor.layout} on "
            f"{tensor.device}",
            "all_reduce",
            rank,
        )
    own = tensor.detach().coalesce()
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    gather(counts, torch.tensor([own._nnz()])).wait()
    lengths = [int(count) for count in counts]
    indices = _gathered(gather, own.indices().t(), lengths)
    values = _gathered(gather, own.values(), lengths)
    total = torch.sparse_coo_tensor(torch.cat(indices).t(), torch.cat(values), tensor.shape)
    with torch.no_grad():
        tensor.copy_(total.coalesce())  # Changes to a detached one would stay in the alias.
    return EndedWork([tensor])


Tensors = Sequence[Any]


class Collectives:
    """The operations that all ranks of a group call in the same order."""

    _engine: Engine

    def _lending(self, operation: int) -> Lending:
        return Lending(NAMES[operation], self._engine.rank)

    def _only(self, tensors: Tensors, operation: int) -> Any:
        """Return the one tensor of a list; c10d's lists are for several GPUs of a process."""
        if len(tensors) != 1:
            raise bad_argument(
                f"one tensor is needed, not {len(tensors)}", NAMES[operation], self._engine.rank
            )
        return tensors[0]

    def _each(self, works: list[Any], result: Tensors, opts: Any) -> Any:
        ended = EndedWork(result, works)
        if is_blocking(opts):
            ended.wait()
        return ended

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Any:
        """Reduce over all ranks, in place."""
        return self._all_reduce(self._only(tensors, ALL_REDUCE), opts, waits=is_blocking(opts))

    def _all_reduce(self, tensor: Any, opts: Any, *, waits: bool) -> Any:
        op = reduction(opts.reduceOp) if opts is not None else 0
        if tensor.is_sparse:
            return self.allreduce_sparse([tensor], opts)
        averages_integers = op == AVG and is_integer(tensor)
        if op == PREMUL_SUM or averages_integers:
            return self._by_sum(tensor, opts, averages_integers, waits=waits)
        return self._engine.in_place(ALL_REDUCE, tensor, op, -1, limit(opts), waits=waits)

    def _by_sum(self, tensor: Any, opts: Any, averages: bool, *, waits: bool) -> Any:
        """Sum what was multiplied before, or is divided afterwards."""
        lending = self._lending(ALL_REDUCE)
        lending.divisor = self._engine.size if averages else 0
        return self._engine.run(
            ALL_REDUCE,
            lending,
            outs=lending.arrays([tensor], written=True),
            op=SUM if averages else PREMUL_SUM,
            factor=factor(opts.reduceOp),
            timeout_ms=limit(opts),
            result=[tensor],
            waits=waits,
        )

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        """Reduce several tensors."""
        works = [self._all_reduce(tensor, opts, waits=False) for tensor in tensors]
        return self._each(works, tensors, opts)

    def broadcast(self, tensors: Tensors, opts: Any) -> Any:
        """Give all ranks the root's values."""
        tensor = self._only(tensors, BROADCAST)
        return self._engine.in_place(
            BROADCAST, tensor, 0, opts.rootRank, limit(opts), waits=is_blocking(opts)
        )

    def reduce(self, tensors: Tensors, opts: Any) -> Any:
        """Reduce over all ranks; the root receives the result in place."""
        tensor = self._only(tensors, REDUCE)
        lending = self._lending(REDUCE)
        is_root = opts.rootRank == self._engine.rank
        arrays = lending.arrays([tensor], written=is_root)
        return self._engine.run(
            REDUCE,
            lending,
            ins=arrays,
            outs=arrays if is_root else None,
            op=reduction(opts.reduceOp),
            root=opts.rootRank,
            factor=factor(opts.reduceOp),
            timeout_ms=limit(opts),
            result=[tensor],
            waits=is_blocking(opts),
        )

    def _moved(self, operation: int, ins: Tensors, outs: Tensors, opts: Any, root: int = -1) -> Any:
        lending = self._lending(operation)
        return self._engine.run(
            operation,
            lending,
            ins=lending.arrays(ins, written=False),
            outs=lending.arrays(outs, written=True),
            root=root,
            timeout_ms=limit(opts),
            result=outs,
            waits=is_blocking(opts),
        )

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        """Give all ranks the tensors of all ranks."""
        pieces = self._pieces(self._only(outputs, ALL_GATHER), ALL_GATHER)
        return self._moved(ALL_GATHER, [self._only(inputs, ALL_GATHER)], pieces, opts)

    def all_gather_single(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        """Concatenate the tensors of all ranks."""
        return self._moved(ALL_GATHER, [tensor], [output], opts)

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        """Concatenate several tensors of all ranks, each for itself."""
        works = [self._moved(ALL_GATHER, [i], [o], None) for i, o in zip(inputs, outputs)]
        return self._each(works, outputs, opts)

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> Any:
        """Give all ranks several tensors of all ranks: one list for each rank."""
        works = [
            self._moved(ALL_GATHER, [tensor], [each[at] for each in outputs], None)
            for at, tensor in enumerate(inputs)
        ]
        return self._each(works, [one for each in outputs for one in each], opts)

    def _pieces(self, tensors: Tensors, operation: int) -> Tensors:
        if len(tensors) != self._engine.size:
            raise bad_argument(
                f"{self._engine.size} tensors are needed, one for each rank, not {len(tensors)}",
                NAMES[operation],
                self._engine.rank,
            )
        return tensors

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Any:
        """Give the root the tensors of all ranks."""
        is_root = opts.rootRank == self._engine.rank
        pieces = self._pieces(self._only(outputs, GATHER), GATHER) if is_root else ()
        tensor = self._only(inputs, GATHER)
        return self._moved(GATHER, [tensor], pieces, opts, opts.rootRank)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Any:
        """Give each rank its tensor of the root."""
        is_root = opts.rootRank == self._engine.rank
        pieces = self._pieces(self._only(inputs, SCATTER), SCATTER) if is_root else ()
        output = self._only(outputs, SCATTER)
        return self._moved(SCATTER, pieces, [output], opts, opts.rootRank)

    def _reduced_part(self, output: Any, inputs: Tensors, op: Any, opts: Any) -> Any:
        lending = self._lending(REDUCE_SCATTER)
        return self._engine.run(
            REDUCE_SCATTER,
            lending,
            ins=lending.arrays(inputs, written=False),
            outs=lending.arrays([output], written=True),
            op=reduction(op),
            factor=factor(op),
            timeout_ms=limit(opts),
            result=[output],
            waits=is_blocking(opts),
        )

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Any:
        """Reduce the ranks' lists; each rank receives its part."""
        pieces = self._pieces(self._only(inputs, REDUCE_SCATTER), REDUCE_SCATTER)
        op = opts.reduceOp if opts is not None else 0
        return self._reduced_part(self._only(outputs, REDUCE_SCATTER), pieces, op, opts)

    def reduce_scatter_single(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        """Reduce over all ranks; each rank receives its part of the result."""
        op = opts.reduceOp if opts is not None else 0
        return self._reduced_part(output, [tensor], op, opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        """Reduce several tensors, each for itself."""
        op = opts.reduceOp if opts is not None else 0
        works = [self._reduced_part(o, [i], op, None) for i, o in zip(inputs, outputs)]
        return self._each(works, outputs, opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """Send tensor r to rank r, and receive one from each."""
        self._pieces(outputs, ALL_TO_ALL), self._pieces(inputs, ALL_TO_ALL)
        return self._moved(ALL_TO_ALL, inputs, outputs, opts)

    def all_to_all_single(
        self,
        output: Any,
        tensor: Any,
        output_splits: Sequence[int] = (),
        input_splits: Sequence[int] = (),
        opts: Any = None,
    ) -> Any:
        """Send a part of the rows to each rank, and receive one from each."""
        if not output_splits and not input_splits:
            return self._moved(ALL_TO_ALL, [tensor], [output], opts)
        lending = self._lending(ALL_TO_ALL)
        ins = self._parts(tensor, input_splits)
        outs = self._parts(output, output_splits)
        return self._engine.run(
            ALL_TO_ALL,
            lending,
            ins=lending.rows(tensor, ins, written=False),
            outs=lending.rows(output, outs, written=True),
            timeout_ms=limit(opts),
            result=[output],
            waits=is_blocking(opts),
        )

    def _parts(self, tensor: Any, splits: Sequence[int]) -> Sequence[int]:
        """Return how many rows go to each rank."""
        rows = tensor.shape[0] if tensor.dim() else 1
        parts = list(splits) or [rows // self._engine.size] * self._engine.size
        if len(parts) != self._engine.size or sum(parts) != rows or min(parts) < 0:
            raise bad_argument(
                f"the parts {parts} do not add up to the tensor's {rows} rows for "
                f"{self._engine.size} ranks",
                NAMES[ALL_TO_ALL],
                self._engine.rank,
            )
        return parts

    def allreduce_sparse(self, tensors: Tensors, opts: Any = None) -> Any:
        """Add sparse tensors; see _sparse_sum()."""
        return _sparse_sum(
            lambda outputs, tensor: self.allgather([outputs], [tensor]),
            self._only(tensors, ALL_REDUCE),
            opts,
            self._engine.rank,
            self._engine.size,
        )

    def barrier(self, opts: Any = None) -> Any:
        """Wait until all ranks have called it."""
        lending = self._lending(BARRIER)
        return self._engine.run(BARRIER, lending, timeout_ms=limit(opts), waits=is_blocking(opts))

    # The names before torch 2.14.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
