"""torch.distributed.checkpoint in the memory of the nodes: for state that is divided among ranks.

::

    import torch.distributed.checkpoint as dcp
    from ddprun.checkpoint.dcp import MemoryReader, MemoryWriter

    reader = MemoryReader()
    if reader.step:
        dcp.load(state, storage_reader=reader)
    writer = MemoryWriter()
    for step in range(reader.step, steps):
        train(step)
        if (step + 1) % 10 == 0:
            dcp.save(state, checkpoint_id=str(step + 1), storage_writer=writer)

DCP divides the state anew for another number of ranks: FSDP2, HSDP, DTensor, ZeRO. The files are
those of :class:`ddprun.checkpoint.Memory`, with one more piece for DCP's metadata. Needs torch 2.3.
"""

from __future__ import annotations

import io
import os
import pickle
import re
from concurrent.futures import Future
from typing import Any

import torch
from torch.futures import Future as TorchFuture

from .._errors import BadArgument, Corrupt
from ._memory import Folder, Key, Memory, Places, log
from ._pieces import Piece, Slot, aligned
from ._state import Stored
from ._tiers import Generation, Tier, piece_name

_VERSION = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
if _VERSION < (2, 3):
    raise ImportError(f"ddprun.checkpoint.dcp needs torch 2.3 or newer, not {torch.__version__}")

from torch.distributed.checkpoint import StorageReader, StorageWriter  # noqa: E402
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType  # noqa: E402
from torch.distributed.checkpoint.storage import WriteResult  # noqa: E402


class _Pieces(Memory):
    """One piece for each rank, and one for DCP's metadata."""

    def _place(self) -> tuple[int, int]:
        ranks = self._the_ranks()
        return ranks.rank, ranks.size + 1

    def put_metadata(self, metadata: Any) -> None:
        """Write the last piece of the generation that was just saved."""
        assert self._pending is not None and self._home is not None
        generation = self._pending.generation
        try:
            self._put(self._home, generation, metadata)
        except OSError as error:  # Then the generation is not whole, and those before it stay.
            failed: Future[None] = Future()
            failed.set_exception(error)
            self._pending.written.exception()
            self._pending = self._pending._replace(written=failed)
            raise
        if self._disk and self._in_memory and generation.sequence % self._to_disk_every == 0:
            self._disk.make()
            self._put(self._disk, generation, metadata)

    def _put(self, tier: Tier, generation: Generation, metadata: Any) -> None:
        text = pickle.dumps(metadata, protocol=5)
        slot = Slot(
            os.path.join(tier.path, os.path.basename(self._unfinished_path())), len(text) + 64
        )
        slot.memory[: aligned(len(text))] = text + bytes(aligned(len(text)) - len(text))
        count = self._the_ranks().size + 1
        description = {
            "generation": str(generation),
            "index": count - 1,
            "count": count,
            "step": generation.step,
            "sharded": True,
            "rest": len(text),
        }
        path = os.path.join(tier.folder(generation), piece_name(count - 1, count))
        slot.finish(path, aligned(len(text)), description, durable=tier.kind == "disk")
        slot.leave()

    def find(self) -> tuple[Key, Places, list[Any]] | None:
        """Return the newest generation each of whose pieces is somewhere, and undamaged."""
        places, offers = self._look()
        ranks = self._the_ranks()
        local = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        newest = max((key[0] for offer in offers for key in offer), default=None)
        for key in self._whole(offers):
            good = [
                index
                for index, at in places.get(key, {}).items()
                if index % local[1] == local[0]
                and any(self._verified(key, index, path) for _, path in at)
            ]
            everybodys = ranks.gather(good)
            if len({index for one in everybodys for index in one}) == key[1]:
                if ranks.rank == 0 and newest is not None and newest > key[0]:
                    log(f"step {key[0].step} is restored; step {newest.step} is not whole")
                return key, places, everybodys
        return None

    def fetch(self, found: tuple[Key, Places, list[Any]], indexes: list[int]) -> list[Piece]:
        """Return pieces, from other nodes if they are not here. All ranks make the call."""
        key, places, offers = found
        read = self._read(key, indexes, places, offers)
        if read is None:
            raise Corrupt(f"a piece of step {key[0].step} can no longer be read")
        return read[0]


