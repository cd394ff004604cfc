#!/usr/bin/env python3
"""Fashion-MNIST with PyTorch DDP: an ordinary script that knows nothing of ddprun.

    ddprun --standalone --nproc-per-node 2 train.py --epochs 2

The same model, data and settings as train, its twin in C++.
"""
import argparse
import gzip
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler


def read_idx(path):
    try:
        with gzip.open(path, "rb") as file:
            raw = bytearray(file.read())
    except (OSError, EOFError) as error:
        sys.exit(f"train.py: {path}: {error}; try: apt-get install dataset-fashion-mnist")
    extents = [int.from_bytes(raw[4 + 4 * d : 8 + 4 * d], "big") for d in range(raw[3])]
    return torch.frombuffer(raw, dtype=torch.uint8, offset=4 + 4 * raw[3]).reshape(extents)


def load(folder, stem):
    images = read_idx(os.path.join(folder, f"{stem}-images-idx3-ubyte.gz"))
    labels = read_idx(os.path.join(folder, f"{stem}-labels-idx1-ubyte.gz"))
    return images.unsqueeze(1), labels.long()


def make_model():
    def block(inputs, outputs):
        return [nn.Conv2d(inputs, outputs, 5, padding=2), nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True), nn.MaxPool2d(2)]

    return nn.Sequential(*block(1, 16), *block(16, 32), nn.Flatten(), nn.Linear(7 * 7 * 32, 10))


def train_epoch(ddp, optimizer, data, indices, batch_size, device):
    images, labels = data
    loss_sum = 0.0
    for batch in torch.tensor(indices).split(batch_size):
        scores = ddp((images[batch].float() / 255).to(device))
        loss = nn.functional.cross_entropy(scores, labels[batch].to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum += loss.item() * len(batch)
    return loss_sum


@torch.no_grad()
def evaluate(model, data, rank, world_size, device):
    images, labels = data
    mine = torch.arange(len(labels) * rank // world_size, len(labels) * (rank + 1) // world_size)
    model.eval()
    right = sum((model((images[batch].float() / 255).to(device)).argmax(1) == labels[batch].to(device)).sum()
                for batch in mine.split(500))
    model.train()
    dist.all_reduce(right)
    return right.item() / len(labels)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=100, help="of each rank")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-steps", type=int, default=0, help="end each epoch after as many")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    return parser.parse_args()


def main():
    options = parse_options()
    device, backend = torch.device("cpu"), "gloo"
    if options.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        backend = "nccl"
    dist.init_process_group(backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    training_set, test_set = load(options.data, "train"), load(options.data, "t10k")
    ddp = DistributedDataParallel(make_model().to(device))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=options.lr, momentum=0.9)
    sampler = DistributedSampler(training_set[1], seed=options.seed)
    accuracy, samples, seconds = 0.0, 0, 0.0
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        indices = list(sampler)
        if options.max_steps:
            indices = indices[: options.max_steps * options.batch_size]
        start = time.monotonic()
        loss_sum = torch.tensor(train_epoch(ddp, optimizer, training_set, indices,
                                            options.batch_size, device), device=device)
        elapsed = time.monotonic() - start
        dist.all_reduce(loss_sum)
        samples, seconds = samples + len(indices) * world_size, seconds + elapsed
        accuracy = evaluate(ddp.module, test_set, rank, world_size, device)
        if rank == 0:
            print(f"epoch {epoch + 1}/{options.epochs}  "
                  f"loss {loss_sum.item() / (len(indices) * world_size):.4f}  "
                  f"test accuracy {100 * accuracy:.2f} %  "
                  f"{len(indices) * world_size / elapsed:.0f} samples/s", flush=True)
    if rank == 0:
        print(f"test accuracy   {100 * accuracy:.2f} %\n"
              f"speed           {samples / seconds:.0f} samples/s, {world_size} workers over {backend}",
              flush=True)
    # PyTorch 1.13 may deadlock on the interpreter's lock if DDP is the last to let go of the group.
    del ddp
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
