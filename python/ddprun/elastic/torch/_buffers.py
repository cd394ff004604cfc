"""The buffers of a module, such as running averages, where a batch is computed shard by shard.

Each shard's pass begins with those of the last committed step, and the step changes them once, by
the mean of the shards' changes: as ShardBuffers of ddprun/torch/elastic_gradients.h.
"""

from __future__ import annotations

from typing import Any

import torch

from ..._errors import Unsupported


class ShardBuffers:
    """`changes`: of each buffer, flat, of float32, to be summed over shards and ranks."""

    def __init__(self, module: Any) -> None:
        self._buffers: list[Any] = []
        self._before: list[Any] = []
        self.changes: list[Any] = []
        for name, buffer in module.named_buffers():
            if buffer.numel() == 0:
                continue
            if buffer.device.type != "cpu" or buffer.layout != torch.strided or buffer.is_complex():
                raise Unsupported(
                    f"buffer {name} is not a dense tensor of real numbers in host memory"
                )
            self._buffers.append(buffer)
            self.changes.append(torch.zeros(buffer.numel(), dtype=torch.float32))

    def begin(self) -> None:
        """Start a step."""
        self._before = [buffer.detach().clone() for buffer in self._buffers]

    def take(self, weight: float) -> None:
        """After a shard's pass: its change times `weight` to `changes`; then reset."""
        with torch.no_grad():
            for buffer, before, change in zip(self._buffers, self._before, self.changes):
                difference = buffer.to(torch.float64) - before.to(torch.float64)
                change.copy_((difference * weight).reshape(-1))
        self.reset()

    def reset(self) -> None:
        """Put the buffers back to what they were."""
        with torch.no_grad():
            for buffer, before in zip(self._buffers, self._before):
                buffer.copy_(before)

    def apply(self) -> None:
        """Add `changes`, which are the sums now, to the buffers."""
        with torch.no_grad():
            for buffer, before, change in zip(self._buffers, self._before, self.changes):
                total = before.to(torch.float64) + change.view(before.shape)
                if not before.is_floating_point():
                    total.round_()
                buffer.copy_(total)
