"""The ranks of a group, and the small values that they exchange."""

from __future__ import annotations

import ctypes
import itertools

from ._arguments import long_number, number, text
from ._c_api import BAD_ARGUMENT
from ._core import Handle, check
from ._library import library
from ._sdk._store import Store


def _bytes_at(address: ctypes.c_void_p, size: int) -> bytes:
    return ctypes.string_at(address, size) if address.value and size else b""


class Membership(Handle):
    """What a group knows of its ranks; the base of :class:`ddprun.ProcessGroup`."""

    _what = "group"

    @property
    def rank(self) -> int:
        """The number of this rank in the group, from 0."""
        return self._rank

    @property
    def world_size(self) -> int:
        """The number of ranks of the group."""
        return int(self._ask("world_size"))

    @property
    def local_rank(self) -> int:
        """The number of this rank among those of its host."""
        return int(self._ask("local_rank"))

    @property
    def local_world_size(self) -> int:
        """The number of the job's ranks on this host."""
        return int(self._ask("local_world_size"))

    @property
    def group_rank(self) -> int:
        """The number of this node, from 0."""
        return int(self._ask("group_rank"))

    @property
    def restart_count(self) -> int:
        """How often the launcher has restarted the job."""
        return int(self._ask("restart_count"))

    @property
    def run_id(self) -> str:
        """The name of the job."""
        return str(self._ask("run_id").decode(errors="replace"))

    @property
    def backend(self) -> str:
        """The backend that was chosen: shm, gloo, cpu, nccl or self."""
        return str(self._ask("backend").decode())

    @property
    def store(self) -> Store:
        """The job's key-value store."""
        self._live()
        return Store(self._call)

    def host_of(self, rank: int) -> str:
        """Return the name of the host of a rank of the group."""
        with self._use() as group:
            name = library().ddprun_host_of(group, number(rank, "rank"))
            if not name:
                check(BAD_ARGUMENT, "host_of", self._rank)
            return str(name.decode(errors="replace"))

    def set_phase(self, name: str = "") -> None:
        """Name what the program does from now on between collectives: "evaluate", "save".

        ``ddprun`` shows it, and does not take a long phase for a stuck rank. During "checkpoint",
        called on all ranks, the program saves its state. "" ends the phase.
        """
        self._call("set_phase", text(name, "the name of a phase"))

    def expect_steps(self, more: int) -> None:
        """Say how many more steps this rank will make, so that ``ddprun`` can show the end."""
        self._call("expect_steps", long_number(more, "more"))

    def broadcast_bytes(self, data: bytes = b"", root: int = 0) -> bytes:
        """Return the `data` of rank `root` on every rank; that of others is ignored."""
        found, size = ctypes.c_void_p(), ctypes.c_size_t()
        self._call(
            "broadcast_bytes",
            bytes(data),
            len(data),
            number(root, "root"),
            ctypes.byref(found),
            ctypes.byref(size),
        )
        return _bytes_at(found, size.value)

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        """Return the `data` of each rank, by rank. Lengths may differ."""
        return self._gathered("all_gather_bytes", data)

    def gather_bytes(self, data: bytes, root: int = 0) -> list[bytes]:
        """Return the same on rank `root`; an empty list on other ranks."""
        return self._gathered("gather_bytes", data, number(root, "root"))

    def _gathered(self, name: str, data: bytes, *root: int) -> list[bytes]:
        found, counts = ctypes.c_void_p(), ctypes.c_void_p()
        self._call(name, bytes(data), len(data), *root, ctypes.byref(found), ctypes.byref(counts))
        if counts.value is None:
            return []
        sizes = list((ctypes.c_size_t * self.world_size).from_address(counts.value))
        whole = _bytes_at(found, sum(sizes))
        ends = list(itertools.accumulate(sizes))
        return [whole[end - size : end] for end, size in zip(ends, sizes)]

    def average(self, value: float) -> float:
        """Return the average of one number over all ranks."""
        result = ctypes.c_double()
        self._call("average", value, ctypes.byref(result))
        return result.value

    def shared_seed(self) -> int:
        """Return a seed from the entropy of rank 0, the same on all ranks."""
        seed = ctypes.c_uint64()
        self._call("shared_seed", ctypes.byref(seed))
        return seed.value
