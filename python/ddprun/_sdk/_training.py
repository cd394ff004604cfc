"""What a training loop calls: gradients' norm, steps' times, and numbers for the log."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, NamedTuple

from .. import _c_api
from .._arguments import lend, milliseconds, text
from .._c_api import Buffer, InitOptions
from .._c_api import Metric as _Metric
from .._core import Handle, check, create
from .._errors import BadArgument
from .._group import ProcessGroup
from .._library import library

_PHASES: dict[str, int] = {
    name: getattr(_c_api, "PHASE_" + name.upper())
    for name in ("outside", "data", "forward", "backward", "optimizer", "exposed")
}


def clip_grad_norm(
    gradients: Iterable[Any],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> float:
    """Scale gradients in place so that the norm of all is at most `max_norm`; return it as it was.

    As ``torch.nn.utils.clip_grad_norm_``, for arrays. Nothing is sent: averaged gradients, and so
    their norm, are equal on all ranks.

    gradients: arrays of floating-point numbers.
    norm_type: above 0; infinity selects the largest absolute value.
    error_if_nonfinite: whether an infinite norm, or one that is no number, raises
        :class:`ddprun.BadArgument`, instead of scaling by 0 or NaN.
    """
    lent = [lend(each, writable=True) for each in gradients]
    buffers = (Buffer * len(lent))(*(buffer for buffer, _ in lent))
    norm = ctypes.c_double()
    status = library().ddprun_clip_grad_norm(
        buffers, len(lent), max_norm, norm_type, bool(error_if_nonfinite), ctypes.byref(norm)
    )
    check(status, "clip_grad_norm")
    return norm.value


class StepTimer(Handle):
    """Tells ddprun in which part of a step this process is, for ``--report`` and ``--on-stall``.

    For loops that neither ddprun nor torch synchronises; ``ddprun --report`` times PyTorch's loops
    by itself::

        timer = ddprun.StepTimer()
        timer.join()
        for batch in data:
            timer.enter("forward")
            ...
            timer.end_step()

    One for each process, made before its groups; those that are made later leave it to the timer to
    report where the process is. One thread at a time. A call costs a few microseconds at most.
    """

    _what = "timer"

    def __init__(self) -> None:
        handle = create("timer_create", operation="StepTimer")
        super().__init__(handle, library().ddprun_timer_destroy)

    def join(self, timeout: float | None = None) -> None:
        """Meet the timers of the other ranks, which all call it, once, within `timeout` seconds.

        From the next phase on, steps are timed, and their times exchanged over a group of its own,
        for which no rank waits.
        """
        options = InitOptions(
            size=ctypes.sizeof(InitOptions),
            rank=-1,
            init_timeout_ms=milliseconds(timeout),
        )
        self._call("timer_join", ctypes.byref(options), operation="StepTimer.join")

    def enter(self, phase: str) -> None:
        """End one phase and begin another.

        phase: data, forward, backward, optimizer, "exposed" while waiting for other ranks, or
            "outside" of these.
        """
        if phase not in _PHASES:
            raise BadArgument(f"phase {phase!r} is not one of {', '.join(_PHASES)}")
        self._call("timer_enter", _PHASES[phase], operation="StepTimer.enter")

    def end_step(self, size: int = 0) -> None:
        """End the step, in which ranks have exchanged `size` bytes of gradients."""
        if not isinstance(size, int) or not 0 <= size < 2**64:
            raise BadArgument(f"size must be a number of bytes, not {size!r}")
        self._call("timer_end_step", size, operation="StepTimer.end_step")

    def close(self) -> None:
        """Leave the summary for ``ddprun --report``; takes some seconds at most."""
        self._destroy()


class Metric(NamedTuple):
    """One number, of all ranks."""

    average: float  # Weighted.
    sum: float  # Of value * weight.
    weight: float  # Sum of the weights.
    min: float  # Of the values.
    max: float


class Metrics(Handle):
    """Collects numbers on each rank, and reduces all of them by one call.

    For example::

        metrics = ddprun.Metrics()
        metrics.add("loss", loss, weight=len(batch))
        everywhere = metrics.reduce(group)
        print(everywhere["loss"].average)
    """

    _what = "metrics"

    def __init__(self) -> None:
        handle = create("metrics_create", operation="Metrics")
        super().__init__(handle, library().ddprun_metrics_destroy)

    def add(self, name: str, value: float, weight: float = 1.0) -> None:
        """Add a number, which is the average of `weight` samples."""
        key = text(name, "name")
        self._call("metrics_add", key, value, weight, operation="Metrics.add")

    def reduce(self, group: ProcessGroup) -> dict[str, Metric]:
        """Return the numbers of all ranks by name, and forget this rank's; collective."""
        count, result = ctypes.c_size_t(), {}
        operation = "Metrics.reduce"
        self._call("metrics_reduce", ctypes.byref(count), operation=operation, group=group)
        for i in range(count.value):
            one = _Metric(ctypes.sizeof(_Metric))
            self._call("metrics_get", i, ctypes.byref(one), operation=operation)
            found = Metric(one.average, one.sum, one.weight, one.min, one.max)
            result[one.name.decode()] = found
        return result
