"""Checkpoints that all ranks write together, and that any number of ranks reads: checkpoint.h."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Mapping
from typing import Any, Callable, NamedTuple, Union

from .._arguments import ELEMENT_TYPES, lend, long_number, number, text
from .._c_api import CheckpointPiece
from .._core import Handle, check, create
from .._errors import BadArgument, Error
from .._group import ProcessGroup
from .._library import library

Folder = Union[str, "os.PathLike[str]"]


def _path(path: Folder, what: str) -> bytes:
    found = os.fsencode(path)
    if b"\0" in found:
        raise BadArgument(f"{what} must be a path without a zero, not {path!r}")
    return found


class Part(NamedTuple):
    """A part of an array, as one rank has it; all ranks' parts cover the array exactly once."""

    name: str
    """Of the array."""
    array: Any
    """The part, in host memory."""
    offset: int = 0
    """Where it begins in the array, in elements."""
    total: int = 0
    """The elements of the array; 0: the part is all of it."""


class ArrayInfo(NamedTuple):
    """An array of a checkpoint."""

    type: str
    """As numpy names it: "float32". "bfloat16" is not one of numpy's."""
    length: int
    """Elements; a checkpoint has no shapes."""


def _piece(part: Part) -> tuple[CheckpointPiece, Any]:
    buffer, keep = lend(part.array, writable=False)
    offset, total = long_number(part.offset, "offset"), long_number(part.total, "total")
    if offset < 0 or total < 0:
        raise BadArgument(f"{part.name}: offset and total must not be negative")
    name = text(part.name, "the name of an array")
    size = ctypes.sizeof(CheckpointPiece)
    piece = CheckpointPiece(size, name, buffer.data, buffer.count, offset, total, buffer.type, 0)
    return piece, keep


def _even_piece(name: str, array: Any, rank: int, world_size: int) -> tuple[CheckpointPiece, Any]:
    """Return this rank's share of an array that all ranks have."""
    piece, keep = _piece(Part(name, array))
    total = piece.count
    first, end = total * rank // world_size, total * (rank + 1) // world_size
    if total:
        piece.data = (piece.data or 0) + first * ELEMENT_TYPES[piece.type].size
    piece.offset, piece.count, piece.total = first, end - first, total
    return piece, keep


class CheckpointWriter(Handle):
    """Writes checkpoints into a folder that all ranks share, while training goes on.

    ::

        writer = ddprun.CheckpointWriter(group, "/shared/run7", keep=3)
        writer.save_async(step, {"weights": weights, "momentum": momentum})
        ...
        if path := ddprun.latest_checkpoint("/shared/run7", group):
            checkpoint = ddprun.Checkpoint(path)
            checkpoint.read("weights", weights)

    A checkpoint is complete, or ignored by readers, whenever its writers die. All calls are
    collective: each rank makes them, from the thread that uses the group. A thread of the library
    writes.

    folder: is created on first use.
    keep: how many complete checkpoints stay in the folder; 0: all.
    """

    _what = "writer"

    def __init__(self, group: ProcessGroup, folder: Folder, keep: int = 0) -> None:
        path, kept = _path(folder, "the folder"), number(keep, "keep")
        with group._use() as ranks:
            handle = create(
                "checkpoint_writer_create",
                ranks,
                path,
                kept,
                operation="CheckpointWriter",
                rank=group.rank,
            )
        super().__init__(handle, library().ddprun_checkpoint_writer_destroy)
        self._rank = group.rank
        self._size = group.world_size

    def save_async(
        self, step: int, arrays: Mapping[str, Any] | None = None, parts: Iterable[Part] = ()
    ) -> None:
        """Copy what is to be saved, and return while it is written.

        Waits for the checkpoint before this one; if that failed on any rank, its error is raised on
        all of them, and nothing is saved.

        step: the number under which it is saved.
        arrays: by name those that are equal on all ranks, each of which writes an even share.
        parts: of arrays of which each rank has a part.
        """
        pieces = [
            _even_piece(name, each, self._rank, self._size) for name, each in (arrays or {}).items()
        ]
        pieces += [_piece(Part(*each)) for each in parts]
        structs = (CheckpointPiece * len(pieces))(*(piece for piece, _ in pieces))
        number = long_number(step, "step")
        self._call("checkpoint_save_async", number, structs, len(pieces), operation="save_async")

    def wait(self) -> None:
        """Wait until the checkpoint is complete on all ranks; raise the failure of any rank."""
        self._call("checkpoint_wait", operation="wait")

    def save(
        self, step: int, arrays: Mapping[str, Any] | None = None, parts: Iterable[Part] = ()
    ) -> None:
        """:meth:`save_async` and :meth:`wait`."""
        self.save_async(step, arrays, parts)
        self.wait()

    def close(self) -> None:
        """Wait until this rank has written; errors are discarded."""
        self._destroy()


