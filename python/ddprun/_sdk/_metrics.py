"""Numbers for the log, averaged over all ranks."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from .._arguments import text
from .._c_api import Metric as _Metric
from .._group import ProcessGroup
from .._handle import _Handle
from .._library import library
from .._status import _check


class Metric(NamedTuple):
    """One number, of all ranks."""

    average: float  # Weighted.
    sum: float  # Of value * weight.
    weight: float  # Sum of the weights.
    min: float  # Of the values.
    max: float


class Metrics(_Handle):
    """Collects numbers on each rank, and reduces all of them by one call.

    For example::

        metrics = ddprun.Metrics()
        metrics.add("loss", loss, weight=len(batch))
        everywhere = metrics.reduce(group)
        print(everywhere["loss"].average)
    """

    def __init__(self) -> None:
        handle = ctypes.c_void_p()
        _check(library().ddprun_metrics_create(ctypes.byref(handle)), "Metrics", -1)
        assert handle.value is not None
        super().__init__(handle.value, library().ddprun_metrics_destroy)

    def add(self, name: str, value: float, weight: float = 1.0) -> None:
        """Add a number, which is the average of `weight` samples."""
        with self._use("metrics") as metrics:
            status = library().ddprun_metrics_add(metrics, text(name, "name"), value, weight)
            _check(status, "Metrics.add", -1)

    def reduce(self, group: ProcessGroup) -> dict[str, Metric]:
        """Return the numbers of all ranks by name, and forget this rank's; collective."""
        count, result = ctypes.c_size_t(), {}
        with self._use("metrics") as metrics, group._use("group") as handle:
            status = library().ddprun_metrics_reduce(metrics, handle, ctypes.byref(count))
            group._settle(status, "Metrics.reduce")
            for i in range(count.value):
                one = _Metric(ctypes.sizeof(_Metric))
                status = library().ddprun_metrics_get(metrics, i, ctypes.byref(one))
                _check(status, "Metrics.reduce", group.rank)
                found = Metric(one.average, one.sum, one.weight, one.min, one.max)
                result[one.name.decode()] = found
        return result
