#!/usr/bin/env python3
"""What `ddprun --report` adds to a step of an unchanged PyTorch script: a small DDP model on gloo, 2 ranks, watched and not.

    bench/python/watch.py [--build build/dev] [--turns 15] [--device cuda]

PYTHON_EXEC names the interpreter with torch. One process takes turns of 100 steps with the wrapped functions and with torch's
own. Prints the medians [min-max] of a step's processor time, of this process, and what the difference is of a step of 50 ms.
With `--device cuda` it is 1 rank on NCCL and the first GPU, and a step's time until the GPU is through with all of them: the
model is so small that its GPU waits for the host.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from compare import environment  # noqa: E402
from side_by_side import add_build_option, need_torch  # noqa: E402

TRAIN = """
import json, sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter as Batches
from torch.optim import optimizer

def switch(functions):
    for (holder, name), function in functions.items():
        setattr(holder, name, function)

places = [(Batches, "__next__"), (torch.autograd, "backward"), (torch._C._distributed_c10d.Work, "wait"),
          (torch.nn.parallel.DistributedDataParallel, "forward"), (optimizer, "_global_optimizer_pre_hooks"),
          (optimizer, "_global_optimizer_post_hooks")]
watched = {place: getattr(*place) for place in places}
plain = {place: getattr(found, "__wrapped__", None) or type(found)() for place, found in watched.items()}
device = torch.device(sys.argv[2], 0) if sys.argv[2] == "cuda" else torch.device("cpu")
clock = time.perf_counter if device.type == "cuda" else time.process_time
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(device)
net = torch.nn.parallel.DistributedDataParallel(net)
sgd = torch.optim.SGD(net.parameters(), 0.01)
batches = DataLoader(TensorDataset(torch.ones(100, 8, device=device)), 1)

def turn():
    begun = clock()
    for (x,) in batches:
        sgd.zero_grad()
        net(x).sum().backward()
        sgd.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (clock() - begun) * 1e4

turn()
found = []
for _ in range(int(sys.argv[1])):
    pair = []
    for functions in (plain, watched):
        switch(functions)
        pair.append(turn())
    found.append(pair)
if dist.get_rank() == 0:
    print("took", json.dumps(found), flush=True)
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_build_option(parser, "bin/ddprun", "bin/libddprun-watch.so", "worker_sdk/libddprun.so")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    need_torch()
    with tempfile.TemporaryDirectory(prefix="ddprun-watch-") as folder:
        script = os.path.join(folder, "train.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(TRAIN)
        command = [os.path.join(options.build, "bin", "ddprun"), "--nproc-per-node", "2" if options.device == "cpu" else "1", "--report",
                   script, str(options.turns), options.device]
        env = environment(options.build)
        if options.device == "cuda":
            del env["CUDA_VISIBLE_DEVICES"]
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    (line,) = [line for line in done.stdout.splitlines() if "took" in line]
    pairs = json.loads(line.split("took")[1])
    for name, values in zip(("plain", "watched"), zip(*pairs)):
        print(f"{name:8} {statistics.median(values):6.0f} [{min(values):.0f}-{max(values):.0f}] us a step")
    added = statistics.median(watched - plain for plain, watched in pairs)
    print(f"added    {added:6.1f} us, {added / 500:.3f} % of a step of 50 ms")


if __name__ == "__main__":
    main()
