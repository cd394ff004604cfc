"""A rank of bench/shards.py --adamw: steps of AdamW on gradients that are always the same, with moments on every rank (MOMENTS=all),
in shards, or without any step of an optimizer (none). Rank 0 prints the median of a step in ms, the largest peak of a rank's own memory beyond that before the optimizer in
bytes per parameter, and a hash of the weights."""

import os
import statistics
import time
import zlib

import torch

import ddprun.elastic
from ddprun.elastic.torch import ShardedOptimizer

torch.manual_seed(1), torch.set_num_threads(1)
count, steps = int(os.environ["PARAMETERS"]), int(os.environ["STEPS"])
net = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(count // 8)) for _ in range(8)])
gradients = [torch.randn(count // 8) for _ in range(8)]
for parameter in net:
    parameter.grad = torch.empty(count // 8)


def memory():
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return 1024 * sum(int(line.split()[1]) for line in file if line.startswith(("Private_Dirty", "Swap:")))


before = memory()
job = ddprun.elastic.Job(memory_every=None).keep(net=net)
if os.environ["MOMENTS"] == "none":
    update, apply = lambda step: None, lambda: None
elif os.environ["MOMENTS"] == "shards":
    adamw = ShardedOptimizer(job, net, lambda p: torch.optim.AdamW(p, lr=1e-3))
    update, apply = adamw.update, adamw.apply
else:
    adamw = torch.optim.AdamW(net.parameters(), lr=1e-3)
    job.keep(adamw=adamw)
    update, apply = lambda step: None, adamw.step
took, most = [], 0


def train(step):
    global most
    for parameter, gradient in zip(net, gradients):
        parameter.grad.copy_(gradient)
    step.group.barrier()
    began = time.perf_counter()
    update(step)
    step.commit(apply)
    took.append(1000 * (time.perf_counter() - began))
    most = max(most, memory() - before)


def compare(group):
    global most
    if job.committed == steps:
        every = torch.empty(group.world_size, dtype=torch.float64)
        group.all_gather(torch.tensor([float(most)], dtype=torch.float64).numpy(), every.numpy())
        most = every.max().item()


job.between(steps, compare)
job.run(steps, train)
if job.rank == 0:
    weights = zlib.crc32(torch.cat([p.detach() for p in net]).numpy().tobytes())
    print(f"{statistics.median(took[2:])} {most / count} {weights:08x}", flush=True)
