"""The gradients of each step of a job, whose bits do not depend on the number of ranks.

As ElasticGradients of ddprun/torch/elastic_job.h.
"""

from __future__ import annotations

import hashlib
from typing import Any, Callable, NamedTuple

import torch

from ..._errors import BadArgument, Mismatch, Unsupported
from .. import GlobalBatches, GradientSums, Job, Shard, Step, stream_seed
from ._seeds import seed_all


class ShardBuffers:
    """`changes`: of each buffer, flat, of float32, to be summed over shards and ranks."""

    def __init__(self, module: Any) -> None:
        self._buffers: list[Any] = []
        self._before: list[Any] = []
        self.changes: list[Any] = []
        for name, buffer in module.named_buffers():
            if buffer.numel() == 0:
                continue
            if buffer.device.type != "cpu" or buffer.layout != torch.strided or buffer.is_complex():
                raise Unsupported(
                    f"buffer {name} is not a dense tensor of real numbers in host memory"
                )
            self._buffers.append(buffer)
            self.changes.append(torch.zeros(buffer.numel(), dtype=torch.float32))

    def begin(self) -> None:
        """Start a step."""
        self._before = [buffer.detach().clone() for buffer in self._buffers]

    def take(self, weight: float) -> None:
        """After a shard's pass: its change times `weight` to `changes`; then reset."""
        with torch.no_grad():
            for buffer, before, change in zip(self._buffers, self._before, self.changes):
                difference = buffer.to(torch.float64) - before.to(torch.float64)
                change.copy_((difference * weight).reshape(-1))
        self.reset()

    def reset(self) -> None:
        """Put the buffers back to what they were."""
        with torch.no_grad():
            for buffer, before in zip(self._buffers, self._before):
                buffer.copy_(before)

    def apply(self) -> None:
        """Add `changes`, which are the sums now, to the buffers."""
        with torch.no_grad():
            for buffer, before, change in zip(self._buffers, self._before, self.changes):
                total = before.to(torch.float64) + change.view(before.shape)
                if not before.is_floating_point():
                    total.round_()
                buffer.copy_(total)


_NOT_FINITE = "the gradient is not finite"
_OUTSIDE = 1 << 63  # Makes it another seed.


class Result(NamedTuple):
    """What a step's gradients are of; the same on all ranks."""

    loss: float
    """The mean loss over the global batch."""
    finite: bool
    """False: some gradient is infinite or NaN, on all ranks."""
    attempts: int
    """Above 1 in the first step, and where gradients grew a lot: the shards were computed again."""


def _hash_of_surroundings() -> int:
    """Hash what the bits of a shard's gradient depend on, apart from the program."""
    text = f"{torch.__version__} {torch.__config__.show()} {torch.get_num_threads()}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _trained(module: Any) -> list[Any]:
    found = []
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise Unsupported(f"parameter {name} is not of float32 in host memory")
        found.append(parameter)
    if not found:
        raise BadArgument("the module has no parameter that requires a gradient")
    return found


def _dense(gradient: Any) -> Any:
    """Return the gradient itself where it is contiguous, else a contiguous copy."""
    if gradient is None:
        return None
    return (gradient.to_dense() if gradient.layout != torch.strided else gradient).contiguous()


