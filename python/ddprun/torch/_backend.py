"""The c10d backend "ddprun": one class for the three generations of torch's interface.

torch 2.14 and later derive backends from Backend, earlier ones from ProcessGroup; the names of some
methods changed, too. Nothing here computes: calls go to the C interface.
"""

from __future__ import annotations

import atexit
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .._c_api import RECV, SEND, TIMED_OUT
from .._core import leave, shared_memory
from ._any_source import Posts
from ._arguments import Lending, milliseconds
from ._collectives import Collectives
from ._engine import NAMES, Engine
from ._errors import DdprunError, bad_argument, error
from ._generations import IS_BACKEND
from ._join import join
from ._works import EndedWork, waiter

_c10d: Any = torch._C._distributed_c10d
_Base: Any = _c10d.Backend if IS_BACKEND else dist.ProcessGroup


class DdprunBackend(Collectives, _Base):
    """A group of ranks that exchange CPU tensors through ddprun's transports."""

    def __init__(
        self, engine: Engine, timeout: timedelta, job_ranks: Sequence[int], store: Any
    ) -> None:
        _Base.__init__(self, engine.rank, engine.size)
        self._engine = engine
        self._store = store  # Its ranks have met over it.
        self._posts = Posts(engine)
        self._group_name = self._group_desc = ""
        self._timeout = timeout
        self._job_ranks = list(job_ranks)

    # The group's name and description, before torch 2.14.

    def getGroupName(self) -> str:
        """Return the name that torch has given the group."""
        return self._group_name

    def setGroupName(self, name: str) -> None:
        """Take the group's name."""
        self._group_name = name

    def getGroupDesc(self) -> str:
        """Return what torch calls the group in its messages."""
        return self._group_desc

    def setGroupDesc(self, text: str) -> None:
        """Take the group's description."""
        self._group_desc = text

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)
    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc

    def getBackendName(self) -> str:
        """Return the name; never that of another backend, for which torch would take this one."""
        return "ddprun"

    @property
    def transport(self) -> str:
        """The transport that was chosen by where the ranks are: shm, cpu, gloo or self."""
        return self._engine.transport()

    # Messages.

    def send(self, tensors: Sequence[Any], peer: int, tag: int = 0) -> Any:
        """Send a tensor; messages of one tag arrive in their order."""
        return self._message(SEND, self._only(tensors, SEND), peer, tag)

    def recv(self, tensors: Sequence[Any], peer: int, tag: int = 0) -> Any:
        """Receive a tensor."""
        tensor = self._only(tensors, RECV)
        if self._posts.is_posted(peer, tag):
            return self._posts.receive(tensor, peer, tag)
        return self._message(RECV, tensor, peer, tag)

    def recv_anysource(self, tensors: Sequence[Any], tag: int = 0) -> Any:
        """Receive a tensor from the rank that sends first."""
        return self._posts.receive(self._only(tensors, RECV), -1, tag)

    recvAnysource = recv_anysource

    def _message(self, operation: int, tensor: Any, peer: int, tag: int) -> Any:
        name = NAMES[operation]
        if tag < 0:
            raise bad_argument(f"the tag {tag} is negative", name, self._engine.rank)
        lending = Lending(name, self._engine.rank)
        arrays = lending.arrays([tensor], written=operation == RECV)
        return self._engine.run(
            operation,
            lending,
            ins=arrays if operation == SEND else None,
            outs=arrays if operation == RECV else None,
            root=peer,
            tag=tag,
            result=[tensor],
        )

    # Coalescing: calls in between have one work.

    def start_coalescing(self, *_: Any) -> None:
        """Begin to collect works."""
        self._engine.collected = []

    def end_coalescing(self, *_: Any) -> Any:
        """Return the work of all that was called since."""
        works, self._engine.collected = self._engine.collected or [], None
        return EndedWork(works=works)

    # Time limits, errors, the end.

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the time limit of later operations."""
        self._timeout = timeout
        self._engine.timeout_ms = milliseconds(timeout)

    _set_default_timeout = setTimeout = set_timeout

    def monitored_barrier(self, opts: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks; the error of rank 0 names those that did not come."""
        given = opts if isinstance(opts, timedelta) else getattr(opts, "timeout", None)
        options = _c10d.BarrierOptions()
        options.timeout = self._timeout if given is None or given.days < 0 else given
        me = self._engine.rank
        if options.timeout <= timedelta(0):
            raise self._barrier_error(f"Rank {me} timed out in monitoredBarrier", ())
        try:
            self.barrier(options).wait()
        except DdprunError as failure:
            raise self._barrier_error(
                self._barrier_text(failure, wait_all_ranks), failure.missing
            ) from failure

    def _barrier_text(self, failure: DdprunError, wait_all_ranks: bool) -> str:
        if self._engine.rank != 0:
            return (
                f"Rank {self._engine.rank} successfully reached monitoredBarrier, but received "
                f"errors while waiting for send/recv from rank 0: {failure}"
            )
        # If another rank's deadline passed before, its error names the rank it waited for.
        missing = sorted(failure.missing) or ([failure.peer] if failure.peer >= 0 else [])
        if not missing:
            return f"Rank 0 timed out in monitoredBarrier: {failure}"
        many = wait_all_ranks and len(missing) > 1
        ranks = f"Ranks {', '.join(map(str, missing))}" if many else f"Rank {missing[0]}"
        return f"{ranks} failed to pass monitoredBarrier: {failure}"

    def _barrier_error(self, text: str, missing: tuple[int, ...]) -> DdprunError:
        return error(
            TIMED_OUT, text, missing=missing, operation="monitored_barrier", rank=self._engine.rank
        )

    def abort(self) -> None:
        """End all operations of this rank with an error, from any thread."""
        self._engine.abort()

    def shutdown(self) -> None:
        """Complete what is under way and leave the group."""
        if not self._posts.is_empty:
            self._engine.abort()  # No more messages arrive.
        self._engine.close()
        _alive.pop(id(self), None)

    # At exit.

    _is_last = False

    @property
    def _pid(self) -> int:
        return self._engine._pid

    def _complete(self, until: float) -> None:
        self._engine._complete(until)

    def _destroy(self) -> None:
        self.shutdown()

    # Queried by torch. Its own methods call themselves if the backend is a Python class.

    @property
    def options(self) -> Any:
        """What a group that is split off begins with."""
        return _c10d.Backend.Options("ddprun", self._timeout)

    supports_splitting = property(lambda _: True)
    # For batch_isend_irecv: messages gain nothing by having one work.
    supports_coalescing = property(lambda _: False)
    supports_shrinking = property(lambda _: False)
    supports_reconfigure = property(lambda _: False)
    supports_window = property(lambda _: False)
    _supports_time_estimate = property(lambda _: False)

    def _set_sequence_number_for_group(self) -> None:
        """Begin to count; all ranks count from 0."""

    def _get_sequence_number_for_group(self) -> int:
        return self._engine.count

    setSequenceNumberForGroup = _set_sequence_number_for_group
    getSequenceNumberForGroup = _get_sequence_number_for_group

    def split(self, store: Any, ranks: Sequence[int], opts: Any) -> Any:
        """Make the group of some of this group's ranks; called by these."""
        me = list(ranks).index(self._engine.rank)
        timeout = getattr(opts, "_timeout", self._timeout)
        job_ranks = [self._job_ranks[rank] for rank in ranks] if self._job_ranks else list(ranks)
        return make(store, me, len(ranks), timeout, job_ranks)


