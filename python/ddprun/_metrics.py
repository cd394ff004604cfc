"""Numbers for the log, over all ranks."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from ._group import ProcessGroup
from ._handles import _check, _Handle
from ._library import library
from ._sdk_structs import Metric as _Metric
from ._store import _text


class Metric(NamedTuple):
    """One number, of all ranks."""

    average: float
    """Weighted by the weights of :meth:`Metrics.add`."""
    sum: float
    """Of value * weight."""
    weight: float
    """The sum of the weights."""
    min: float
    """Of the values."""
    max: float
    """Of the values."""


class Metrics(_Handle):
    """Collects numbers on each rank, and combines those of all ranks: loss, accuracy, samples.

    ::

        metrics = ddprun.Metrics()
        for batch in data:
            metrics.add("loss", loss, weight=len(batch))
        if (every := metrics.reduce(group)) and group.rank == 0:
            print(every["loss"].average)

    One thread at a time.
    """

    def __init__(self) -> None:
        handle = ctypes.c_void_p()
        _check(library().ddprun_metrics_create(ctypes.byref(handle)), "Metrics", -1)
        assert handle.value is not None
        super().__init__(handle.value, library().ddprun_metrics_destroy)

    def add(self, name: str, value: float, weight: float = 1) -> None:
        """Add a value that is the average of `weight` samples; costs no communication.

        name: without a zero; ranks may have different names.
        weight: at least 0.
        """
        text = _text(name, "a name")
        status = library().ddprun_metrics_add(
            self._live("metrics"), text, float(value), float(weight)
        )
        _check(status, "Metrics.add", -1)

    def reduce(self, group: ProcessGroup) -> dict[str, Metric]:
        """Return the metrics of all ranks by name, equal on all of them, and forget this rank's.

        All ranks of the group call it. A name that only some ranks have is averaged over those.
        After an error the numbers are kept.
        """
        found, count = ctypes.POINTER(_Metric)(), ctypes.c_size_t()
        handle = self._live("metrics")
        status = library().ddprun_metrics_reduce(
            handle, group._live("group"), ctypes.byref(found), ctypes.byref(count)
        )
        _check(status, "Metrics.reduce", group.rank)
        return {
            each.name.decode(errors="replace"): Metric(
                each.average, each.sum, each.weight, each.min, each.max
            )
            for each in found[: count.value]
        }
