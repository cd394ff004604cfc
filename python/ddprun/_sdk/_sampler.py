"""Which samples of a data set this rank reads: ddprun/distributed_sampler.h."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Iterator, Mapping

from .._arguments import long_number, number
from .._c_api import SamplerOptions
from .._core import Handle, create
from .._errors import BadArgument
from .._library import library


class DistributedSampler(Handle):
    """Deals the indices of a data set to ranks, exactly as torch's DistributedSampler.

    Unlike with torch's, training can resume within an epoch, with another number of ranks, too::

        sampler = ddprun.DistributedSampler(len(data), group.rank, group.world_size, seed=7)
        for epoch in range(sampler.epoch, epochs):
            sampler.set_epoch(epoch)
            for index in sampler:
                train(data[index])
                sampler.advance(1)         # a checkpoint saves sampler.state_dict()

    length: samples of the data set.
    rank, world_size: which part of them; the same length, seed, shuffle and drop_last on all ranks.
    shuffle: whether epoch e has the order that seed + e gives, or that of the indices.
    drop_last: whether the tail is dropped, or filled up with repeated samples, where the length is
        no multiple of world_size.

    Sends nothing. One thread at a time; usable in a child of fork().
    """

    _what = "sampler"
    _is_memory = True
    _ends_at_exit = False  # Another thread may use it until the end.

    def __init__(
        self,
        length: int,
        rank: int,
        world_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if not isinstance(seed, int) or not 0 <= seed < 2**64:
            raise BadArgument(f"seed must be a whole number of 64 bits, from 0, not {seed!r}")
        options = SamplerOptions(
            ctypes.sizeof(SamplerOptions),
            long_number(length, "length"),
            seed,
            number(world_size, "world_size"),
            number(rank, "rank"),
            bool(shuffle),
            bool(drop_last),
        )
        handle = create("sampler_create", ctypes.byref(options), operation="DistributedSampler")
        super().__init__(handle, library().ddprun_sampler_destroy)
        self._left: array.array[int] | None = None  # The result of indices().

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self.state_dict()["epoch"]

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch; the current one goes on where it is."""
        self._moved("set_epoch", long_number(epoch, "epoch"))

    def indices(self) -> array.array[int]:
        """Return this rank's indices for the rest of the epoch, of 64 bits, in reading order.

        All ranks have equally many. The array is shared with later calls.
        """
        if self._left is None:
            first, count = ctypes.c_void_p(), ctypes.c_size_t()
            places = ctypes.byref(first), ctypes.byref(count)
            self._call("sampler_indices", *places, operation="DistributedSampler")
            self._left = array.array("q")
            if first.value:
                self._left.frombytes(ctypes.string_at(first.value, 8 * count.value))
        return self._left

    def __iter__(self) -> Iterator[int]:
        """Iterate over :meth:`indices`; what is iterated over does not count as read."""
        return iter(self.indices())

    def __len__(self) -> int:
        """Return how many indices are left to this rank in the epoch."""
        return len(self.indices())

    def advance(self, count: int) -> None:
        """Record that this rank, and so each other rank, has read `count` more samples."""
        self._moved("advance", long_number(count, "count"))

    def state_dict(self) -> dict[str, int]:
        """Return the progress, equal on all ranks: {"epoch": from 0, "consumed": samples}.

        `consumed` counts the samples of this epoch that all ranks together have read.
        """
        epoch, consumed = ctypes.c_int64(), ctypes.c_int64()
        places = ctypes.byref(epoch), ctypes.byref(consumed)
        self._call("sampler_state", *places, operation="DistributedSampler")
        return {"epoch": epoch.value, "consumed": consumed.value}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from `state`: the rest of its epoch is divided among the ranks of now.

        No sample is repeated or left out, but for the filling or the dropped tail at the end.
        """
        try:
            epoch, consumed = state["epoch"], state["consumed"]
        except (KeyError, TypeError):
            raise BadArgument("the state has to have epoch and consumed") from None
        self._moved("load", long_number(epoch, "epoch"), long_number(consumed, "consumed"))

    def _moved(self, name: str, *arguments: int) -> None:
        self._call("sampler_" + name, *arguments, operation="DistributedSampler." + name)
        self._left = None