_alive: dict[int, DdprunBackend] = {}


def _close_forgotten() -> None:
    """Close what destroy_process_group() has dropped without a word, as torch 1.13's does."""
    c10d = dist.distributed_c10d
    known = getattr(c10d, "_pg_map", None)
    known = known if known is not None else c10d._world.pg_map
    for backend in list(_alive.values()):
        if backend not in known:
            backend.shutdown()


def make(
    store: Any,
    rank: int,
    size: int,
    timeout: timedelta,
    job_ranks: Sequence[int],
    kind: type[DdprunBackend] = DdprunBackend,
) -> DdprunBackend:
    """Meet the other ranks and return the backend of this one."""
    if not IS_BACKEND:
        _close_forgotten()
    engine = join(store, rank, size, milliseconds(timeout), job_ranks or None)
    backend = kind(engine, timeout, job_ranks, store)
    # torch keeps only the C++ half; the Python half would be lost.
    _alive[id(backend)] = backend
    return backend


@atexit.register
def _leave() -> None:
    leave(list(_alive.values()))
    waiter.stop()


def backend_of(group: Any = None) -> DdprunBackend:
    """Return this backend's half of a process group; None is the default group."""
    group = group if group is not None else dist.distributed_c10d._get_default_group()
    if isinstance(group, DdprunBackend):
        return group
    backend = group._get_backend(torch.device("cpu")) if hasattr(group, "_get_backend") else None
    if not isinstance(backend, DdprunBackend):
        raise bad_argument(
            'the process group is not of the backend "ddprun"', "backend_of", dist.get_rank()
        )
    return backend


def shared_zeros(shape: Sequence[int], dtype: Any = None, group: Any = None) -> Any:
    """Return a tensor of zeros in memory that the ranks of this host share.

    ``dist.all_reduce`` of it needs no copies. All ranks of the group call this with the same sizes
    in the same order. The memory lives as long as tensors on it.
    """
    dtype = dtype if dtype is not None else torch.get_default_dtype()
    if any(length < 0 for length in shape):
        raise bad_argument(f"a length in {tuple(shape)} is negative", "shared_zeros", -1)
    count = math.prod(shape)
    if count == 0:
        return torch.zeros(tuple(shape), dtype=dtype)
    size = count * torch.empty((), dtype=dtype).element_size()
    engine = backend_of(group)._engine
    address, handle = engine.allocate(size)
    memory = shared_memory(address, size, handle)
    return torch.frombuffer(memory, dtype=dtype).view(tuple(shape))
