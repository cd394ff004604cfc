"""Which samples each step trains on, whatever the number of ranks: ddprun/elastic/global_batches.h.

Everything here is a function of (seed, step, shard), and needs neither a group nor a job.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, Union

from .._arguments import number as a_number
from .._arguments import seed as bits_of
from .._arguments import whole
from .._c_api import LAST_CONTINUES, LAST_DROPPED, LAST_SMALLER, BatchOptions, DataSet
from .._core import Handle, check, create
from .._errors import BadArgument
from .._library import library

_LAST = {"smaller": LAST_SMALLER, "dropped": LAST_DROPPED, "continues": LAST_CONTINUES}
_WHOLE = -1  # Instead of a shard: the whole batch.


class Sample(NamedTuple):
    """One sample of a data set."""

    set: int
    """The data set's place in `sets`."""
    index: int  # type: ignore[assignment]  # Not that of tuples.
    """The sample's place in the set, from 0."""
    epoch: int
    """The set's epoch, from 0."""


class Shard:
    """The part of one step's batch that is computed in one pass, by one rank.

    step: the step's number, from 0.
    number: the shard's number, from 0.
    sets, indices, epochs: of each sample, in the batch's order; lists of equal length.
    ranks: the rank that computes it and the number of ranks, if :meth:`Step.shards` yielded it.
    mine: the numbers of all shards that this rank has in the step, if :meth:`Step.shards` yielded
        it.
    """

    __slots__ = ("epochs", "indices", "mine", "number", "ranks", "sets", "step")

    def __init__(self, step: int, number: int, address: int | None, count: int) -> None:
        # `address`: `count` structs of three i64 each.
        flat: Any = (ctypes.c_int64 * (3 * count)).from_address(address) if address else ()
        self.step = step
        self.number = number
        self.ranks: tuple[int, int] | None = None
        self.mine: range | None = None
        self.sets: list[int] = list(flat[0::3])
        self.indices: list[int] = list(flat[1::3])
        self.epochs: list[int] = list(flat[2::3])

    @property
    def samples(self) -> list[Sample]:
        """The samples one by one, for batches of several sets."""
        return [Sample(*each) for each in zip(self.sets, self.indices, self.epochs)]

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        return f"<ddprun.elastic.Shard {self.number} of step {self.step}: {len(self)} samples>"


Sets = Union[int, Sequence[tuple[int, int]]]


def _sets_of(sets: Sets) -> list[tuple[int, int]]:
    if hasattr(sets, "__index__"):
        return [(whole(sets, "the length of a data set"), 0)]
    try:
        pairs = [(length, per_batch) for length, per_batch in sets]
    except (TypeError, ValueError):
        raise BadArgument(
            "sets must be the length of the data set, or a list of (length, samples of each batch)"
        ) from None
    return [
        (whole(length, "the length of a data set"), whole(per_batch, "the samples of a data set"))
        for length, per_batch in pairs
    ]


class GlobalBatches(Handle):
    """The batches of a run. Each index is in exactly one step of each epoch of its data set.

    sets: the length of the data set in samples, or for several of them a list of pairs
        (length, samples of each batch that come from this set).
    global_batch: samples of a step, over all ranks.
    shards: the number of parts of a batch. Fixed for the run, and at least the largest number
        of ranks; each part is a pass of its own.
    seed: of the order.
    shuffle: whether the order is new in each epoch, or that of the indices.
    last: the last batch of an epoch if the data set is not a multiple of the batch: "smaller",
        "dropped", or "continues" with samples of the next epoch.

    Immutable; usable from any thread.
    """

    _what = "batches"
    _is_memory = True
    _ends_at_exit = False  # Another thread may use it until the end.

    def __init__(
        self,
        sets: Sets,
        global_batch: int,
        shards: int = 1,
        *,
        seed: int = 0,
        shuffle: bool = True,
        last: str = "smaller",
    ) -> None:
        if last not in _LAST:
            raise BadArgument(f"last {last!r} is not one of {', '.join(_LAST)}")
        pairs = _sets_of(sets)
        size = ctypes.sizeof(DataSet)
        array = (DataSet * len(pairs))(*(DataSet(size, *pair) for pair in pairs))
        options = BatchOptions(
            ctypes.sizeof(BatchOptions), array, len(pairs),
            whole(global_batch, "global_batch"), bits_of(seed), a_number(shards, "shards"), shuffle,
            _LAST[last], 0,
        )  # fmt: skip
        handle = create("batches_create", ctypes.byref(options), operation="GlobalBatches")
        super().__init__(handle, library().ddprun_batches_destroy)
        self.shards = int(shards)
        """Parts of each batch."""
        self.sets = len(pairs)
        """Data sets."""

    @property
    def steps_per_epoch(self) -> int:
        """The steps of one epoch of the only data set."""
        return self._count("steps_per_epoch")

    def batch_size(self, step: int) -> int:
        """Return the samples of a step, over all ranks."""
        return self._count("size", whole(step, "step"))

    def batch(self, step: int) -> Shard:
        """Return all samples of a step; `number` is -1."""
        return self._samples(step, _WHOLE)

    def shard(self, step: int, number: int) -> Shard:
        """Return a part of the step's batch; parts of a step differ by one sample at most."""
        if whole(number, "number") < 0:
            raise BadArgument(f"there is no shard {number}")
        return self._samples(step, number)

    def _samples(self, step: int, number: int) -> Shard:
        step, number = whole(step, "step"), a_number(number, "the shard")
        first, count = ctypes.c_void_p(), ctypes.c_size_t()
        places = ctypes.byref(first), ctypes.byref(count)
        self._call("batches_samples", step, number, *places, operation="GlobalBatches")
        return Shard(step, number, first.value, count.value)

    def _count(self, what: str, *arguments: int) -> int:
        count = ctypes.c_int64()
        self._call("batches_" + what, *arguments, ctypes.byref(count), operation="GlobalBatches")
        return count.value


def shards_of(rank: int, world_size: int, shards: int) -> range:
    """Return the shards of a rank: contiguous, as many as any other rank's, or one more."""
    first, count = ctypes.c_int(), ctypes.c_int()
    status = library().ddprun_shards_of(
        a_number(rank, "rank"),
        a_number(world_size, "world_size"),
        a_number(shards, "shards"),
        ctypes.byref(first),
        ctypes.byref(count),
    )
    check(status, "shards_of", rank)
    return range(first.value, first.value + count.value)


def stream_seed(seed: int, step: int, shard: int, shards: int) -> int:
    """Return a seed of 64 bits for another generator.

    The low 32 bits, all that torch's CPU generator takes, differ for all (step, shard) of one
    `seed` and one number of shards, up to 2**32 of them.
    """
    return int(
        library().ddprun_stream_seed(
            bits_of(seed),
            whole(step, "step", 0),
            whole(shard, "shard", 0, 2**32 - 1),
            whole(shards, "shards", 0, 2**32 - 1),
        )
    )
