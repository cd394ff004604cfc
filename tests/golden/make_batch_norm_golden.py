#!/usr/bin/env python3
"""Writes batch_norm.txt: what PyTorch's BatchNorm makes of batches that are split over ranks, for
tests/process/torch/torch_adapter_test.cc.

    python3 tests/golden/make_batch_norm_golden.py > tests/golden/batch_norm.txt

PyTorch's own SyncBatchNorm refuses tensors of the CPU; by its definition it is BatchNorm over the joined batch, so that
is what computes here, in f64 from numbers that are f32's. A line a step; the steps of a case follow each other:
"sync_batch_norm case step momentum eps channels places count-of-rank-0 count-of-rank-1 ... : x | dy | weight | bias |
y | dx | dweight | dbias | running_mean | running_var". x is [sum of counts, channels, places], without the last
dimension where places is 0.
"""
import torch

CASES = [  # momentum, eps, channels, places, samples of each rank
    (0.1, 1e-5, 4, 6, (3, 5, 0)),
    (None, 1e-5, 3, 0, (1, 4)),
    (0.3, 1e-3, 2, 5, (2, 1, 4)),
    (None, 1e-5, 3, 2, (0, 7)),
    (0.1, 1e-5, 5, 0, (1, 1, 1)),
]
STEPS = 3


def text(tensor):
    return " ".join(f"{value:.9g}" for value in tensor.detach().flatten().tolist())


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float32).double()


def main():
    torch.manual_seed(20261122)
    for case, (momentum, eps, channels, places, counts) in enumerate(CASES):
        layer = torch.nn.BatchNorm1d(channels, eps=eps, momentum=momentum, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(draw(channels))
            layer.bias.copy_(draw(channels))
        for step in range(STEPS):
            shape = (sum(counts), channels) + ((places,) if places else ())
            x = (draw(*shape) * 3 + 2).float().double().requires_grad_()
            dy = draw(*shape)
            layer.zero_grad()
            y = layer(x)
            y.backward(dy)
            words = [case, step, "none" if momentum is None else momentum, eps, channels, places, *counts]
            parts = [x, dy, layer.weight, layer.bias, y, x.grad, layer.weight.grad, layer.bias.grad, layer.running_mean,
                     layer.running_var]
            print("sync_batch_norm", *words, ":", " | ".join(map(text, parts)))


if __name__ == "__main__":
    main()
