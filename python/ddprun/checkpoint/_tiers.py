"""Where generations of a checkpoint lie: the node's folder, copies of other nodes', the disk.

A generation is a folder of pieces. It is read by any process and changed by the ranks that own it;
which of them may remove what is decided in _memory.py.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from typing import NamedTuple

from .._errors import BadArgument, BadEnvironment

_GENERATION = re.compile(r"generation-(\d{6,18})-(\d{6,18})-([0-9a-f]{8})-step-(\d{1,18})")
_PIECE = re.compile(r"piece-(\d{1,9})-of-(\d{1,9})")

HOW_TO_GET_ONE = "start the run with `ddprun --memory-folder 4G ...`, or name a folder: disk=..."


class Generation(NamedTuple):
    """One saved state. The order is that in which they were saved."""

    session: int
    """One more than that of any generation that was there when its ranks started."""
    sequence: int
    """Of the saves of a session."""
    nonce: str
    """Chosen anew for each session: what two sessions have saved is never mixed."""
    step: int

    def __str__(self) -> str:
        return f"generation-{self.session:06d}-{self.sequence:06d}-{self.nonce}-step-{self.step}"

    @staticmethod
    def parse(name: str) -> Generation | None:
        """Return the generation that a folder's name says, None for a foreign name."""
        found = _GENERATION.fullmatch(name)
        if found is None:
            return None
        return Generation(int(found[1]), int(found[2]), found[3], int(found[4]))


def piece_name(index: int, count: int) -> str:
    """Return the file name of a piece."""
    return f"piece-{index}-of-{count}"


def checked_name(name: str) -> str:
    """Return `name` if it can be a folder's, and is one that is copied to other nodes."""
    if not name or "/" in name or "\0" in name or name.startswith(".") or name.endswith(".tmp"):
        raise BadArgument(
            f"name must be that of one folder, without a . before and .tmp behind, not {name!r}"
        )
    return name


class Tier:
    """A folder of generations. Nothing is read through a symbolic link inside of it."""

    def __init__(self, kind: str, root: str, name: str) -> None:
        self.kind = kind
        """"memory", "copy" or "disk": for messages, and the order in which they are asked."""
        self.root = root
        self.path = os.path.join(root, name)

    def make(self) -> None:
        """Create the folder."""
        if self.kind == "disk":
            os.makedirs(self.root, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.path, 0o700)
        if not _is_folder(self.path):
            raise BadArgument(f"{self.path} is not a folder")

    def pieces(self) -> Iterator[tuple[Generation, int, int, str]]:
        """Yield (generation, index, count, path) of each piece, whole or not."""
        for name in _names(self.path):
            generation = Generation.parse(name)
            folder = os.path.join(self.path, name)
            if generation is not None and _is_folder(folder):
                for piece in _names(folder):
                    found = _PIECE.fullmatch(piece)
                    if found:
                        yield generation, int(found[1]), int(found[2]), os.path.join(folder, piece)

    def generations(self) -> list[Generation]:
        """Return all generations, whole or not."""
        found = map(Generation.parse, _names(self.path))
        return sorted(each for each in found if each is not None)

    def folder(self, generation: Generation) -> str:
        """Return the path of a generation."""
        return os.path.join(self.path, str(generation))

    def remove(self, generation: Generation) -> None:
        """Remove a generation with all that is in it."""
        shutil.rmtree(self.folder(generation), ignore_errors=True)

    def remove_unfinished(self) -> None:
        """Remove what processes left that died while they wrote. None of this node may write."""
        for name in _names(self.path):
            if name.startswith(".") and name.endswith(".tmp"):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self.path, name))

    def used(self) -> int:
        """Return the bytes that all files below the root occupy.

        Each file counts once, though another rank gives it its name meanwhile.
        """
        sizes: dict[tuple[int, int], int] = {}
        for folder, _, names in os.walk(self.root):
            for name in names:
                with contextlib.suppress(OSError):
                    status = os.lstat(os.path.join(folder, name))
                    sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
        return sum(sizes.values())


def open_piece(path: str) -> int:
    """Return a descriptor of a regular file; OSError for anything else, as a symbolic link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file")
    return descriptor


def memory_tier(name: str) -> Tier | None:
    """Return that of this node, None if the run has no memory folder."""
    root = os.environ.get("DDPRUN_MEMORY")
    if not root:
        return None
    if not os.path.isdir(root):
        raise BadEnvironment(f"DDPRUN_MEMORY names {root}, which is not a folder")
    return Tier("memory", root, name)


def copies(name: str) -> list[Tier]:
    """Return those that this node has of other nodes' folders."""
    root = os.environ.get("DDPRUN_MEMORY_COPIES")
    if not root:
        return []
    nodes = (os.path.join(root, node) for node in sorted(_names(root)) if not node.startswith("."))
    return [Tier("copy", node, name) for node in nodes if _is_folder(node)]


def memory_size() -> int | None:
    """Return how many bytes this node's folder may have."""
    text = os.environ.get("DDPRUN_MEMORY_SIZE", "")
    return int(text) if text.isdigit() else None


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False
