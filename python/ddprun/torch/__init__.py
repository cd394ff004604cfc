"""ddprun.torch: the backend "ddprun" of torch.distributed.

::

    import ddprun.torch                        # not needed from torch 2.14 on
    import torch.distributed as dist

    dist.init_process_group("ddprun")          # under ddprun or torchrun

All collectives, groups and wrappers of torch work on it. Ranks of one host exchange CPU tensors
through shared memory, others over the network; CUDA tensors go to torch's own NCCL. Errors are
:class:`DdprunError`: torch's DistBackendError with rank, host, operation and peer.
"""

from __future__ import annotations

from ._backend import shared_zeros
from ._ddp import DistributedDataParallel
from ._errors import DdprunError
from ._register import register
from ._sampler import DistributedSampler

__all__ = [
    "DdprunError",
    "DistributedDataParallel",
    "DistributedSampler",
    "register",
    "shared_zeros",
]

register()
