"""Jobs: training loops whose ranks may come and go. A thin layer over ddprun/c/c_elastic.h."""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from typing import Any, Callable, NamedTuple

from .._arguments import ELEMENT_TYPES, NUMBERS, count, milliseconds, text, text_or_none, whole
from .._c_api import Apply, Buffer, FillShards, InitOptions, JobCounters, JobOptions, ShardedOptions
from .._callbacks import NOT_ENDED, not_ended, take_dropped
from .._callbacks import Functions as Callbacks
from .._core import Handle, create, report_crashes
from .._core import check as check_status
from .._errors import BadArgument
from .._group import ProcessGroup
from .._library import library
from ._errors import MembershipChanged, check, status_of
from ._group import StepGroup
from ._state import FORMATS, Array, Functions, Sharded, kept_of, view_of
from ._step import Step


class Calls:
    """Calls functions of the program for the library, and keeps what they raise.

    An exception cannot pass through the library. The library receives a status instead, by which
    it decides whether the round is over, and :meth:`take` returns the exception if the library
    passes on that status.
    """

    def __init__(self) -> None:
        self._raised: BaseException | None = None
        self._status = 0  # The function's result for the library.
        self._saved = b""  # Read by the library until its next call.

    def guard(self, function: Callable[..., Any], *arguments: Any) -> int:
        """Call it; return 0, or what stands for its exception."""
        if self._is_interrupted():
            return self._status  # For the library this is the end of the round.
        self._raised, self._status = None, 0
        try:
            function(*arguments)
        except BaseException as error:
            self._raised, self._status = error, status_of(error)
        return self._status

    def take(self, status: int) -> BaseException | None:
        """Return the exception that `status`, of a call of the library, stands for."""
        stands = self._is_interrupted() or (status != 0 and status == self._status)
        found = self._raised if stands else None
        self._raised, self._status = None, 0
        return not_ended() if found is None and status == NOT_ENDED else found

    def _is_interrupted(self) -> bool:
        """Whether the last exception is not one of the body's own, which a lost rank may cause."""
        dropped = take_dropped()
        if dropped is not None:
            self._raised, self._status = dropped, NOT_ENDED
        return self._status == NOT_ENDED or not isinstance(
            self._raised, (Exception, MembershipChanged, type(None))
        )

    def of_state(self, save: Callable[[], bytes], load: Callable[[bytes], None]) -> Callbacks:
        """Return the functions that the library calls to save state and to load it."""

        def put(state: Any, size: Any) -> None:
            self._saved = save()
            state[0] = ctypes.cast(ctypes.c_char_p(self._saved), ctypes.c_void_p).value
            size[0] = len(self._saved)

        def take(state: int | None, size: int) -> None:
            load(ctypes.string_at(state, size) if state else b"")

        def save_apart(state: Any, size: Any) -> int:
            # For a bundle of a step whose body has just raised, which is what counts.
            before = self._raised, self._status
            status = self.guard(put, state, size)
            if isinstance(before[0], Exception):
                self._raised, self._status = before
            return status

        return Callbacks(
            save=save_apart,
            load=lambda state, size: self.guard(take, state, size),
        )


_PER_PERCENT = 10_000  # Parts per million.


class Counters(NamedTuple):
    """What has happened to this process since its Job was made."""

    rounds: int
    """Rounds that were joined."""
    planned: int
    """Of these, entered after all ranks had left the one before at the same step."""
    repeated_steps: int
    """Steps whose body was called again after a change."""
    bytes_sent: int
    """Of kept state, to ranks that lacked it."""
    bytes_received: int
    lost: float
    """Seconds from the last commit before each change to the first call of the body after it."""
    moved_shards: int = 0
    """From slow ranks to faster ones, of all ranks."""
    audited_shards: int = 0
    """Shards of other ranks that this one has computed as well."""


def _steps_between_copies(every: int | str | None) -> int:
    if every is None:
        return -1
    if every == "auto":
        return 0
    if isinstance(every, int) and every >= 1:
        return whole(every, "memory_every")
    raise BadArgument(f'memory_every must be a number of steps, "auto" or None, not {every!r}')


