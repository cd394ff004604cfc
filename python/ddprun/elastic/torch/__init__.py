"""ddprun.elastic.torch: PyTorch in a job whose ranks come and go.

::

    import torch
    import ddprun.elastic
    from ddprun.elastic.torch import Gradients

    torch.manual_seed(1), torch.set_num_threads(1)    # all ranks begin and compute alike
    net, sgd = ...
    batches = ddprun.elastic.GlobalBatches(len(x), global_batch=64, shards=8)
    job = ddprun.elastic.Job()
    job.keep(net=net, sgd=sgd)
    gradients = Gradients(job, net, batches)
    def train(step):
        gradients.backward(step, lambda shard: loss_of(net(x[shard.indices]), y[shard.indices]))
        gradients.commit(step, sgd.step)
    job.run(500, train)

After each step all ranks have the same weights, bit for bit, for every number of ranks.
:class:`Distributed` provides torch.distributed over the ranks of a step instead, on torch's own
backends.
"""

from __future__ import annotations

from ._distributed import Distributed
from ._gradients import Gradients, Result
from ._loader import ShardLoader
from ._optimizer import ShardedOptimizer

__all__ = ["Distributed", "Gradients", "Result", "ShardLoader", "ShardedOptimizer"]
