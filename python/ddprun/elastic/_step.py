"""One step of a job, while its body runs."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, Callable, Union

from .._arguments import number as a_number
from .._arguments import text_or_none
from .._errors import BadArgument
from .._group import ProcessGroup
from .._library import library
from ._batches import GlobalBatches, Shard, shards_of
from ._errors import MembershipChanged, check
from ._group import StepGroup

# Commits the step of a handle: calls the function, if there is one, with the step's group.
Commit = Callable[[int, Union[Callable[[], Any], None], StepGroup], None]


class Step:
    """One step, created by :meth:`Job.run`. Must not be used after the body has returned.

    number: the step's number, from 0; the same number again if the step is repeated.
    is_repeated: whether the body was called for this number before, in this process.
    round: rises with each change of the ranks. Recreate everything that depends on the ranks when
        it changes.
    rank, world_size: of this round.
    """

    def __init__(self, handle: int, commit: Commit, *, may_change: bool) -> None:
        c = library()
        self._commit = commit
        self._handle: int | None = handle
        self._is_committed = False
        self.number = int(c.ddprun_step_number(handle))
        self.is_repeated = bool(c.ddprun_step_is_repeated(handle))
        self.round = int(c.ddprun_step_round(handle))
        self._group = StepGroup(c.ddprun_step_group(handle), may_change, handle)
        self.rank = self._group.rank
        self.world_size = self._group.world_size

    @property
    def group(self) -> ProcessGroup:
        """The ranks of this round. Once the round is over, its calls raise MembershipChanged."""
        return self._group

    def shards(self, batches: GlobalBatches) -> Iterator[Shard]:
        """Yield those shards of the step's batch that this rank computes.

        A shard is in progress until the next one is requested, or `group` or :meth:`commit` is
        used: if the process fails meanwhile, ddprun names the shard and its samples. Empty and
        skipped shards are omitted.
        """
        for number in shards_of(self.rank, self.world_size, batches.shards):
            shard = self._samples(batches, number)
            shard.ranks = (self.rank, self.world_size)
            if len(shard):
                yield shard

    def begin_shard(self, number: int, content: str = "") -> bool:
        """Report that this rank computes a shard whose samples come from elsewhere.

        `content` describes the shard for people; it is the same on every rank. Returns False if the
        shard must be skipped.
        """
        skipped = ctypes.c_int()
        status = library().ddprun_step_begin_shard(
            self._live(),
            a_number(number, "number"),
            text_or_none(content, "content"),
            ctypes.byref(skipped),
        )
        check(status, "Step.begin_shard", self.rank, self._group)
        return not skipped.value

    def skips(self, number: int) -> bool:
        """Return whether the shard has ended two processes and is skipped, by all ranks."""
        return bool(library().ddprun_step_skips(self._live(), a_number(number, "number")))

    def commit(self, apply: Callable[[], Any] | None = None) -> None:
        """End the step: call ``apply()``, which changes the kept state, on every rank.

        All ranks call it once, after the operations that combine their results. `apply` must do the
        same on every rank, and communicate with nobody: there, operations of groups and
        :meth:`commit` raise :class:`ddprun.BadArgument`. Raises MembershipChanged, without calling
        `apply`, if an operation of this step has failed. Exceptions of `apply` pass through; the
        kept state of this rank is then invalid.
        """
        self._commit(self._live(), apply, self._group)
        self._is_committed = True

    def vote(self) -> int:
        """Return 1 if this rank votes to leave the round after this step, else 0.

        For a reduction that carries one more number, so that :meth:`commit` needs no reduction of
        its own: sum the votes of all ranks, and pass the sum to :meth:`voted`.
        """
        vote = ctypes.c_int32()
        status = library().ddprun_step_vote(self._live(), ctypes.byref(vote))
        check(status, "Step.vote", self.rank, self._group)
        return vote.value

    def voted(self, votes: int) -> None:
        """Pass on the sum of all ranks' votes, which is the same on all ranks."""
        status = library().ddprun_step_voted(self._live(), int(votes != 0))
        check(status, "Step.voted", self.rank, self._group)

    def __repr__(self) -> str:
        return (
            f"<ddprun.elastic.Step {self.number} in round {self.round}, rank {self.rank} of "
            f"{self.world_size}>"
        )

    def _samples(self, batches: GlobalBatches, number: int) -> Shard:
        first, count = ctypes.c_void_p(), ctypes.c_size_t()
        status = library().ddprun_step_samples(
            self._live(),
            batches._live(),
            number,
            ctypes.byref(first),
            ctypes.byref(count),
        )
        check(status, "Step.shards", self.rank, self._group)
        return Shard(self.number, number, first.value, count.value)

    def _live(self) -> int:
        if self._handle is None:
            raise BadArgument(f"step {self.number} is over: its body has returned")
        return self._handle

    def _end(self) -> None:
        self._handle = None
        self._group._end()

    def _has_swallowed(self, error: BaseException | None) -> bool:
        """Whether the body has caught MembershipChanged, and `error` is not because of it."""
        lost = self._group._lost
        return lost is not None and not self._is_committed and not _descends_from(error, lost)


def _descends_from(error: BaseException | None, lost: MembershipChanged) -> bool:
    while error is not None and error is not lost:
        error = error.__cause__ or error.__context__
    return error is lost