def latest_checkpoint(folder: Folder, group: ProcessGroup | None = None) -> str | None:
    """Return the path of the newest complete checkpoint in `folder`, or None if there is none.

    group: all its ranks make the call, rank 0 reads the folder, and all get the same answer.
    """
    path, name = ctypes.c_char_p(), _path(folder, "the folder")
    with group._use() if group is not None else contextlib.nullcontext() as ranks:
        status = library().ddprun_checkpoint_latest(ranks, name, ctypes.byref(path))
        check(status, "latest_checkpoint", group.rank if group is not None else -1)
        return os.fsdecode(path.value) if path.value is not None else None


class Checkpoint(Handle):
    """A checkpoint that is read, by any number of ranks or none. Usable from any thread.

    Raises :class:`ddprun.Corrupt` if `path` is none, or a file of it is damaged or missing, and
    :class:`ddprun.SystemFailure` if it cannot be read.
    """

    _what = "checkpoint"

    def __init__(self, path: Folder) -> None:
        handle = create("checkpoint_open", _path(path, "the path"), operation="Checkpoint")
        super().__init__(handle, library().ddprun_checkpoint_destroy)

    @property
    def step(self) -> int:
        """The number under which it was saved."""
        return int(self._ask("checkpoint_step"))

    @property
    def world_size(self) -> int:
        """The number of ranks that saved it."""
        return int(self._ask("checkpoint_world_size"))

    @property
    def arrays(self) -> dict[str, ArrayInfo]:
        """Its arrays by name."""
        found = {}
        for at in range(self._ask("checkpoint_arrays")):
            name, kind, count = ctypes.c_char_p(), ctypes.c_int32(), ctypes.c_size_t()
            places = ctypes.byref(name), ctypes.byref(kind), ctypes.byref(count)
            self._call("checkpoint_array", at, *places, operation="arrays")
            info = ArrayInfo(ELEMENT_TYPES[kind.value].name, count.value)
            found[(name.value or b"").decode(errors="replace")] = info
        return found

    def read(self, name: str, out: Any, offset: int = 0) -> None:
        """Fill `out` with the elements of array `name` from `offset` on, whoever wrote them.

        `out` has the array's type. Checksums are verified: :class:`ddprun.Corrupt` names the file,
        and the contents of `out` are then undefined.
        """
        if long_number(offset, "offset") < 0:
            raise BadArgument("offset must not be negative")
        wanted = text(name, "the name of an array")
        buffer, _keep = lend(out, writable=True)
        self._call("checkpoint_read", wanted, ctypes.byref(buffer), offset, operation="read")


def load_latest(folder: Folder, load: Callable[[Checkpoint], object]) -> int | None:
    """Call ``load(checkpoint)`` with the newest complete one; return its step, None without one.

    For programs that have no group yet, as before :meth:`ddprun.elastic.Job.run`. Ranks that train
    meanwhile may remove the checkpoint for a newer one: then `load` is called again, with that.
    """
    path = latest_checkpoint(folder)
    while path is not None:
        try:
            checkpoint = Checkpoint(path)
            load(checkpoint)
            return checkpoint.step
        except Error:
            newest = latest_checkpoint(folder)
            if newest is None or newest == path:
                raise
            path = newest
    return None
