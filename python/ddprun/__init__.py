"""ddprun: run data-parallel training, and exchange arrays between its ranks.

In a worker that ``ddprun`` or ``torchrun`` started::

    import ddprun

    with ddprun.init() as group:
        total = array.array("d", [loss])
        group.all_reduce(total, op="avg")  # in place, on all ranks
        if group.rank == 0:
            print(total[0])

From a script or a notebook, without a command line::

    results = ddprun.launch(train, (config,), nproc=4)  # raises RunError with the verdict

:mod:`ddprun.elastic` is for training whose ranks come and go.

Importing this package loads neither its library nor torch. Failures are exceptions derived from
:class:`ddprun.Error` that carry the rank, host, operation and peer.
"""

from __future__ import annotations

from importlib import metadata as _metadata

from . import checkpoint, elastic
from ._core import Work, install_crash_report
from ._errors import (
    Aborted,
    BadArgument,
    BadEnvironment,
    Corrupt,
    Error,
    LibraryError,
    Mismatch,
    PeerLost,
    RunError,
    SystemFailure,
    TimedOut,
    Unreachable,
    Unsupported,
    WrongResult,
)
from ._group import ProcessGroup, init
from ._launch import launch
from ._library import prefix, program
from ._sdk._checkpoint import (
    ArrayInfo,
    Checkpoint,
    CheckpointWriter,
    Part,
    latest_checkpoint,
    load_latest,
)
from ._sdk._sampler import DistributedSampler
from ._sdk._store import Store
from ._sdk._training import Metric, Metrics, StepTimer, clip_grad_norm

try:
    __version__ = _metadata.version("ddprun")
except _metadata.PackageNotFoundError:  # A source tree.
    __version__ = "0+source"

__all__ = [
    "Aborted",
    "ArrayInfo",
    "BadArgument",
    "BadEnvironment",
    "Checkpoint",
    "CheckpointWriter",
    "Corrupt",
    "DistributedSampler",
    "Error",
    "LibraryError",
    "Metric",
    "Metrics",
    "Mismatch",
    "Part",
    "PeerLost",
    "ProcessGroup",
    "RunError",
    "StepTimer",
    "Store",
    "SystemFailure",
    "TimedOut",
    "Unreachable",
    "Unsupported",
    "Work",
    "WrongResult",
    "__version__",
    "checkpoint",
    "clip_grad_norm",
    "elastic",
    "init",
    "install_crash_report",
    "latest_checkpoint",
    "launch",
    "load_latest",
    "prefix",
    "program",
]
