"""Memory: saves a program's state in the node's memory folder, and finds the newest whole one.

All decisions about generations are here: which is written, which are kept, which is loaded.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import secrets
import socket
import statistics
import sys
import time
from collections import deque
from collections.abc import Mapping, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Union

from .._errors import BadArgument, BadEnvironment, Corrupt
from . import _ledger
from ._pieces import Piece, Slot, aligned, sync_folder
from ._ranks import Ranks, ranks_of
from ._state import Flat, Plan, Stored, flatten, restore
from ._tiers import (
    HOW_TO_GET_ONE,
    Generation,
    Tier,
    checked_name,
    copies,
    memory_size,
    memory_tier,
    open_piece,
    piece_name,
)

_COST = 0.005  # Of the time of the steps, for every="auto".
_FIRST = 10  # Steps until "auto" knows how long a step takes.
_SLACK = 4096  # What is pickled may grow by as much, and a quarter, without a new file.

Key = tuple[Generation, int]
"""A generation, and the number of its pieces."""
Places = dict[Key, dict[int, list[tuple[str, str]]]]
"""Where this rank can read the pieces of generations: kinds of tiers, and paths."""
Folder = Union[str, "os.PathLike[str]"]


class _Pending(NamedTuple):
    """A generation that is being described and named in the background."""

    generation: Generation
    slot: Slot
    written: Future[None]


class Memory:
    """Checkpoints in the memory of the nodes, which outlive the processes.

    ::

        checkpoint = ddprun.checkpoint.Memory(every=10)
        state = {"model": model, "optimizer": optimizer}
        for step in range(checkpoint.load(state), steps):
            train(step)
            checkpoint.save(state, step + 1)

    All ranks make all calls, with the same steps, after ``init_process_group()``.

    every: steps between two saves; "auto": as many as keep the cost at 0.5 % of the steps' time.
    name: of the checkpoint, if a program has several.
    sharded: each rank has a state of its own, which as many ranks load. Otherwise all ranks have
        the same, as with DistributedDataParallel: each node keeps one copy, of which each of its
        ranks writes a part, and any number of ranks can load it.
    disk: a folder that all nodes share, for runs all of whose nodes are lost. Without a memory
        folder all is saved there, at that interval.
    to_disk_every: saves of which one is written to `disk`, too, in the background.
    group: of torch.distributed, instead of the default one.
    """

    def __init__(
        self,
        every: int | str = 10,
        *,
        name: str = "checkpoint",
        sharded: bool = False,
        disk: Folder | None = None,
        to_disk_every: int = 100,
        group: Any = None,
    ) -> None:
        if every != "auto" and (not isinstance(every, int) or every < 1):
            raise BadArgument(f'every must be a number of steps, or "auto", not {every!r}')
        if to_disk_every < 1:
            raise BadArgument(f"to_disk_every must be at least 1, not {to_disk_every}")
        self.every = every if isinstance(every, int) else _FIRST
        """Steps between two saves, as the ranks have agreed."""
        self.stall = 0.0
        """Seconds that the last save held up the program."""
        self._auto = every == "auto"
        self._sharded = sharded
        self._group = group
        self._name = checked_name(name)
        memory = memory_tier(name)
        self._disk = Tier("disk", os.path.abspath(disk), name) if disk is not None else None
        self._to_disk_every = to_disk_every
        if memory is None:
            if self._disk is None:
                raise BadEnvironment(f"there is no memory folder: {HOW_TO_GET_ONE}")
            self.every *= to_disk_every
            self._auto = False
        self._home = memory or self._disk
        self._in_memory = memory is not None
        self._ranks: Ranks | None = None
        self._session: tuple[int, str] | None = None
        self._nonce = ""  # Of the session that begins after the last look.
        self._sequence = 0
        self._confirmed: list[Generation] = []
        self._slots: dict[Generation, Slot] = {}
        self._spare: Slot | None = None
        self._pending: _Pending | None = None
        self._writer: ThreadPoolExecutor | None = None
        self._drainer: ThreadPoolExecutor | None = None
        self._drained: Future[None] | None = None
        self._warned: set[str] = set()
        self._other_layout = ""
        self._next = 0
        self._called = 0.0
        self._steps: deque[float] = deque(maxlen=64)
        self._stalls: deque[float] = deque(maxlen=8)

    # What is loaded.

    def load(self, state: MutableMapping[str, Any]) -> int:
        """Load the newest state that is whole; return its step, or 0 if there is none.

        Values of `state` that have ``load_state_dict()`` get what their ``state_dict()`` returned
        when they were saved, tensors are filled in place, other values are replaced in `state`, and
        so are names that `state` lacks. All ranks load the same generation. Its checksums are
        verified before any value is changed: a damaged one is not loaded, but that before it.
        """
        began = time.monotonic()
        self.wait()
        for slot in self._slots.values():  # Values may have its memory now: never written again.
            slot.leave()
        self._slots.clear()
        if self._spare is not None:
            self._spare.remove()
            self._spare = None
        places, offers = self._look()
        ranks = self._the_ranks()
        whole = self._whole(offers)
        newest = max((key[0] for offer in offers for key in offer), default=None)
        for at, key in enumerate(whole):
            if self._sharded and key[1] != ranks.size:
                raise BadArgument(
                    f"step {key[0].step} was saved by {key[1]} ranks, each with a state of its own,"
                    f" and there are {ranks.size} now: ddprun.checkpoint.dcp divides it anew"
                )
            needed = [ranks.rank] if self._sharded else list(range(key[1]))
            found = self._read(key, needed, places, [offer.get(key, {}) for offer in offers])
            if found is None:
                for other in filter(None, ranks.gather(self._other_layout)):
                    raise BadArgument(f"{other}: give the same to load it")
                continue
            pieces, kinds = found
            restore(Stored(pieces), state)
            del pieces, found
            self._begin([each[0] for each in whole[at:]], offers)
            self._called, self._next = 0.0, key[0].step + self.every
            if ranks.rank == 0:
                lost = f"; step {newest.step} is not whole" if newest and newest > key[0] else ""
                spent = time.monotonic() - began
                source = " and ".join(sorted(kinds))
                log(f"restored step {key[0].step} from {source} in {spent:.2f} s{lost}")
            return key[0].step
        if whole and ranks.rank == 0:
            log(f"nothing is restored: step {whole[0][0].step} and all before it are damaged")
        elif newest and ranks.rank == 0:
            log(f"nothing is restored: of step {newest.step} and all before it pieces are missing")
        self._begin([], offers)
        self._called, self._next = 0.0, self.every
        return 0

    def _look(self) -> tuple[Places, list[Any]]:
        """Find all pieces that this rank can read, and what the others can."""
        tiers = [self._home] if self._in_memory else []
        tiers += copies(self._name)
        tiers += [self._disk] if self._disk is not None else []
        places: Places = {}
        if self._is_leader() and self._home is not None:
            self._home.make()
            self._home.remove_unfinished()
        for tier in filter(None, tiers):
            for generation, index, count, path in tier.pieces():
                if 0 <= index < count:
                    found = places.setdefault((generation, count), {})
                    found.setdefault(index, []).append((tier.kind, path))
        offer = {
            key: {index: at[0][0] for index, at in found.items()} for key, found in places.items()
        }
        gathered = self._the_ranks().gather((offer, secrets.token_hex(4)))
        self._nonce = gathered[0][1]
        return places, [each[0] for each in gathered]

    def _whole(self, offers: list[Any]) -> list[Key]:
        """Return those of which each piece is somewhere, the newest first."""
        seen: dict[Key, set[int]] = {}
        for offer in offers:
            for key, indexes in offer.items():
                seen.setdefault(key, set()).update(indexes)
        return sorted((key for key, found in seen.items() if len(found) == key[1]), reverse=True)

    def _read(
        self, key: Key, needed: list[int], places: Places, offers: list[Any]
    ) -> tuple[list[Piece], set[str]] | None:
        """Return the pieces that this rank needs, None if a rank cannot get one of its own.

        offers: the indexes of the pieces that each rank can read.
        """
        ranks = self._the_ranks()
        mine = places.get(key, {})
        pieces: dict[int, Piece] = {}
        kinds = set()
        for index in needed:
            for kind, path in mine.get(index, []):
                piece = self._verified(key, index, path)
                if piece is not None:
                    pieces[index] = piece
                    kinds.add(kind)
                    break
        missing = [index for index in needed if index not in pieces]
        everybodys = ranks.gather(missing)
        for index in sorted({each for one in everybodys for each in one}):
            piece = pieces.get(index)
            for source, offer in enumerate(offers):
                if index not in offer or index in everybodys[source]:
                    continue
                if source == ranks.rank and piece is None:
                    read = (self._verified(key, index, path) for _, path in mine.get(index, []))
                    piece = next(filter(None, read), None)
                memory = ranks.broadcast(piece.memory if piece is not None else None, source)
                if memory is not None:
                    if index in missing:
                        pieces[index] = Piece(memory, f"piece {index} from rank {source}")
                        kinds.add("another node")
                    break
            else:
                return None
        return [pieces[index] for index in needed], kinds

    def _verified(self, key: Key, index: int, path: str) -> Piece | None:
        try:
            piece = Piece.open(path)
            if not piece.belongs(key[0], index, key[1]):
                raise Corrupt(f"{path} is another piece than its name")
            if piece.description["sharded"] != self._sharded:
                self._other_layout = (
                    f"step {key[0].step} was saved with sharded={not self._sharded}"
                )
                return None
            piece.verify()
        except (OSError, Corrupt, ValueError, LookupError, TypeError) as error:
            log(str(error))
            return None
        return piece

    def _begin(self, whole: list[Generation], offers: list[Any]) -> None:
        """Begin a session of saves after those in `whole`, the newest first."""
        seen = max((key[0].session for offer in offers for key in offer), default=0)
        confirmed = sorted(set(whole))[-2:]
        if self._is_leader() and self._in_memory:  # Before any rank can save in this session.
            self._remove({each for each in self._generations() if each not in confirmed})
        self._session = seen + 1, self._nonce
        self._sequence = 0
        self._confirmed = confirmed

    # What is saved.

    def save(self, state: Mapping[str, Any], step: int, *, now: bool = False) -> bool:
        """Save the state if it is due at this step; return whether it was.

        Copies this rank's part into the memory folder, and returns: a thread computes the checksums
        and gives the file its name. The two generations before it are kept meanwhile. If a rank
        finds its folder full, all keep the generation that they have, and that rank warns once.

        step: how many are done, which :meth:`load` returns.
        now: save in any case, as before a planned end.
        """
        began = time.monotonic()
        if self._called:
            self._steps.append(began - self._called)
        saved = (now or step >= self._next) and self._save(state, step)
        self._called = time.monotonic()
        if saved:
            self.stall = self._called - began
            self._stalls.append(self.stall)
            _ledger.stood_still(self.stall)
        return saved

    def _save(self, state: Mapping[str, Any], step: int) -> bool:
        began = time.perf_counter()  # For the ledger, on the thread that writes.
        if not isinstance(step, int) or step < 0:
            raise BadArgument(f"step must be a whole number from 0, not {step!r}")
        if self._session is None:
            offers = self._look()[1]
            self._begin([key[0] for key in self._whole(offers)], offers)
        flat = flatten(state)
        index, count = self._place()
        layout_count = 1 if self._sharded else count
        is_written = self._wait_for_pending()
        slot = self._slot_for(flat, 0 if self._sharded else index, layout_count)
        ranks = self._the_ranks()
        agree = ranks.begin_minimum(is_written, slot is not None, -self._interval())
        rest = flat.rest if index == 0 or self._sharded else b""
        length = self._copy(flat.tensors, rest, slot) if slot is not None else 0
        agreed = agree()
        self._settle(bool(agreed[0]))
        self.every = -agreed[2]
        self._next = step + self.every
        if slot is None:
            return False
        if not agreed[1]:
            self._spare = slot
            return False
        assert self._session is not None
        self._sequence += 1
        session, nonce = self._session
        generation = Generation(session, self._sequence, nonce, step)
        description = {
            "generation": str(generation),
            "index": index,
            "count": count,
            "step": step,
            "sharded": self._sharded,
            "fixed": slot.plan.fixed,
            "rest": len(rest),
        }
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, "ddprun-checkpoint")
        files = len({*self._confirmed, *self._slots, generation})
        spare = files < 3 and self._spare is None
        arguments = slot, generation, description, length, spare, began
        work = self._writer.submit(self._write, *arguments)
        self._pending = _Pending(generation, slot, work)
        return True

    @staticmethod
    def _copy(tensors: list[Any], rest: bytes, slot: Slot) -> int:
        """Fill a file that no generation needs; return its length."""
        plan: Plan = slot.plan
        plan.copy(tensors)
        end = plan.fixed + len(rest)
        slot.memory[plan.fixed : aligned(end)] = rest + bytes(aligned(end) - end)
        return aligned(end)

    def _interval(self) -> int:
        """Return the steps until the next save, as this rank would have it."""
        if not self._auto or not self._stalls or not self._steps:
            return self.every
        spent = min(self._stalls) / max(1e-6, statistics.median(self._steps))
        return max(1, min(100_000, math.ceil(spent / _COST)))

    def _slot_for(self, flat: Flat, index: int, count: int) -> Slot | None:
        """Return a file for this rank's part, of memory that no generation needs; None if full."""
        pending = [self._pending.generation] if self._pending is not None else []
        kept = [*self._confirmed, *pending][-2:]
        slot, self._spare = self._spare, None
        for generation in [each for each in self._slots if each not in kept]:
            old = self._slots.pop(generation)
            if slot is None and old.take_back(self._unfinished_path()):
                slot = old
            else:
                old.remove()
        rest = len(flat.rest) if index == 0 else 0
        if slot is not None:
            plan = slot.plan
            if plan is None or plan.key != (flat.specs, index, count):
                plan = Plan(flat.specs, index, count)
            need = plan.fixed + aligned(rest)
            if need <= slot.capacity <= 2 * need + (1 << 16):
                if plan is not slot.plan:
                    slot.plan = plan
                    plan.bind(slot.memory)
                return slot
            slot.remove()
        for generation in self._confirmed:
            if self._in_memory and generation not in kept and generation not in self._slots:
                self._remove_own(generation)  # Of a process before this one.
        plan = Plan(flat.specs, index, count)
        slot = self._new_slot(aligned(plan.fixed + rest + rest // 4 + _SLACK), warn=True)
        if slot is not None:
            slot.plan = plan
            plan.bind(slot.memory)
        return slot

    def _new_slot(self, capacity: int, warn: bool) -> Slot | None:
        assert self._home is not None
        limit = memory_size() if self._in_memory else None
        try:
            self._home.make()
            used = self._home.used() if limit is not None else 0
            if limit is not None and used + capacity > limit:
                raise OSError(f"{_size_text(used)} of {_size_text(limit)} are used")
            slot = Slot(self._unfinished_path(), capacity)
        except OSError as error:
            if warn:
                self._warn(
                    "full",
                    f"rank {self._the_ranks().rank} on {socket.gethostname()} cannot save "
                    f"{_size_text(capacity)}: {error}; the last generation stays. A folder must "
                    f"hold three times its node's state: ddprun --memory-folder SIZE",
                )
            return None
        return slot

    def _write(
        self,
        slot: Slot,
        generation: Generation,
        description: dict[str, Any],
        length: int,
        spare: bool,
        began: float,
    ) -> None:
        """Describe and name the file, and prepare another one if there is none, on a thread.

        spare: whether there is none. began: when the state was as it is in the file.
        """
        assert self._home is not None
        name = piece_name(description["index"], description["count"])
        path = os.path.join(self._home.folder(generation), name)
        slot.finish(path, length, description, durable=not self._in_memory)
        _ledger.saved(time.perf_counter() - began)
        if spare:
            self._spare = self._new_slot(slot.capacity, warn=False)
            if self._spare is not None:
                self._spare.touch()

    def _wait_for_pending(self) -> bool:
        if self._pending is None:
            return True
        try:
            self._pending.written.result()
        except OSError as error:
            self._warn("write", f"step {self._pending.generation.step} is not saved: {error}")
            return False
        return True

    def _settle(self, is_whole: bool) -> None:
        """Keep the generation that all ranks have written, and remove what it replaces."""
        if self._pending is None:
            return
        generation, slot, _ = self._pending
        self._pending = None
        if not is_whole:
            slot.remove()
            return
        self._slots[generation] = slot
        self._confirmed = [*self._confirmed, generation][-2:]
        if self._is_leader():
            if self._in_memory:  # Not newer ones: other ranks are already writing the next.
                self._remove({each for each in self._generations() if each < self._confirmed[0]})
            else:
                self._clean_disk()
        if self._in_memory and self._disk and generation.sequence % self._to_disk_every == 0:
            self._drain(generation, slot)

    def _drain(self, generation: Generation, slot: Slot) -> None:
        """Copy a piece to the disk in the background, if this rank is the one that does."""
        if not self._sharded and os.environ.get("GROUP_RANK", "0") != "0":
            return
        if self._drained is not None and not self._drained.done():
            self._warn("slow", "the disk is slower than its interval, and holds up the program")
            self._drained.result()
        if self._drainer is None:
            self._drainer = ThreadPoolExecutor(1, "ddprun-checkpoint-disk")
        source = open_piece(slot.path)
        fcntl.flock(source, fcntl.LOCK_SH)  # So the file is not used again meanwhile.
        self._drained = self._drainer.submit(self._drain_one, generation, source)

    def _drain_one(self, generation: Generation, source: int) -> None:
        assert self._disk is not None
        index, count = self._place()
        folder = self._disk.folder(generation)
        aside = os.path.join(folder, f".{piece_name(index, count)}.tmp")
        try:
            self._disk.make()
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            with open(aside, "wb") as target:
                size, at = os.fstat(source).st_size, 0
                while at < size:
                    at += os.sendfile(target.fileno(), source, at, min(size - at, 16 << 20))
                os.fsync(target.fileno())
            os.rename(aside, os.path.join(folder, piece_name(index, count)))
            sync_folder(folder)
            sync_folder(self._disk.path)
            if index == 0:
                self._clean_disk()
        except OSError as error:
            self._warn("disk", f"step {generation.step} is not on the disk: {error}")
        finally:
            os.close(source)

    def _clean_disk(self) -> None:
        """Remove what is older than the two newest whole generations of the disk."""
        assert self._disk is not None
        found: dict[Key, set[int]] = {}
        for generation, index, count, _ in self._disk.pieces():
            found.setdefault((generation, count), set()).add(index)
        whole = sorted({key[0] for key, pieces in found.items() if len(pieces) == key[1]})[-2:]
        for generation in self._disk.generations():
            if len(whole) == 2 and generation < whole[0]:
                self._disk.remove(generation)

    def _generations(self) -> list[Generation]:
        return self._home.generations() if self._home is not None else []

    def _remove(self, generations: set[Generation]) -> None:
        for generation in generations:
            if self._home is not None:
                self._home.remove(generation)

    def _remove_own(self, generation: Generation) -> None:
        assert self._home is not None
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._home.folder(generation), piece_name(*self._place())))

    # The rest.

    def wait(self) -> None:
        """Wait until what was saved is safe, on the disk, too."""
        is_written = self._wait_for_pending()
        if self._pending is not None and self._session is not None and self._ranks is not None:
            agreed = self._ranks.minimum(is_written)
            self._settle(bool(agreed[0]))
        if self._drained is not None:
            self._drained.result()

    def _place(self) -> tuple[int, int]:
        """Return which piece this rank writes, and of how many."""
        ranks = self._the_ranks()
        if self._sharded or not self._in_memory:
            return ranks.rank, ranks.size
        return int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    def _is_leader(self) -> bool:
        """Whether this rank removes generations of its folder."""
        if self._in_memory:
            return os.environ.get("LOCAL_RANK", "0") == "0"
        return self._the_ranks().rank == 0

    def _the_ranks(self) -> Ranks:
        if self._ranks is None:
            self._ranks = ranks_of(self._group)
        return self._ranks

    def _unfinished_path(self) -> str:
        assert self._home is not None
        return os.path.join(self._home.path, f".{secrets.token_hex(8)}.tmp")

    def _warn(self, kind: str, text: str) -> None:
        """Say a thing once."""
        if kind not in self._warned:
            self._warned.add(kind)
            log(text)


def _size_text(size: int) -> str:
    """In powers of two, as sizes of flags: "64 KiB", "1.46 GiB"."""
    amount, units = float(size), ["TiB", "GiB", "MiB", "KiB", "B"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop()
    return f"{amount:.{4 if amount >= 1000 else 3}g} {units[-1]}"


def log(text: str) -> None:
    """Print a line."""
    print(f"ddprun: checkpoint: {text}", file=sys.stderr, flush=True)