class MemoryWriter(StorageWriter):
    """Saves with ``dcp.save(state, checkpoint_id=str(step), storage_writer=writer)``.

    Keep one for all saves. It returns when the state has been copied into the memory folder. If a
    rank finds its folder full, all keep the generation that they have, and that rank warns once.

    name, disk, to_disk_every: as those of :class:`ddprun.checkpoint.Memory`.
    group: the ``process_group`` that is given to ``dcp.save`` or ``dcp.async_save``.
    """

    def __init__(
        self,
        *,
        name: str = "dcp",
        disk: Folder | None = None,
        to_disk_every: int = 100,
        group: Any = None,
    ) -> None:
        super().__init__()
        self._memory = _Pieces(
            1, name=name, sharded=True, disk=disk, to_disk_every=to_disk_every, group=group
        )
        self._step = -1
        self._is_saved = False

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Take the step from the number at the end of `checkpoint_id`."""
        found = re.search(r"(\d+)/*\Z", os.fspath(checkpoint_id) if checkpoint_id else "")
        if found is None:
            raise BadArgument(f"checkpoint_id must be the step's number, not {checkpoint_id!r}")
        self._step = int(found[1])

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def prepare_local_plan(self, plan: Any) -> Any:
        """Change nothing."""
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """Change nothing."""
        return plans

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Copy this rank's items; the file gets its name in the background."""
        state: dict[str, Any] = {}
        results = []
        piece = self._memory._the_ranks().rank
        for number, item in enumerate(plan.items):
            value = planner.resolve_data(item)
            if item.type == WriteItemType.BYTE_IO:
                value = value.getvalue()
                size = len(value)
            else:
                value = value.detach()
                size = value.numel() * value.element_size()
            state[str(number)] = value
            results.append(WriteResult(item.index, size, (piece, str(number))))
        self._is_saved = self._memory.save(state, self._step, now=True)
        done = TorchFuture()
        done.set_result(results)
        return done

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        """Write DCP's metadata, on the coordinator."""
        metadata.storage_data = {one.index: one.storage_data for some in results for one in some}
        if self._is_saved:
            self._memory.put_metadata(metadata)

    def wait(self) -> None:
        """Wait until what was saved is safe. All ranks make the call."""
        self._memory.wait()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether there is a number at its end."""
        return bool(re.search(r"\d/*\Z", os.fspath(checkpoint_id)))


class MemoryReader(StorageReader):
    """Loads the newest whole generation with ``dcp.load(state, storage_reader=reader)``.

    All ranks create it; checksums are verified then. What is on another node is sent over `group`.
    """

    def __init__(self, *, name: str = "dcp", disk: Folder | None = None, group: Any = None) -> None:
        super().__init__()
        self._memory = _Pieces(1, name=name, sharded=True, disk=disk, group=group)
        self._found = self._memory.find()
        self.step = self._found[0][0].step if self._found else 0
        """Of the generation that is loaded; 0 if there is none."""
        self._metadata: Any = None
        if self._found:
            (piece,) = self._memory.fetch(self._found, [self._found[0][1] - 1])
            self._metadata = pickle.loads(bytes(piece.memory[: int(piece.description["rest"])]))

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Accept no other generation than the newest."""
        if checkpoint_id is not None:
            raise BadArgument("the newest step is loaded: dcp.load() without a checkpoint_id")

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        """Return what DCP wrote."""
        if self._metadata is None:
            raise BadArgument("nothing was saved: MemoryReader().step is 0")
        return self._metadata

    def set_up_storage_reader(
        self, metadata: Any, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Do nothing."""

    def prepare_local_plan(self, plan: Any) -> Any:
        """Change nothing."""
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """Change nothing."""
        return plans

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Read the items of this rank, from the pieces of whichever ranks wrote them."""
        assert self._found is not None
        storage = self._metadata.storage_data
        indexes = sorted({storage[item.storage_index][0] for item in plan.items})
        pieces = self._memory.fetch(self._found, indexes)
        stored = {index: Stored([piece]) for index, piece in zip(indexes, pieces)}
        for item in plan.items:
            index, name = storage[item.storage_index]
            value = stored[index].value(name, own=False)
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(value))
                continue
            for axis, (at, length) in enumerate(zip(item.storage_offsets, item.lengths)):
                value = value.narrow(axis, at, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(value)
            planner.commit_tensor(item, target)
        done = TorchFuture()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is none."""
        return False
