"""A sampler for torch's DataLoader that resumes within an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from .._errors import BadArgument
from .._sdk._sampler import DistributedSampler as _Sampler

Base: Any = torch.utils.data.Sampler


class DistributedSampler(Base):
    """torch's DistributedSampler, with the same indices, that resumes within an epoch.

    With another number of ranks, too. ``__len__`` is what is left of the epoch, so a DataLoader
    counts the batches that are left::

        sampler = ddprun.torch.DistributedSampler(data, seed=7)
        loader = DataLoader(data, batch_size=32, sampler=sampler)
        for epoch in range(sampler.epoch, epochs):
            sampler.set_epoch(epoch)
            for x, y in loader:
                train(x, y)
                sampler.advance(len(x))
                save(sampler.state_dict())

    A DataLoader reads ahead, so what counts as read is what :meth:`advance` is told. It applies to
    the next iteration; one that is under way goes on in its order.

    dataset: of known length, equal on all ranks.
    num_replicas, rank: the number of parts, and which of them; None: those of the default process
        group.
    shuffle, seed, drop_last: as torch's; equal on all ranks.
    """

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if (num_replicas is None or rank is None) and not dist.is_initialized():
            raise BadArgument("without a process group, num_replicas and rank must be given")
        self._sampler = _Sampler(
            len(dataset),
            dist.get_rank() if rank is None else rank,
            dist.get_world_size() if num_replicas is None else num_replicas,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
        )

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self._sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch; the current one goes on where it is."""
        self._sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        """Iterate over this rank's indices for the rest of the epoch."""
        return iter(self._sampler)

    def __len__(self) -> int:
        """Return how many indices are left to this rank in the epoch."""
        return len(self._sampler)

    def advance(self, count: int) -> None:
        """Record that this rank, and so each other rank, has trained on `count` more samples."""
        self._sampler.advance(count)

    def state_dict(self) -> dict[str, int]:
        """Return {"epoch": from 0, "consumed": samples of it that all ranks have read}."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from `state`, of any number of ranks."""
        self._sampler.load_state_dict(state)
