"""What the ranks agree on, over torch.distributed if the program uses it."""

from __future__ import annotations

import importlib
import mmap
import os
import pickle
import sys
from typing import Any, Callable

from .._errors import BadEnvironment
from ._pieces import as_tensor

_CHUNK = 64 << 20
_SHORT = 4096  # What a rank gives is mostly shorter, and then sent at once.


class Ranks:
    """One process alone."""

    rank = 0
    size = 1

    def gather(self, mine: Any) -> list[Any]:
        """Return what each rank gives, by rank."""
        return [mine]

    def minimum(self, *numbers: int) -> list[int]:
        """Return the smallest of all ranks, for each of `numbers`."""
        return self.begin_minimum(*numbers)()

    def begin_minimum(self, *numbers: int) -> Callable[[], list[int]]:
        """Begin :meth:`minimum`; what is returned waits for it."""
        return lambda: list(numbers)

    def broadcast(self, memory: Any, source: int) -> Any:
        """Return the bytes of `source`; None if it gives None. Only its `memory` is used."""
        return memory


# Of the last operation. A thread of PyTorch 1.13's Gloo lets go of its tensors a moment after the
# operation is over: were they the last ones, it would need the interpreter for that, and if that
# ends just then, the process aborts.
_last: list[Any] = []


class TorchRanks(Ranks):
    """The ranks of a group of torch.distributed."""

    def __init__(self, group: Any = None) -> None:
        self._torch = importlib.import_module("torch")
        self._dist = importlib.import_module("torch.distributed")
        self._group = group
        self.rank = self._dist.get_rank(group)
        self.size = self._dist.get_world_size(group)
        cuda = self._dist.get_backend(group) == "nccl"
        self._device = self._torch.device("cuda" if cuda else "cpu")

    def gather(self, mine: Any) -> list[Any]:
        """Return what each rank gives, by rank."""
        mine_bytes = pickle.dumps(mine, protocol=5)
        first = len(mine_bytes).to_bytes(8, "little") + mine_bytes
        begins = self._gather_bytes(first[:_SHORT], _SHORT)
        lengths = [int.from_bytes(each[:8], "little") + 8 for each in begins]
        longest = max(lengths)
        rests = [b""] * self.size
        if longest > _SHORT:
            rests = self._gather_bytes(first[_SHORT:], longest - _SHORT)
        return [
            pickle.loads((begin + rest)[8:length])
            for begin, rest, length in zip(begins, rests, lengths)
        ]

    def _gather_bytes(self, mine: bytes, length: int) -> list[bytes]:
        """Return the bytes of each rank, at most `length`, with zeros at their end."""
        part = as_tensor(bytearray(mine.ljust(length, b"\0"))).to(self._device)
        memory = bytearray(self.size * length)
        parts = as_tensor(memory).split(length)
        arrived = [each.to(self._device) for each in parts]
        work = self._dist.all_gather(arrived, part, group=self._group, async_op=True)
        work.wait()
        _last[:] = work, arrived, part
        for target, each in zip(parts, arrived):
            target.copy_(each)
        return [bytes(memory[at : at + length]) for at in range(0, len(memory), length)]

    def begin_minimum(self, *numbers: int) -> Callable[[], list[int]]:
        """Begin :meth:`minimum`; what is returned waits for it."""
        found = self._torch.tensor(numbers, dtype=self._torch.int64, device=self._device)
        least = self._dist.ReduceOp.MIN
        work = self._dist.all_reduce(found, op=least, group=self._group, async_op=True)

        def wait() -> list[int]:
            work.wait()
            _last[:] = work, found
            return [int(each) for each in found.tolist()]

        return wait

    def broadcast(self, memory: Any, source: int) -> Any:
        """Return the bytes of `source`; None if it gives None. Only its `memory` is used."""
        length = -1 if memory is None or self.rank != source else len(memory)
        (length,) = (-each for each in self.minimum(-length))
        if length < 0:
            return None
        if self.rank != source:
            memory = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        data = as_tensor(memory)
        root = self._dist.get_global_rank(self._group, source) if self._group else source
        for at in range(0, length, _CHUNK):
            part = data[at : at + _CHUNK]
            moved = part.to(self._device)
            self._dist.broadcast(moved, root, group=self._group)
            if moved is not part and self.rank != source:
                part.copy_(moved)
        return memory


def ranks_of(group: Any = None) -> Ranks:
    """Return those of torch.distributed, or one process alone."""
    dist = sys.modules.get("torch.distributed")
    if group is not None or (dist is not None and dist.is_available() and dist.is_initialized()):
        return TorchRanks(group)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise BadEnvironment(
            "the ranks have to agree on what is loaded: call torch.distributed.init_process_group()"
            " before the first load() or save()"
        )
    return Ranks()
