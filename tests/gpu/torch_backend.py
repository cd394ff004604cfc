"""A rank of run.sh: the backend ddprun of torch.distributed with tensors of the CPU and of a GPU in one group. Rank 0 prints
what was used. Not for ranks that share a GPU: torch's NCCL takes one rank each."""

import os

import torch
import torch.distributed as dist
from torch import nn

import ddprun.torch  # noqa: F401  From torch 2.14 on not needed.


def check(found, wanted):
    assert torch.equal(found.cpu(), torch.as_tensor(wanted)), (found, wanted)


def reduce_on_both(card, group=None):
    me, size = dist.get_rank(group), dist.get_world_size(group)
    for device in ("cpu", card):
        values = torch.full((1000,), me + 1.0, device=device)
        dist.all_reduce(values, group=group)
        check(values, torch.full((1000,), size * (size + 1) / 2))


def train(card):
    """A model on the GPU; DistributedDataParallel averages its gradients over NCCL."""
    torch.manual_seed(dist.get_rank())
    net = nn.parallel.DistributedDataParallel(nn.Linear(8, 1).to(card), device_ids=[card])
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        sgd.zero_grad()
        net(torch.randn(16, 8, device=card)).square().mean().backward()
        sgd.step()
    weights = torch.cat([each.detach().flatten() for each in net.parameters()])
    all_weights = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(all_weights, weights)
    for other in all_weights:
        check(other, weights.cpu())


def main():
    card = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(card)
    dist.init_process_group("ddprun")
    dist.barrier()  # Of processes: connects no GPUs.
    reduce_on_both(card)
    reduce_on_both(card, dist.new_group(list(range(dist.get_world_size()))))
    names = [None] * dist.get_world_size()
    dist.all_gather_object(names, torch.cuda.get_device_name(card))
    train(card)
    if dist.get_rank() == 0:
        print(f"CPU and CUDA tensors in one group: torch {torch.__version__}, NCCL {torch.cuda.nccl.version()}, {names}", flush=True)
    dist.barrier(device_ids=[card])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
