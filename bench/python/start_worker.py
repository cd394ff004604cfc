"""A PyTorch script that appends the time of its first step to a file, dies once if it is to, and knows nothing of its launcher."""

import os
import time

import torch
import torch.distributed as dist


def note(what):
    with open(os.environ["START_LOG"], "a", encoding="ascii") as file:
        file.write(f"{what} {os.environ['RANK']} {time.monotonic():.6f}\n")


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).pow(2).mean().backward()
        optimizer.step()
        if step == 0:
            note("step")
    is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    dist.barrier()
    if is_first and dist.get_rank() == dist.get_world_size() - 1:
        note("death")
        os._exit(3)
    if is_first:
        dist.barrier()  # With a rank that is gone.


main()
