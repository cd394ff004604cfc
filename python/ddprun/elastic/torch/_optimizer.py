"""Adam and AdamW whose moments are divided among the ranks of a job: stage 1 of ZeRO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

import torch

from ..._errors import BadArgument, Unsupported
from ..._group import ProcessGroup
from .. import Job, Step
from .._state import Sharded, dumps, loads

_BUCKET = 1 << 20  # Elements that are gathered at a time.


class _Piece(NamedTuple):
    """A part of one parameter, at `first` of all elements."""

    first: int
    flat: Any  # Of the parameter, in place.
    gradient: Any  # Likewise.


def _tensor_of(view: memoryview) -> Any:
    return torch.frombuffer(view, dtype=torch.float32) if len(view) else torch.empty(0)


class ShardedOptimizer:
    """Adam or AdamW of a job, of whose moments each rank has a part, and a copy of another's.

    ::

        adamw = ShardedOptimizer(job, net, lambda p: torch.optim.AdamW(p, lr=1e-3))
        def train(step):
            gradients.backward(step, loss)
            adamw.update(step)                     # collective; uses the gradients up
            gradients.commit(step, adamw.apply)

    The weights have the bits of ``torch.optim.AdamW`` of all parameters, for every number of ranks.
    When a rank is lost its moments come from the copy; see docs/elastic.md for what is lost with
    two ranks at once.

    job: keeps the moments; made before :meth:`Job.run`. Keep the module with ``job.keep()``.
    module: whose parameters that require a gradient are of float32, contiguous, in host memory.
    make: ``make(parameters)`` returns the optimizer, of one parameter group.
    shards: the number of parts, at least the largest number of ranks.
    name: of the moments, if a job has several such optimizers.
    """

    def __init__(
        self,
        job: Job,
        module: Any,
        make: Callable[[list[Any]], Any],
        *,
        shards: int = 64,
        name: str = "moments",
    ) -> None:
        self._job = job
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        for parameter in self._parameters:
            is_f32 = parameter.dtype == torch.float32 and parameter.device.type == "cpu"
            if not is_f32 or not parameter.is_contiguous():
                raise Unsupported("a parameter is not of contiguous float32 in host memory")
        self.local = make([torch.nn.Parameter(torch.empty(0))])
        """The optimizer of this rank's part: for schedulers, within the function of commit()."""
        if not isinstance(self.local, (torch.optim.Adam, torch.optim.AdamW)):
            raise Unsupported("only Adam and AdamW can be sharded")
        if len(self.local.param_groups) != 1:
            raise Unsupported("only one group of parameters can be sharded")
        names = ["exp_avg", "exp_avg_sq"]
        if self.local.param_groups[0]["amsgrad"]:
            names.append("max_exp_avg_sq")
        self._count = sum(p.numel() for p in self._parameters)
        self._steps = 0
        self._restored: dict[str, Any] = {}
        self._begins_at = 0  # The step with which `_restored` goes on.
        self._updated: int | None = None  # A step whose new weights are not in their place.
        self._moments: dict[str, Sharded] = {
            each: job.keep_sharded(
                f"{name} {each}", self._count, shards=shards, fill=self._fill_of(each)
            )
            for each in names
        }
        self._round: int | None = None
        self._ranges: list[tuple[int, int]] = []  # By rank.
        job.keep_state(name, self._save, self._load)

    def update(self, step: Step) -> None:
        """Compute this rank's part of the step, and gather the new weights; collective.

        After ``backward()``, whose gradients on all ranks must be equal; before ``commit()``.
        Afterwards ``.grad`` of each parameter has its new weights, which :meth:`apply` puts in
        their place. Not for a step that is left out, as one whose gradients are not finite: its
        moments are those of the step before.
        """
        if self._updated is not None and self._updated < step.number:
            raise BadArgument(
                f"step {self._updated} was committed with new moments but without apply(): call"
                " update() only in steps in which apply() puts the new weights in their place"
            )
        if any(parameter.grad is None for parameter in self._parameters):
            raise BadArgument("a parameter has no gradient: call backward() before update()")
        self._updated = step.number
        after = {name: _tensor_of(each.next()) for name, each in self._moments.items()}
        some = next(iter(self._moments.values()))
        first, last = some.first, some.first + len(next(iter(after.values())))
        self._learn_ranges(step, first, last)
        pieces = list(self._pieces(first, last))
        parameters = [torch.nn.Parameter(piece.flat.clone()) for piece in pieces]
        self.local.param_groups[0]["params"] = parameters
        self.local.state.clear()
        for piece, parameter in zip(pieces, parameters):
            parameter.grad = piece.gradient
            part = slice(piece.first - first, piece.first - first + piece.flat.numel())
            state = {name: moments[part] for name, moments in after.items()}
            self.local.state[parameter] = {"step": torch.tensor(float(self._steps)), **state}
        self.local.step()
        for piece, parameter in zip(pieces, parameters):
            piece.gradient.copy_(parameter.detach())
        self.local.state.clear()
        self.local.param_groups[0]["params"] = []
        self._gather(step.group)

    def apply(self) -> None:
        """Put the new weights in place. Within the function of ``commit()``."""
        with torch.no_grad():
            for parameter in self._parameters:
                parameter.copy_(parameter.grad)
        self._steps += 1
        self._updated = None
        # A rank whose round ends behind its commit may still be asked for those of that step.
        if self._restored and self._steps > self._begins_at + 1:
            self._restored = {}

    def state(self, group: ProcessGroup) -> dict[str, Any]:
        """Return all moments, for a checkpoint, on all ranks; collective, in ``between()``."""
        whole: dict[str, Any] = {"rest": self._save()}
        for name, moments in self._moments.items():
            whole[name] = torch.empty(self._count)
            moments.gather(group, whole[name].numpy())
        return whole

    def restore(self, state: dict[str, Any]) -> None:
        """Begin with a result of :meth:`state`, on all ranks, before ``job.run()``."""
        for name in self._moments:
            if name not in state or state[name].numel() != self._count:
                raise BadArgument(f'the state has no "{name}" of {self._count} elements')
        self._load(state["rest"])
        self._restored = {name: state[name] for name in self._moments}
        self._begins_at = self._steps

    def _fill_of(self, name: str) -> Callable[[int, memoryview], None]:
        def fill(first: int, part: memoryview) -> None:
            moments = _tensor_of(part)
            if self._restored:
                moments.copy_(self._restored[name][first : first + len(part)])
            elif self._job.committed > 0:
                raise BadArgument(
                    f"the moments of step {self._job.committed} are not there: pass a result of"
                    " state() to restore() before a job that goes on from a checkpoint"
                )
            else:
                moments.zero_()

        return fill

    def _save(self) -> bytes:
        group = self.local.param_groups[0]
        options = {key: value for key, value in group.items() if key != "params"}
        return dumps({"steps": self._steps, "options": options})

    def _load(self, saved: bytes) -> None:
        state = loads(saved)
        self._steps = state["steps"]
        self._updated = None
        self.local.param_groups[0].update(state["options"])

    def _pieces(self, first: int, last: int) -> Iterator[_Piece]:
        """Yield those of parameters whose elements are from `first` to `last` of all."""
        at = 0
        for parameter in self._parameters:
            begin, end = max(first, at), min(last, at + parameter.numel())
            if begin < end:
                part = slice(begin - at, end - at)
                gradient = parameter.grad.view(-1)[part]
                yield _Piece(begin, parameter.detach().view(-1)[part], gradient)
            at += parameter.numel()

    def _learn_ranges(self, step: Step, first: int, last: int) -> None:
        if self._round == step.round:
            return
        ends = torch.empty(2 * step.world_size, dtype=torch.int64)
        step.group.all_gather(torch.tensor([first, last]).numpy(), ends.numpy())
        found = ends.tolist()
        self._ranges = list(zip(found[::2], found[1::2]))
        self._round = step.round

    def _gather(self, group: ProcessGroup) -> None:
        """Replace the gradients of other ranks' parts by their new weights, a bucket at a time."""
        bucket = torch.empty(min(_BUCKET, self._count))
        mine = torch.empty(min(_BUCKET, self._count))
        for begin in range(0, self._count, _BUCKET):
            end = min(begin + _BUCKET, self._count)
            parts = []
            for first, last in self._ranges:
                low, high = min(max(first, begin), end), min(max(last, begin), end)
                parts.append(bucket[low - begin : max(high, low) - begin])
            length = parts[group.rank].numel()
            low = max(self._ranges[group.rank][0], begin)
            for piece in self._pieces(low, low + length):
                at = piece.first - low
                mine[at : at + piece.gradient.numel()] = piece.gradient
            group.all_gather(mine[:length].numpy(), [part.numpy() for part in parts])
            for piece in self._pieces(begin, end):
                at = piece.first - begin
                piece.gradient.copy_(bucket[at : at + piece.gradient.numel()])
