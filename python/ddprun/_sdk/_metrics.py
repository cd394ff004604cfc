"""Numbers for the log, averaged over all ranks."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from .._arguments import text
from .._c_api import Metric as _Metric
from .._core import Handle, create
from .._group import ProcessGroup
from .._library import library


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
