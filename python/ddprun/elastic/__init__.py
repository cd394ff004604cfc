"""ddprun.elastic: training whose ranks come and go while the other processes keep running.

::

    import ddprun.elastic

    batches = ddprun.elastic.GlobalBatches(len(data), global_batch=64, shards=8)
    job = ddprun.elastic.Job()
    job.keep(weights=weights)                      # a numpy array, changed by commit() only
    def train(step):
        gradient = sum(gradient_of(weights, data[shard.indices]) for shard in step.shards(batches))
        step.group.all_reduce(gradient)
        step.commit(lambda: update(weights, gradient))
    job.run(10_000, train)

Run it with ``ddprun --nproc-per-node 4 --max-restarts 100 train.py``. A worker that dies costs the
others one step; they keep their processes. :mod:`ddprun.elastic.torch` is for PyTorch: gradients
whose bits do not depend on the number of ranks, and a loader. docs/elastic.md describes the rules.
Importing this package imports neither numpy nor torch.
"""

from __future__ import annotations

from ._batches import GlobalBatches, Sample, Shard, shards_of, stream_seed
from ._errors import MembershipChanged
from ._job import Counters, Job
from ._state import Sharded
from ._step import Step
from ._sums import GradientSums, Sum

__all__ = [
    "Counters",
    "GlobalBatches",
    "GradientSums",
    "Job",
    "MembershipChanged",
    "Sample",
    "Shard",
    "Sharded",
    "Step",
    "Sum",
    "shards_of",
    "stream_seed",
]
