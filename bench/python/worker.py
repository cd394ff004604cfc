"""A rank of compare.py: worker.py BACKEND WHAT [N]. Rank 0 prints one JSON object.

BACKEND: gloo, ddprun, or ddprun-shared: the same with ddprun.torch's own DistributedDataParallel and memory.
WHAT: all_reduce, convnet, transformer. Importable by nothing.
"""

import json
import statistics
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

# Steps that are timed. One of the transformer takes a quarter of a second where 4 ranks share 2 processors.
STEPS = {"convnet": 40, "transformer": 10}
SIZES = [4 << 10, 64 << 10, 1 << 20, 4 << 20, 25 << 20, 100 << 20]


def all_reduce(shared):
    """Median microseconds by bytes; "async": begun and waited for."""
    times = {}
    for size in SIZES:
        values = ddprun.torch.shared_zeros([size // 4]) if shared else torch.zeros(size // 4)
        count = max(3, min(300, (40 << 20) // size))
        found = []
        for turn in range(count + 3):
            begun = time.perf_counter()
            dist.all_reduce(values)
            if turn >= 3:
                found.append(time.perf_counter() - begun)
        times[size] = statistics.median(found) * 1e6
    return times


class Transformer(nn.Module):
    """Two layers of width 256, 4.9 million parameters."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5000, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(256, 5000)

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens)).mean(1))


def convnet():
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
                         nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 49, 128), nn.ReLU(), nn.Linear(128, 10))


def train(what, shared, steps):
    """Samples a second of all ranks."""
    torch.manual_seed(1)
    batch, classes = (32, 10) if what == "convnet" else (4, 5000)
    net = convnet() if what == "convnet" else Transformer()
    inputs = torch.randn(batch, 1, 28, 28) if what == "convnet" else torch.randint(5000, (batch, 32))
    targets = torch.randint(classes, (batch,))
    wrapper = ddprun.torch.DistributedDataParallel if shared else nn.parallel.DistributedDataParallel
    net = wrapper(net)
    sgd = torch.optim.SGD(net.parameters(), 0.01)
    loss_of = nn.CrossEntropyLoss()
    for step in range(steps + 5):
        if step == 5:
            dist.barrier()
            begun = time.perf_counter()
        sgd.zero_grad(set_to_none=True)
        loss_of(net(inputs), targets).backward()
        sgd.step()
    dist.barrier()
    return batch * dist.get_world_size() * steps / (time.perf_counter() - begun)


def main():
    backend, what = sys.argv[1:3]
    torch.set_num_threads(1)
    dist.init_process_group(backend.split("-")[0], timeout=timedelta(seconds=300))
    shared = backend == "ddprun-shared"
    if what == "all_reduce":
        result = all_reduce(shared)
    else:
        result = train(what, shared, int(sys.argv[3]) if len(sys.argv) > 3 else STEPS[what])
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] != "gloo":
        import ddprun.torch
    main()
