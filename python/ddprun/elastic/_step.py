"""One step of a job, while its body runs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Union

from .._arguments import number as a_number
from .._arguments import seed, text, text_or_none, whole
from .._c_api import SumResult
from .._errors import BadArgument, Error
from .._group import ProcessGroup
from .._library import library
from ._batches import GlobalBatches, Shard
from ._errors import MembershipChanged, check
from ._group import StepGroup
from ._sums import GradientSums, Sum, sum_of

_WHY_MAX = 4000

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

    def __init__(
        self,
        handle: int,
        commit: Commit,
        *,
        may_change: bool,
        weight: Callable[[int, int], float] | None = None,
    ) -> None:
        c = library()
        self._commit = commit
        self._weight = weight
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

        How many it has follows the speed of the ranks, and may differ in the next step; see
        `even_shards` of :class:`Job`. A shard is in progress until the next one is requested, or
        `group` or :meth:`commit` is used: if the process fails meanwhile, ddprun names the shard
        and its samples. Empty and skipped shards are omitted.
        """
        mine = self._mine(batches)
        for number in mine:
            shard = self._samples(batches, number)
            shard.ranks, shard.mine = (self.rank, self.world_size), mine
            if len(shard):
                yield shard

    def audits(self, batches: GlobalBatches) -> Iterator[Shard]:
        """Yield the shards of other ranks that this rank computes as well, after its own.

        Their results are passed to :meth:`audit`, and added to nothing; see `audit` of
        :class:`Job`.
        """
        first, count = ctypes.c_void_p(), ctypes.c_size_t()
        places = ctypes.byref(first), ctypes.byref(count)
        status = library().ddprun_step_audits(self._live(), *places)
        check(status, "Step.audits", self.rank, self._group)
        address = first.value
        numbers: Any = (ctypes.c_int32 * count.value).from_address(address) if address else ()
        for number in list(numbers):
            shard = self._samples(batches, number)
            shard.ranks, shard.mine = (self.rank, self.world_size), range(0)
            if len(shard):
                yield shard

    def is_audited(self, number: int) -> bool:
        """Return whether two ranks compute the shard: then both call :meth:`audit`."""
        return bool(library().ddprun_step_is_audited(self._live(), a_number(number, "number")))

    def audit(self, number: int, hash_of_result: int) -> None:
        """Pass a hash of what this rank has computed for a shard, gradient and loss.

        Such as :meth:`GradientSums.hash`. Has no effect for shards that are not audited.
        """
        status = library().ddprun_step_audit(
            self._live(), a_number(number, "number"), seed(hash_of_result, "the hash")
        )
        check(status, "Step.audit", self.rank, self._group)

    def capture(self, number: int, why: str, hash_of_result: int = 0) -> None:
        """Write a bundle of this step for ``ddprun replay``, if there is a folder for bundles.

        For a program that has found something, such as a loss that is too large, in the shard of
        this number; -1: the shard in progress. The replay compares `why`, a text for people, and
        the hash, that of :meth:`audit`, if it is not 0. One bundle per step, and none if the step
        before has one. It is written before the step is reduced or committed, or as the body ends.
        Exceptions of the body, and gradients that are not finite, are captured by themselves.
        """
        status = library().ddprun_step_capture(
            self._live(),
            whole(number, "number", -1, 2**31 - 1),
            text(why, "why"),
            seed(hash_of_result, "the hash"),
        )
        check(status, "Step.capture", self.rank, self._group)

    def _capture_failure(self, error: BaseException) -> None:
        """Capture an exception of the program that is about to leave the body."""
        if isinstance(error, Exception) and not isinstance(error, Error):
            with contextlib.suppress(Exception):  # `error` is what counts.
                self.capture(-1, _text_of(error))

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
        same on every rank, and communicate with no rank: there, operations of groups and
        :meth:`commit` raise :class:`ddprun.BadArgument`. Raises MembershipChanged, without calling
        `apply`, if an operation of this step has failed. Exceptions of `apply` pass through; the
        kept state of this rank is then invalid.
        """
        self._commit(self._live(), apply, self._group)
        self._is_committed = True

    def reduce(
        self, sums: GradientSums, out: Sequence[Any], *, divide_by: float = 1.0, note: int = 0
    ) -> Sum:
        """Call ``sums.reduce(step.group, out, ...)``, which also carries what the ranks agree on.

        After a result other than "over" :meth:`commit` communicates no more.
        """
        addresses, held = sums._addresses(out, writable=True)
        found = SumResult(ctypes.sizeof(SumResult))
        status = library().ddprun_step_reduce(
            self._live(),
            sums._live(),
            addresses,
            divide_by,
            whole(note, "note"),
            ctypes.byref(found),
        )
        check(status, "Step.reduce", self.rank, self._group)
        del held
        return sum_of(found)

    def vote(self) -> int:
        """Return 1 if this rank votes to leave the round after this step, else 0.

        For a reduction other than :meth:`reduce` that carries one more number, so that
        :meth:`commit` needs no reduction of its own: sum the votes of all ranks, and pass the sum
        to :meth:`voted`. Such steps do not show how fast the ranks are, so no shard moves.
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

    def _mine(self, batches: GlobalBatches) -> range:
        first, count = ctypes.c_int(), ctypes.c_int()
        weights = None
        if self._weight is not None:
            each = [float(self._weight(self.number, n)) for n in range(batches.shards)]
            weights = (ctypes.c_double * len(each))(*each)
        status = library().ddprun_step_shards(
            self._live(),
            batches._live(),
            batches.shards,
            weights,
            ctypes.byref(first),
            ctypes.byref(count),
        )
        check(status, "Step.shards", self.rank, self._group)
        return range(first.value, first.value + count.value)

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


def _text_of(error: BaseException) -> str:
    """Return "ValueError: bad sample 41 (train.py:23)": the same in a run and in its replay."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    words = f"{type(error).__name__}: {error}"[:_WHY_MAX].replace("\0", "?").replace("\n", " ")
    return words.encode("utf-8", "replace").decode() + place


def _descends_from(error: BaseException | None, lost: MembershipChanged) -> bool:
    while error is not None and error is not lost:
        error = error.__cause__ or error.__context__
    return error is lost
