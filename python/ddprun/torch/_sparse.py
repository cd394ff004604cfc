"""Sums of sparse tensors: an operation that the C interface lacks, made of gathers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .._c_api import SUM
from ._errors import bad_argument
from ._reductions import reduction
from ._works import EndedWork

if TYPE_CHECKING:
    from ._collectives import Collectives


def _gathered(group: Collectives, tensor: Any, lengths: list[int]) -> list[Any]:
    """Return the tensors of all ranks, which differ in their first dimension."""
    rest = tensor.shape[1:]
    outputs = [torch.empty((length, *rest), dtype=tensor.dtype) for length in lengths]
    group.allgather([outputs], [tensor.contiguous()]).wait()
    return outputs


def all_reduce(group: Collectives, tensor: Any, opts: Any) -> Any:
    """Replace `tensor` by the sum over all ranks, coalesced."""
    engine = group._engine
    if opts is not None and reduction(opts.reduceOp) != SUM:
        raise bad_argument("sparse tensors can only be summed", "all_reduce", engine.rank)
    if tensor.layout is not torch.sparse_coo or tensor.device.type != "cpu":
        raise bad_argument(
            f"sparse tensors must be COO tensors on the CPU, not {tensor.layout} on "
            f"{tensor.device}",
            "all_reduce",
            engine.rank,
        )
    own = tensor.detach().coalesce()
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(engine.size)]
    group.allgather([counts], [torch.tensor([own._nnz()])]).wait()
    lengths = [int(count) for count in counts]
    indices = _gathered(group, own.indices().t(), lengths)
    values = _gathered(group, own.values(), lengths)
    total = torch.sparse_coo_tensor(torch.cat(indices).t(), torch.cat(values), tensor.shape)
    with torch.no_grad():
        tensor.copy_(total.coalesce())  # Of a detached one only the alias would change.
    return EndedWork([tensor])