class Job(Handle):
    """A training loop whose ranks may come and go while their processes stay.

    ::

        job = ddprun.elastic.Job()
        job.keep(weights=weights)                  # what all ranks have alike between steps
        def train(step):
            gradient = compute(weights, step.shards(batches))
            step.group.all_reduce(gradient)
            step.commit(lambda: update(weights, gradient))
        job.run(10_000, train)

    A round is a span of time in which the same ranks train together. When a rank dies, operations
    of the others raise :class:`MembershipChanged` within milliseconds; :meth:`run` catches it,
    joins the next round and calls the body again for the same step. When ranks are to be added, all
    leave the round after the same step. Ranks that lack the newest kept state receive it from a
    rank that has it.

    Under ddprun (with ``--max-restarts`` above 0) a Job reports that this process can keep running
    when others end, so create it after slow work such as imports. Elsewhere the ranks are fixed,
    and errors of lost peers end :meth:`run`. All calls must come from one thread of the process
    that created the Job; a process can create only one.

    skip_poison: a shard that has ended two processes is skipped from then on; otherwise the run
        ends, and its verdict names the samples.
    min_world: the job computes in no round with fewer ranks. Under ddprun the ranks wait for
        others, with their state; if not enough come within ``join_timeout`` of ``--rdzv-conf`` (10
        min), the run ends with exit code 3.
    check_every: above 0, all ranks compare the arrays that they keep, modules included, whenever a
        multiple of this number of steps is committed; :meth:`run` raises :class:`ddprun.Mismatch`,
        which names array and ranks, if they differ. What is pickled is not compared.
    even_shards: by default :meth:`Step.shards` gives slow ranks fewer shards, and fast ones more;
        at most one moves after a step, unless a rank takes more than twice as long as another.
        True: every rank has as many as any other, or one more.
    shard_weight: ``shard_weight(step, shard)`` returns the work in a shard, such as the sum of its
        sequences' lengths, so that a rank is not taken for slow whose shards are long; by default
        its samples.
    audit: percent of all shards of all steps that a second rank computes as well, on another host
        if there is one. If the two differ, the step is not committed, a third rank decides which is
        wrong, and :meth:`run` raises :class:`ddprun.WrongResult` there. For bodies that call
        :meth:`Step.audit`, as :class:`ddprun.elastic.torch.Gradients` does. By default what
        ``ddprun --audit`` says.
    memory_every: steps between two copies of the kept state in the memory folder of a run with
        ``ddprun --memory-folder``, from which the job goes on when no worker is left that has the
        state; "auto": as many as keep the cost at 0.5 % of the steps' time; None: no copies.
    backend, init_timeout, op_timeout: of each round's group, see :func:`ddprun.init`; in seconds.
    """

    _what = "job"
    _ends_at_exit = False  # The end of the process says more than that of its link.

    def __init__(
        self,
        *,
        skip_poison: bool = False,
        min_world: int = 0,
        check_every: int = 0,
        even_shards: bool = False,
        shard_weight: Callable[[int, int], float] | None = None,
        audit: float | None = None,
        memory_every: int | str | None = "auto",
        backend: str | None = None,
        init_timeout: float | None = None,
        op_timeout: float | None = None,
    ) -> None:
        self._is_replay = bool(os.environ.get("DDPRUN_REPLAY"))  # See docs/replay.md.
        self._may_change = self._is_replay or bool(os.environ.get("DDPRUN_WORKER_LINK"))
        group = InitOptions(
            ctypes.sizeof(InitOptions),
            None,
            text_or_none(backend, "backend"),
            -1,
            0,
            milliseconds(init_timeout, "init_timeout"),
            milliseconds(op_timeout, "op_timeout"),
        )
        options = JobOptions(
            ctypes.sizeof(JobOptions),
            ctypes.pointer(group),
            skip_poison,
            min_world,
            whole(check_every, "check_every"),
            even_shards,
            0 if audit is None else round(audit * _PER_PERCENT) or -1,  # -1: none.
            _steps_between_copies(memory_every),
        )
        self._weight = shard_weight
        report_crashes()
        handle = create("job_create_with", ctypes.byref(options), operation="Job")
        super().__init__(handle, library().ddprun_job_destroy)
        self._calls = Calls()
        self._kept: list[Array] = []
        self._functions: list[Callbacks] = []  # Held by the library.
        self._warned = False

    def keep(self, **state: Any) -> Job:
        """Keep state that is equal on all ranks between steps, and that a new rank receives.

        Each is one of:

        * an array in host memory, kept in place: numpy.ndarray, array.array, bytearray, or a
          torch.Tensor, dense, of any element type; it must stay where it is;
        * a torch.nn.Module: its parameters and buffers, in place, and its extra state;
        * anything with state_dict() and load_state_dict(): optimizers, schedulers, GradScaler,
          samplers;
        * a random generator: torch.Generator, numpy's, random.Random;
        * a dict, whose contents are pickled.

        Only the function passed to ``commit()`` may change it. All ranks keep the same names in the
        same order, before :meth:`run`. While a rank receives state it needs memory for all of it
        twice.
        """
        for name, value in state.items():
            for each in kept_of(name, value):
                if isinstance(each, Array):
                    self._keep_array(each)
                else:
                    self._keep_functions(each)
        return self

    def keep_state(
        self, name: str, save: Callable[[], bytes], load: Callable[[bytes], None]
    ) -> Job:
        """Keep state that `save` returns on one rank and `load` receives on the others."""
        self._keep_functions(Functions(name, save, load))
        return self

    def keep_sharded(
        self,
        name: str,
        count: int,
        *,
        dtype: str = "float32",
        shards: int = 64,
        fill: Callable[[int, memoryview], None] | None = None,
    ) -> Sharded:
        """Keep `count` elements of which every rank has a part, and a copy of another rank's.

        Such as the state of an optimizer. All ranks call it alike, before :meth:`run`.

        shards: into so many parts the elements are divided, in order; fixed for the run, and at
            least the largest number of ranks.
        fill: ``fill(first, part)`` writes the elements from `first` on, as they are before the
            first step, or after the steps that :meth:`resume` was given; the same on every rank.
            By default all are 0.
        """
        if dtype not in FORMATS:
            raise BadArgument(f"elements of type {dtype!r} are not supported")

        def write(_user: int | None, first: int, part: Any) -> int:
            return self._calls.guard(lambda: fill(first, view_of(part.contents)) if fill else None)

        function = FillShards(write) if fill else FillShards()
        options = ShardedOptions(
            ctypes.sizeof(ShardedOptions),
            whole(count, "count"),
            function,
            None,
            NUMBERS[dtype],
            shards,
        )
        handle = ctypes.c_void_p()
        self._call(
            "job_keep_sharded",
            text(name, "the name"),
            ctypes.byref(options),
            ctypes.byref(handle),
            operation="Job.keep_sharded",
        )
        return Sharded(handle.value or 0, count, (self, function), lambda: self.committed)

    def resume(self, step: int) -> None:
        """Declare, before :meth:`run`, that the kept state is a checkpoint's after `step` steps.

        Without this call the first round begins with the kept state of rank 0. If a later
        :meth:`run` is for fewer steps, none runs, and rank 0 prints a line that says so.
        """
        self._call("job_resume", count(step, "step"), operation="Job.resume")

    def between(self, every: int, body: Callable[[ProcessGroup], Any]) -> Job:
        """Call ``body(group)`` whenever a multiple of `every` steps is committed.

        For evaluation and checkpoints, on all ranks; after the last step of :meth:`run`, too.
        `body` may use the group, and must not change kept state; :attr:`committed` is the number
        of steps. If the ranks change meanwhile, it is called again. The group is that of the round:
        create a :class:`ddprun.CheckpointWriter` in `body`.
        """

        def call(handle: int) -> None:
            group = StepGroup(handle, self._may_change)
            try:
                body(group)
            finally:
                group._end()

        functions = Callbacks(between=lambda handle: self._calls.guard(call, handle))
        self._functions.append(functions)
        own = functions.of("between"), functions.user
        self._call("job_between", whole(every, "every"), *own, operation="Job.between")
        return self

    def run(self, steps: int, body: Callable[[Step], Any]) -> None:
        """Call ``body(step)`` for each step until `steps` are committed, by all ranks.

        May be called again, with more steps. The body must call ``step.commit()`` or let an
        exception pass. It is called again for a step that was not committed when the ranks changed,
        so it may change kept state in ``commit()`` only, and everything else must be computable
        twice. Exceptions of the body pass through, unless the round is over.
        """
        self._require_kept_in_place()

        def call(handle: int) -> None:
            step = Step(handle, self._commit, may_change=self._may_change, weight=self._weight)
            try:
                body(step)
            except BaseException as error:
                step._capture_failure(error)
                self._end(step, error)
                raise
            finally:
                if self._is_replay:  # The library may end the process.
                    sys.stdout.flush()
            self._end(step, None)

        limit = count(steps, "steps")
        functions = Callbacks(body=lambda handle: self._calls.guard(call, handle))
        with self._use() as job:
            status = library().ddprun_job_run(job, limit, functions.of("body"), functions.user)
            self._raise(status, "Job.run")

    @property
    def committed(self) -> int:
        """The number of steps that are committed."""
        return int(self._ask("job_committed"))

    @property
    def rank(self) -> int:
        """The rank of this process in its present round, or its last one: also after :meth:`run`.

        -1 before the first round. A process that has joined after the last step has a rank, too.
        """
        return int(self._ask("job_rank"))

    @property
    def world_size(self) -> int:
        """The number of ranks in that round; 0 before the first."""
        return int(self._ask("job_world_size"))

    @property
    def counters(self) -> Counters:
        """Rounds, repeated steps, and what they cost."""
        found = JobCounters(ctypes.sizeof(JobCounters))
        self._call("job_counters_of", ctypes.byref(found), operation="Job.counters")
        return Counters(
            found.rounds,
            found.planned,
            found.repeated_steps,
            found.bytes_sent,
            found.bytes_received,
            found.lost_us / 1e6,
            found.moved_shards,
            found.audited_shards,
        )

    def close(self) -> None:
        """Leave the job, which ends this rank for the others. Further calls have no effect."""
        if os.getpid() == self._pid:
            self._destroy()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # Otherwise the end of the process shows the others a lost rank.
            self.close()

    def _keep_array(self, array: Array) -> None:
        elements = array.bytes // ELEMENT_TYPES[array.kind].size
        buffer = Buffer(ctypes.sizeof(Buffer), array.address, elements, array.kind, 0)
        name = text(array.name, "the name")
        self._call("job_keep", name, ctypes.byref(buffer), operation="Job.keep")
        self._kept.append(array)

    def _keep_functions(self, kept: Functions) -> None:
        functions = self._calls.of_state(kept.save, kept.load)
        self._functions.append(functions)
        self._call(
            "job_keep_state",
            text(kept.name, "the name"),
            functions.of("save"),
            functions.of("load"),
            functions.user,
            operation="Job.keep",
        )

    def _require_kept_in_place(self) -> None:
        for array in self._kept:
            if array.now() != array.address:
                raise BadArgument(
                    f"the kept array {array.name} is no longer where it was: keep a module after "
                    "it was moved to its type and device, and do not resize arrays"
                )

    def _commit(self, handle: int, apply: Callable[[], Any] | None, group: StepGroup) -> None:
        if apply is None:
            status = library().ddprun_step_commit(handle, Apply(), None)
        else:
            changes = apply
            functions = Callbacks(apply=lambda: self._calls.guard(changes))
            status = library().ddprun_step_commit(handle, functions.of("apply"), functions.user)
        raised = self._calls.take(status)
        if raised is not None:
            raise raised
        check(status, "Step.commit", group.rank, group)

    def _end(self, step: Step, error: BaseException | None) -> None:
        """After the body, which has raised `error`."""
        step._end()
        if step._has_swallowed(error) and not self._warned:
            self._warned = True
            warnings.warn(
                f"the body of step {step.number} has caught MembershipChanged and gone on; the "
                "step is not committed, and runs again. Let MembershipChanged leave the body: "
                "until it does this rank keeps the others waiting",
                RuntimeWarning,
                stacklevel=2,
            )

    def _raise(self, status: int, operation: str) -> None:
        raised = self._calls.take(status)
        if isinstance(raised, MembershipChanged):
            raise raised.as_error() from raised
        if raised is not None:
            raise raised
        check_status(status, operation)
