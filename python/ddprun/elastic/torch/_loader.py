"""A DataLoader whose workers load the shards that this rank is to compute, ahead of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Callable

import torch.utils.data
from torch.utils.data import default_collate

from ..._errors import BadArgument
from .. import GlobalBatches, Shard, shards_of, stream_seed
from ._seeds import seeded

# A worker's request: a seed, and the (set, index) of each sample.
_Wish = tuple[int, list[tuple[int, int]]]
_Place = tuple[int, int]  # Step, shard.


def _itself(batch: Any) -> Any:
    return batch


class _Shards:
    """A data set of whole shards. A copy of it is in each worker of the DataLoader."""

    def __init__(self, sets: Sequence[Any], collate: Callable[[list[Any]], Any]) -> None:
        self._sets = sets
        self._collate = collate

    def __getitem__(self, wish: _Wish) -> Any:
        seed, samples = wish
        with seeded(seed):
            return self._collate([self._sets[place][index] for place, index in samples])


class ShardLoader:
    """Loads each shard's samples, collated; with ``num_workers`` in processes, ahead of time.

    ::

        load = ShardLoader(dataset, batches, num_workers=2)
        def train(step):
            gradients.backward(step, lambda shard: loss_of(net, *load(shard)))
            gradients.commit(step, sgd.step)

    Workers are kept when the ranks change: they discard what they have loaded ahead, and continue
    with the rank's new shards. They end with the rank. The numbers that ``dataset[index]`` draws
    from the generators of torch, `random` and numpy depend on (seed, step, shard) only.

    datasets: a map-style data set; a list of them if `batches` are of several sets.
    collate_fn: makes a batch of a list of samples; torch's default_collate by default.
    seed: of the generators.
    options: of torch.utils.data.DataLoader, such as num_workers, prefetch_factor, pin_memory.
    """

    def __init__(
        self,
        datasets: Any,
        batches: GlobalBatches,
        *,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
        seed: int = 0,
        **options: Any,
    ) -> None:
        sets = [datasets] if batches.sets == 1 else list(datasets)
        if len(sets) != batches.sets:
            raise BadArgument(f"{len(sets)} data sets for batches of {batches.sets} sets")
        self._batches = batches
        self._seed = seed
        self._ranks: tuple[int, int] | None = None  # This rank, and how many.
        self._first: _Place = (0, 0)  # Where the DataLoader begins.
        self._ahead: Iterator[tuple[_Place, Any]] | None = None
        self._last = 0  # The step of the last requested shard.
        self._loaded: dict[_Place, Any] = {}  # Of this step, for when it runs again.
        options.setdefault("persistent_workers", options.get("num_workers", 0) > 0)
        self._loader = torch.utils.data.DataLoader(
            _Shards(sets, collate_fn),
            sampler=_Sampler(self),
            batch_size=None,
            collate_fn=_itself,
            **options,
        )

    def __call__(self, shard: Shard) -> Any:
        """Return the samples of a shard that :meth:`Step.shards` has yielded, collated."""
        if shard.ranks is None:
            raise BadArgument("pass a shard of step.shards(): it says which ones this rank has")
        if self._ranks != shard.ranks:
            self._ranks, self._ahead = shard.ranks, None
        self._loaded = {at: batch for at, batch in self._loaded.items() if at[0] == shard.step}
        wanted = (shard.step, shard.number)
        if wanted not in self._loaded:
            self._loaded[wanted] = self._next(wanted)
        return self._loaded[wanted]

    def _next(self, wanted: _Place) -> Any:
        # After steps that others computed, as while in reserve, do not load the samples in between.
        is_near = wanted[0] <= self._last + 1
        self._last = wanted[0]
        if self._ahead is not None and is_near:
            for at, batch in self._ahead:
                if at == wanted:
                    return batch
                if at > wanted:  # The step runs again; skipped shards are passed over.
                    break
        self._first = wanted
        with seeded(self._seed):  # DataLoader draws from torch's generator when it begins.
            self._ahead = zip(self._places(), self._loader)
        return next(self._ahead)[1]

    def _places(self) -> Iterator[_Place]:
        """Those of this rank from `_first` on, without end, as long as the ranks stay."""
        assert self._ranks is not None
        step, first = self._first
        while True:
            for number in shards_of(*self._ranks, self._batches.shards):
                if number >= first and len(self._batches.shard(step, number)):
                    yield step, number
            step, first = step + 1, 0

    def _wishes(self) -> Iterator[_Wish]:
        for step, number in self._places():
            shard = self._batches.shard(step, number)
            seed = stream_seed(self._seed, step, number, self._batches.shards)
            yield seed, list(zip(shard.sets, shard.indices))


class _Sampler:
    """What the DataLoader asks its workers for."""

    def __init__(self, loader: ShardLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[_Wish]:
        return self._loader._wishes()
