"""Sums of sparse tensors: an operation that the C interface lacks, made of gathers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import torch

from .._c_api import SUM
from ._errors import bad_argument
from ._reductions import reduction
from ._works import EndedWork

# Fills one tensor for each rank by that rank's; returns the work.
Gather = Callable[[Sequence[Any], Any], Any]


def _gathered(gather: Gather, tensor: Any, lengths: list[int]) -> list[Any]:
    """Return the tensors of all ranks, which differ in their first dimension."""
    rest = tensor.shape[1:]
    outputs = [torch.empty((length, *rest), dtype=tensor.dtype) for length in lengths]
    gather(outputs, tensor.contiguous()).wait()
    return outputs


def all_reduce(gather: Gather, tensor: Any, opts: Any, rank: int, size: int) -> Any:
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
