"""A PyTorch script that appends the time of its first step to a file, dies once, and knows nothing of its launcher."""

import os
import time

import torch
import torch.distributed as dist


def note(what):
    with open(os.environ["START_LOG"], "a", encoding="ascii") as file:
        file.write(f"{what} {os.environ['RANK']} {time.monotonic():.6f}\n")


def note_memory():
    """The proportional set size of this rank, and of a fork server beside it, while all ranks are there."""
    dist.barrier()
    pids = {os.environ["RANK"]: os.getpid()}
    with open(f"/proc/{os.getppid()}/task/{os.getppid()}/children", encoding="ascii") as file:
        siblings = file.read().split() if dist.get_rank() == 0 else []
    for pid in siblings:
        with open(f"/proc/{pid}/comm", encoding="ascii") as file:
            pids.update({"server": pid} if file.read() == "ddprun-preload\n" else {})
    for name, pid in pids.items():
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            sizes = dict(line.split()[:2] for line in file if line.endswith("kB\n"))
        with open(os.environ["START_LOG"], "a", encoding="ascii") as file:
            file.write(f"pss {name} {sizes['Pss:']}\n")
    dist.barrier()


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
    if is_first and os.environ.get("START_MEMORY"):
        note_memory()
    if is_first and dist.get_rank() == dist.get_world_size() - 1:
        note("death")
        os._exit(3)
    if is_first:
        dist.barrier()  # With a rank that is gone.


main()
