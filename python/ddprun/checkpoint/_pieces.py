"""A file that holds one rank's part of a generation: written in place in memory, and verified.

The file is the data, unused space, a description in JSON, and a trailer of fixed size with the
description's length and CRC-32. The description has the sum of each MiB of the data, as 64-bit
words: sums run at the speed of memory, where zlib's CRC-32 has a third of it. A file gets its name
after its trailer was written, so a process that is killed leaves none.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import struct
import sys
import zlib
from typing import Any

from .._errors import Corrupt
from ._tiers import Generation, open_piece

_CHUNK = 1 << 20
_MAGIC = b"ddprun-piece1"
_TRAILER = struct.Struct("<QI13s")
_POPULATE_READ = 22  # MADV_POPULATE_READ and _WRITE, Linux 5.14.
_POPULATE_WRITE = 23
ALIGNED = 64


def aligned(size: int) -> int:
    """Return `size` rounded up, so that what follows can be read as elements of any type."""
    return -(-size // ALIGNED) * ALIGNED


def as_tensor(memory: Any) -> Any:
    """Return a torch tensor of bytes over a writable mapping, which it keeps."""
    import importlib

    torch = importlib.import_module("torch")
    return torch.frombuffer(memory, dtype=torch.uint8)


def _sums(memory: Any, length: int) -> list[int]:
    """Return the sum of each chunk; torch, if the program has it, adds without holding the lock."""
    torch = sys.modules.get("torch")
    if torch is None or length == 0:
        words = memoryview(memory)[:length].cast("q")
        step = _CHUNK // 8
        totals = (sum(words[at : at + step]) for at in range(0, length // 8, step))
        return [(total + 2**63) % 2**64 - 2**63 for total in totals]
    words = as_tensor(memory)[:length].view(torch.int64)
    whole = length // _CHUNK * (_CHUNK // 8)
    found: list[int] = words[:whole].view(-1, _CHUNK // 8).sum(1).tolist() if whole else []
    return found + ([int(words[whole:].sum())] if length // 8 > whole else [])


class Slot:
    """A file of fixed size that is mapped for as long as it is used: for one piece after the other.

    The pages of a new file cost four times as much as the copy into them, so files are kept.
    """

    def __init__(self, path: str, capacity: int) -> None:
        """Reserve the memory: OSError with ENOSPC if it is not there, never a signal later on."""
        self.path = path
        self.capacity = capacity
        page = mmap.PAGESIZE
        self.size = -(-(capacity + 4096 + 24 * (capacity // _CHUNK + 2)) // page) * page
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        try:
            os.posix_fallocate(self._descriptor, 0, self.size)
            self.memory = mmap.mmap(self._descriptor, self.size)
        except BaseException:
            self.remove()
            raise
        self.plan: Any = None
        """What the owner keeps for this mapping."""

    def finish(self, path: str, length: int, description: dict[str, Any], durable: bool) -> None:
        """Describe the first `length` bytes, and give the file its name."""
        words = {**description, "bytes": length, "sums": _sums(self.memory, length)}
        text = json.dumps(words, separators=(",", ":")).encode()
        end = self.size - _TRAILER.size
        if len(text) > end - self.capacity:
            raise OSError(errno.EFBIG, f"the description of {path} is too long")
        self.memory[end - len(text) : end] = text
        self.memory[end:] = _TRAILER.pack(len(text), zlib.crc32(text), _MAGIC)
        folder = os.path.dirname(path)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        if durable:
            self.memory.flush()
            os.fsync(self._descriptor)
        # The file stays open. Without permission to write it counts as whole, and is copied.
        os.fchmod(self._descriptor, 0o400)
        os.utime(self._descriptor)
        os.rename(self.path, path)
        self.path = path
        if durable:
            sync_folder(folder)
            sync_folder(os.path.dirname(folder))

    def take_back(self, path: str) -> bool:
        """Rename the file for another use; False if somebody has it locked, or it is gone.

        Who copies the file to another node takes a shared lock on it (flock) meanwhile.
        """
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                os.rename(self.path, path)
                os.fchmod(self._descriptor, 0o600)
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        except OSError:
            return False
        self.path = path
        return True

    def remove(self) -> None:
        """Give the file away; its memory is free when the last mapping of it is gone."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
        self.plan = None

    def touch(self) -> None:
        """Have the kernel map all pages now, not when they are first written."""
        with contextlib.suppress(OSError, ValueError):
            self.memory.madvise(_POPULATE_WRITE)

    def leave(self) -> None:
        """Use the file no longer, and let it lie."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
        self.plan = None


class Piece:
    """A piece as it is read: mapped, or received from another rank. Its trailer is verified."""

    def __init__(self, memory: Any, where: str) -> None:
        self.memory = memory
        self.where = where
        end = len(memory) - _TRAILER.size
        length, crc, magic = _TRAILER.unpack(memory[end:]) if end >= 0 else (0, 0, b"")
        text = memory[max(0, end - length) : end] if magic == _MAGIC and length <= end else b""
        if not text or zlib.crc32(text) != crc:
            raise Corrupt(f"{where} is torn: its end is not that of a piece")
        self.description: dict[str, Any] = json.loads(text)
        self.length = int(self.description["bytes"])
        if not 0 <= self.length <= end - length or self.length % 8:
            raise Corrupt(f"{where} is damaged: its description is wrong")

    @staticmethod
    def open(path: str) -> Piece:
        """Map a file; Corrupt or OSError if it is none."""
        descriptor = open_piece(path)
        try:
            size = os.fstat(descriptor).st_size
            if size < _TRAILER.size:
                raise Corrupt(f"{path} is torn: it has {size} bytes")
            return Piece(mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY), path)
        finally:
            os.close(descriptor)

    def belongs(self, generation: Generation, index: int, count: int) -> bool:
        """Whether the description names what the file's name does."""
        named = (self.description.get(key) for key in ("generation", "index", "count"))
        return tuple(named) == (str(generation), index, count)

    def verify(self) -> None:
        """Compare all data with its sums: Corrupt names the file."""
        with contextlib.suppress(OSError, ValueError):
            self.memory.madvise(_POPULATE_READ)
        if _sums(self.memory, self.length) != self.description.get("sums"):
            raise Corrupt(f"{self.where} is damaged: its data does not have the sums of its saving")


def sync_folder(path: str) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
