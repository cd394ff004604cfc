"""torch.distributed over the ranks of each round, on one of torch's own backends."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Callable

import torch.distributed as dist

from ..._arguments import lend
from ..._errors import BadArgument
from ..._library import library
from .. import Step


# The connections that another library makes, so that they can be ended: Gloo itself has no way.
def sockets() -> dict[int, int]:
    """Return the sockets of this process: {inode: descriptor}."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            facts = os.fstat(int(name))
            if stat.S_ISSOCK(facts.st_mode):
                found[facts.st_ino] = int(name)
    return found


def end_connections(those: dict[int, int]) -> None:
    """Shut down the TCP connections among `those`: calls that wait there fail, here and at peers.

    Descriptors stay open. One that belongs to another socket by now is left alone.
    """
    for inode, descriptor in those.items():
        with contextlib.suppress(OSError):
            copy = os.dup(descriptor)
            if os.fstat(copy).st_ino != inode:
                os.close(copy)
                continue
            with socket.socket(fileno=copy) as connection:
                listens = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6)
                if is_tcp and not listens:  # Gloo ends the process if its listener fails.
                    connection.shutdown(socket.SHUT_RDWR)


_FOREVER_MS = 365 * 24 * 3600 * 1000


class Sentinel:
    """Calls ``then()`` in a thread of its own when the round of `group` is over.

    The thread waits for a message that no rank sends, in a part of the group that is for this only.
    Like every operation of the round, its receive ends once the agent reports that a rank is lost.
    """

    def __init__(self, group: Any, then: Callable[[], None]) -> None:
        part = ctypes.c_void_p()
        group._call("group_split", 0, group.rank, ctypes.byref(part))
        assert part.value is not None
        self._part = part.value
        self._next = (group.rank + 1) % group.world_size
        self._then = then
        self._is_closed = False
        self._thread = threading.Thread(target=self._wait, name="ddprun sentinel", daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        lent = lend(bytearray(1), writable=True)
        library().ddprun_recv(self._part, lent[0], self._next, _FOREVER_MS)
        if not self._is_closed:
            self._then()

    def close(self) -> None:
        """End it, and that of every other rank: to be called as the round is left."""
        if self._is_closed:
            return
        self._is_closed = True
        library().ddprun_group_abort(self._part)
        self._thread.join()
        library().ddprun_group_destroy(self._part)


_ADDRESS_BYTES = 512  # A port, and two names of hosts of 255 bytes at most.
_POLL_S = 0.002
_NOTED = "is there: "


class _KeyMissing(RuntimeError):
    """A key of a store is waited for in vain, such as one of a rank that is lost."""


class _Store(dist.Store):  # type: ignore[misc]
    """The store of a round, in which no call waits for a key once the round is over."""

    def __init__(self, inner: Any, prefix: str, timeout: timedelta) -> None:
        super().__init__()
        self._inner = dist.PrefixStore(prefix, inner)
        self._timeout = timeout
        self._can_check = hasattr(dist.Store, "check")
        self.is_over = False

    def set(self, key: str, value: Any) -> None:
        self._inner.set(key, value)
        self._note(key)

    def get(self, key: str) -> Any:
        self.wait([key], self._timeout)
        return self._inner.get(key)

    def add(self, key: str, amount: int) -> int:
        sum_of_all = int(self._inner.add(key, amount))
        self._note(key)
        return sum_of_all

    def check(self, keys: list[str]) -> bool:
        return all(self._has(key) for key in keys)

    def _has(self, key: str) -> bool:
        if self._can_check:
            return bool(self._inner.check([key]))
        return int(self._inner.add(_NOTED + key, 0)) > 0

    def _note(self, key: str) -> None:
        """Of torch 1, in which only waiting shows whether there is a key."""
        if not self._can_check:
            self._inner.add(_NOTED + key, 1)

    def compare_set(self, key: str, expected: Any, desired: Any) -> Any:
        found = self._inner.compare_set(key, expected, desired)
        self._note(key)
        return found

    def delete_key(self, key: str) -> bool:
        return bool(self._inner.delete_key(key))

    def num_keys(self) -> int:
        return int(self._inner.num_keys())

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        until = time.monotonic() + (timeout or self._timeout).total_seconds()
        while not self.check(keys):
            if self.is_over:
                raise _KeyMissing("a rank of this round is lost")
            if time.monotonic() > until:
                raise _KeyMissing(f"{keys} did not come in time")
            time.sleep(_POLL_S)


def _is_of_transport(error: BaseException | None) -> bool:
    """Whether an exception may be because another rank has gone: torch has no class for that."""
    while error is not None:
        if isinstance(
            error, (ConnectionError, _KeyMissing, getattr(dist, "DistError", _KeyMissing))
        ):
            return True
        words = str(error) if isinstance(error, RuntimeError) else ""
        if any(word in words for word in ("gloo", "Gloo", "NCCL", "onnection", "ocket", "pipe")):
            return True
        error = error.__cause__ or error.__context__
    return False


class Distributed:
    """torch.distributed in the steps of a job, over the ranks of each round, on torch's backends.

    ::

        job = ddprun.elastic.Job().keep(net=net, sgd=sgd)
        world = Distributed("gloo")
        def train(step):
            with world.over(step):
                ...                                  # dist.all_reduce(...), any backward pass
            step.commit(sgd.step)
        job.run(steps, train)

    In the first step of each round the default group is recreated, with the ranks of the round.
    When a rank is lost, operations of the group in progress end with an error, the block raises
    :class:`ddprun.elastic.MembershipChanged`, and the step runs again in the next round. Everything
    that belongs to a group belongs to its round: recreate sub-groups, and DistributedDataParallel
    around the same module, when ``step.round`` has changed. Sums of floating-point numbers depend
    on the number of ranks; those of :class:`Gradients` do not.

    backend: "gloo", "nccl", or any that torch makes by its name.
    timeout: of the operations of the group, in seconds.
    address: the address at which other hosts reach this one; by default its host name.
    """

    def __init__(
        self, backend: str = "gloo", *, timeout: float = 600.0, address: str | None = None
    ) -> None:
        if dist.is_initialized():
            raise BadArgument(
                "torch.distributed has a default group, which knows nothing of rounds"
            )
        self._pid = os.getpid()
        self._backend = backend
        self._timeout = timedelta(seconds=timeout)
        self._address = address or socket.gethostname()
        self._round: int | None = None  # Of the present group.
        self._server: Any = None  # Rank 0's.
        self._store: _Store | None = None
        self._sentinel: Sentinel | None = None
        self._connections: dict[int, int] = {}  # The group's.
        atexit.register(self.close)

    @contextlib.contextmanager
    def over(self, step: Step) -> Iterator[None]:
        """Make the step's ranks the default group in the block; collective in a new round."""
        try:
            if self._round != step.round:
                self.close()
                self._open(step)
            yield
        except Exception as error:
            self.close()  # Others may wait for this rank.
            if _is_of_transport(error):
                step.group.barrier()  # Raises MembershipChanged if a rank is gone.
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave the group. Further calls have no effect."""
        if os.getpid() != self._pid:
            return  # A child of fork() has its parent's connections, but no threads.
        self._round = None
        if self._sentinel is not None:
            self._sentinel.close()
            self._sentinel = None
        # Objects of the group that the program still has would keep its connections, and others
        # would wait.
        end_connections(self._connections)
        self._connections = {}
        if dist.is_initialized():
            dist.destroy_process_group()
        self._store = self._server = None

    def _open(self, step: Step) -> None:
        server = self._meet(step)
        store = self._store = _Store(server, str(step.round), self._timeout)
        if step.world_size > 1:
            self._sentinel = Sentinel(step.group, lambda: self._end(store))
        before = sockets()
        try:
            dist.init_process_group(
                self._backend,
                store=store,
                rank=step.rank,
                world_size=step.world_size,
                timeout=self._timeout,
            )
        finally:
            self._connections = {
                inode: descriptor for inode, descriptor in sockets().items() if inode not in before
            }
        self._round = step.round

    def _meet(self, step: Step) -> Any:
        """Return a store that rank 0 serves."""
        name = bytearray(_ADDRESS_BYTES)
        if step.rank == 0:
            self._server = dist.TCPStore(
                "127.0.0.1", 0, None, True, self._timeout, wait_for_workers=False
            )
            text = f"{self._server.port} {socket.gethostname()} {self._address}".encode()
            name[: len(text)] = text
        step.group.broadcast(name)
        port, host, address = name.rstrip(b"\0").decode().split(" ", 2)
        if step.rank == 0 or host == socket.gethostname():
            address = "127.0.0.1"
        return dist.TCPStore(address, int(port), None, False, self._timeout, wait_for_workers=False)

    def _end(self, store: _Store) -> None:
        """In the sentinel's thread: have the program leave what it is in."""
        store.is_over = True
        end_connections(self._connections)
        world = dist.distributed_c10d._get_default_group() if dist.is_initialized() else None
        abort = getattr(world, "abort", None)
        if abort is not None:
            with contextlib.suppress(RuntimeError):
                abort()
