"""A DataLoader whose workers load the shards that this rank is to compute, ahead of time."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import torch.utils.data
from torch.utils.data import default_collate

from ..._errors import BadArgument
from .. import GlobalBatches, Shard, stream_seed
from ._seeds import seeded

# A worker's request: a seed, and the (set, index) of each sample.
_Request = tuple[int, list[tuple[int, int]]]
_Place = tuple[int, int]  # Step, shard.


def _itself(batch: Any) -> Any:
    return batch


class _Shards:
    """A data set of whole shards. A copy of it is in each worker of the DataLoader."""

    def __init__(self, sets: Sequence[Any], collate: Callable[[list[Any]], Any]) -> None:
        self._sets = sets
        self._collate = collate

    def __getitem__(self, request: _Request) -> Any:
        seed, samples = request
        with seeded(seed):
            return self._collate([self._sets[place][index] for place, index in samples])


class ShardLoader:
    """Loads each shard's samples, collated; with ``num_workers`` in processes, ahead of time.

    ::

        load = ShardLoader(dataset, batches, num_workers=2)
        def train(step):
            gradients.backward(step, lambda shard: loss_of(net, *load(shard)))
            gradients.commit(step, sgd.step)

    Ahead of time it loads the shards that this rank would have if none moved. One that this rank
    does not get is discarded; one that it gets unexpectedly, because ranks differ in speed, is
    loaded in the rank's own process, when it is requested. Workers are kept when the ranks change:
    they discard what they have loaded ahead, and continue with the rank's new shards. They end with
    the rank. The numbers that ``dataset[index]`` draws from the generators of torch, `random` and
    numpy depend on (seed, step, shard) only.

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
        self._mine = range(0)  # The shards of this rank, as far as is known.
        self._ahead: Iterator[Any] | None = None
        self._requested: collections.deque[_Place] = collections.deque()  # Of _ahead, in order.
        self._early: tuple[_Place, Any] | None = None  # From _ahead, for a later call.
        self._last = 0  # The step of the last requested shard.
        self._loaded: dict[_Place, Any] = {}  # Of this step, for when it runs again.
        options.setdefault("persistent_workers", options.get("num_workers", 0) > 0)
        self._shards = _Shards(sets, collate_fn)
        self._loader = torch.utils.data.DataLoader(
            self._shards,
            sampler=_Sampler(self),
            batch_size=None,
            collate_fn=_itself,
            **options,
        )

    def __call__(self, shard: Shard) -> Any:
        """Return the samples of a shard that :meth:`Step.shards` has yielded, collated."""
        if shard.ranks is None or shard.mine is None:
            raise BadArgument("pass a shard of step.shards(): it says which ones this rank has")
        if shard.number not in shard.mine:  # It is audited, and no shard that this rank expects.
            return self._shards[self._request((shard.step, shard.number))]
        if self._ranks != shard.ranks:
            self._ranks, self._ahead = shard.ranks, None
        self._mine = shard.mine
        self._loaded = {at: batch for at, batch in self._loaded.items() if at[0] == shard.step}
        wanted = (shard.step, shard.number)
        if wanted not in self._loaded:
            self._loaded[wanted] = self._next(wanted)
        return self._loaded[wanted]

    def _next(self, wanted: _Place) -> Any:
        # After steps that others computed, as while in reserve, do not load the samples in between.
        is_near = wanted[0] <= self._last + 1
        self._last = wanted[0]
        while self._ahead is not None and is_near:
            at, batch = self._early or (None, None)
            if at is None:
                batch = next(self._ahead)
                at = self._requested.popleft()
            self._early = None
            if at == wanted:
                return batch
            if at[0] > wanted[0] + 1:
                break
            if at > wanted:  # It was another rank's, or the step runs again.
                self._early = at, batch
                return self._shards[self._request(wanted)]
        self._first = wanted
        self._early = None
        self._requested.clear()
        with seeded(self._seed):  # DataLoader draws from torch's generator when it begins.
            self._ahead = iter(self._loader)
        batch = next(self._ahead)
        self._requested.popleft()
        return batch

    def _places(self) -> Iterator[_Place]:
        """Those of this rank from `_first` on, without end, if no further shard moves."""
        step, first = self._first
        while True:
            for number in self._mine:
                if number >= first and len(self._batches.shard(step, number)):
                    yield step, number
            step, first = step + 1, 0

    def _request(self, place: _Place) -> _Request:
        step, number = place
        shard = self._batches.shard(step, number)
        seed = stream_seed(self._seed, step, number, self._batches.shards)
        return seed, list(zip(shard.sets, shard.indices))

    def _requests(self) -> Iterator[_Request]:
        for place in self._places():
            self._requested.append(place)
            yield self._request(place)


class _Sampler:
    """What the DataLoader asks its workers for."""

    def __init__(self, loader: ShardLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[_Request]:
        return self._loader._requests()
