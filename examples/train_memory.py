#!/usr/bin/env python3
"""PyTorch DDP that loses ten steps at most when a process dies: an ordinary script, and two calls.

    ddprun --memory-folder 1G --max-restarts 3 --preload auto --nproc-per-node 2 train_memory.py
"""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddprun.checkpoint


def batch_of(step, rank):
    """Any step can be computed again, because its data depends on its number alone."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(32, 64, generator=generator)
    return inputs, inputs.square().sum(1, keepdim=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--disk", help="a folder that all nodes share, for when all memory is lost")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1)))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 200, 0.5)

    checkpoint = ddprun.checkpoint.Memory(every=10, disk=options.disk)
    state = {"model": ddp, "optimizer": optimizer, "schedule": schedule}
    for step in range(checkpoint.load(state), options.steps):
        inputs, wanted = batch_of(step, rank)
        loss = nn.functional.mse_loss(ddp(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        checkpoint.save(state, step + 1)
        if rank == 0 and (step + 1) % 100 == 0:
            print(f"step {step + 1}  loss {loss.item():.4f}", flush=True)
    # PyTorch 1.13 may deadlock on the interpreter's lock if DDP is the last to let go of the group.
    state.clear()
    del ddp
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