class Gradients:
    """The gradient of the mean loss over each step's global batch, whichever rank computes a shard.

    ::

        gradients = Gradients(job, net, batches)
        def train(step):
            gradients.backward(step, lambda shard: loss_of(net(x[shard.indices]), y[shard.indices]))
            gradients.commit(step, sgd.step)
        job.run(steps, train)

    Each shard has a forward and backward pass of its own, with empty gradients, with the module's
    buffers of the last committed step, and with the generators of torch, `random` and numpy seeded
    by (seed, step, shard). Batch normalisation normalises each shard by itself; its running
    averages are updated once per step, with the mean of the shards' statistics.

    For the same bits with any number of ranks, set the number of threads in the program
    (``torch.set_num_threads``) before this object is created; ddprun's default depends on the
    number of workers of a node. Ranks that differ in it, or in torch's version or libraries, get
    :class:`ddprun.Mismatch`.

    job: keeps the state of the sums; made before :meth:`Job.run`.
    module: whose parameters that require a gradient are of float32, in host memory.
    seed: of the generators.
    exact: False for plain float32 sums, whose bits depend on the ranks.
    """

    def __init__(
        self,
        job: Job,
        module: Any,
        batches: GlobalBatches,
        *,
        seed: int = 0,
        exact: bool = True,
    ) -> None:
        self.batches = batches
        self.seed = seed
        self._parameters = _trained(module)
        self._buffers = ShardBuffers(module)
        self._loss = torch.zeros(1, dtype=torch.float32)
        self._sum = [torch.zeros(p.shape, dtype=torch.float32) for p in self._parameters]
        self._outputs = [*self._sum, *self._buffers.changes, self._loss]
        self._sums = GradientSums(
            [each.numel() for each in self._outputs], exact=exact, equal=_hash_of_surroundings()
        )
        self._round: int | None = None  # The round of the sums' memory.
        self._finite = True
        job.keep_state("gradient sums", self._sums.state, self._sums.restore)

    def backward(self, step: Step, loss: Callable[[Shard], Any]) -> Result:
        """Compute this rank's shards and sum over all ranks; collective.

        ``loss(shard)`` returns the mean loss over the shard's samples, a tensor of one element.
        It is called for each shard, and again for each if the step has to run again. Afterwards
        ``.grad`` of each parameter has the gradient of the mean loss over the global batch, zeros
        if no shard had one: the same bits on all ranks.
        """
        if self._round != step.round:
            self._sums.use(step.group)
            self._round = step.round
        self._buffers.begin()
        attempts = 0
        while True:
            attempts += 1
            self._sums.begin()
            self._compute_shards(step, loss)
            found = step.reduce(self._sums, self._outputs)
            self._require_all_shards(step, found.shards)
            if found.kind != "over":
                break
        for parameter, gradient in zip(self._parameters, self._sum):
            parameter.grad = gradient
        self._finite = found.kind == "good"
        self._seed_step(step)
        return Result(float(self._loss.item()), self._finite, attempts)

    def commit(self, step: Step, apply: Callable[[], Any]) -> None:
        """Call ``step.commit(apply)``; also change the module's buffers, if all was finite.

        `apply` runs the optimizer's step and everything else that changes kept state: schedulers,
        GradScaler, averaged weights.
        """

        def all_of_it() -> None:
            if self._finite:
                self._buffers.apply()
            self._sums.commit()
            apply()

        step.commit(all_of_it)

    def state(self) -> bytes:
        """Return the units of the sums after the last committed step: part of a checkpoint.

        Without them a job that goes on from the checkpoint does not have the bits of one that has
        not stopped.
        """
        return self._sums.state()

    def restore(self, state: bytes) -> None:
        """Restore a result of :meth:`state` for the same module, before :meth:`Job.run`."""
        self._sums.restore(state)

    def _compute_shards(self, step: Step, loss: Callable[[Shard], Any]) -> None:
        samples, _ = self._computed(step)
        try:
            for shard in step.shards(self.batches):
                found = self._compute(step, shard, loss, samples)
                self._sums.add(found)
                if not self._sums.is_finite:
                    step.capture(shard.number, _NOT_FINITE, self._sums.hash(found))
            for shard in step.audits(self.batches):
                self._compute(step, shard, loss, samples)
        finally:
            self._buffers.reset()  # In any case, the module gets its kept buffers back.

    def _compute(
        self, step: Step, shard: Shard, loss: Callable[[Shard], Any], samples: int
    ) -> list[Any]:
        seed_all(stream_seed(self.seed, step.number, shard.number, self.batches.shards))
        for parameter in self._parameters:
            parameter.grad = None
        found = self._gradients(loss(shard), len(shard) / samples)
        if step.is_audited(shard.number):
            step.audit(shard.number, self._sums.hash(found))
        return found

    def _gradients(self, loss: Any, weight: float) -> list[Any]:
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise BadArgument("the loss of a shard is not a tensor of one element")
        loss.backward(torch.full_like(loss, weight))
        self._buffers.take(weight)
        self._loss.fill_(loss.item() * weight)
        gradients = [_dense(parameter.grad) for parameter in self._parameters]
        return [*gradients, *self._buffers.changes, self._loss]

    def _computed(self, step: Step) -> tuple[int, int]:
        """Count samples and shards of all ranks. A small last batch has empty shards."""
        samples = self.batches.batch_size(step.number)
        shards = min(self.batches.shards, samples)
        for number in range(self.batches.shards):
            if step.skips(number):
                skipped = len(self.batches.shard(step.number, number))
                samples -= skipped
                shards -= skipped > 0
        return samples, shards

    def _require_all_shards(self, step: Step, added: int) -> None:
        _, expected = self._computed(step)
        if added != expected:
            raise Mismatch(
                f"{added} shards of step {step.number} were added up, not {expected}",
                rank=step.rank,
                operation="Gradients.backward",
            )

    def _seed_step(self, step: Step) -> None:
        """Let all ranks draw the same outside of shards, as in an optimizer that adds noise."""
        seed_all(stream_seed(self.seed ^ _OUTSIDE, step.number, 0, 1))
