"""The collectives and messages of a group, each blocking and asynchronous."""

from __future__ import annotations

from typing import Any

from ._core import Work
from ._operations import Arrays, Operations


class Collectives(Operations):
    """The operations of :class:`ddprun.ProcessGroup`, which documents what they have in common.

    Each `..._async` takes the same arguments and returns a :class:`ddprun.Work` at once. A thread
    of the group runs operations in their order; messages with a tag wait for nothing else.
    """

    def all_reduce(
        self,
        array: Any,
        op: str = "sum",
        timeout: float | None = None,
        *,
        factor: float | None = None,
    ) -> None:
        """Replace `array` by its reduction over all ranks, equal to the bit on all of them."""
        self._run("all_reduce", outs=array, op=op, factor=factor, timeout=timeout)

    def all_reduce_async(
        self,
        array: Any,
        op: str = "sum",
        timeout: float | None = None,
        *,
        factor: float | None = None,
    ) -> Work:
        """Begin :meth:`all_reduce`."""
        return self._begin("all_reduce", outs=array, op=op, factor=factor, timeout=timeout)

    def reduce(
        self,
        array: Any,
        out: Any = None,
        root: int = 0,
        op: str = "sum",
        timeout: float | None = None,
        *,
        factor: float | None = None,
    ) -> None:
        """Reduce `array` over all ranks into `out` of rank `root`, of the same length.

        `out` may be `array`; other ranks need none.
        """
        self._run("reduce", ins=array, outs=out, root=root, op=op, factor=factor, timeout=timeout)

    def reduce_async(
        self,
        array: Any,
        out: Any = None,
        root: int = 0,
        op: str = "sum",
        timeout: float | None = None,
        *,
        factor: float | None = None,
    ) -> Work:
        """Begin :meth:`reduce`."""
        return self._begin(
            "reduce", ins=array, outs=out, root=root, op=op, factor=factor, timeout=timeout
        )

    def reduce_scatter(
        self,
        array: Arrays,
        out: Any,
        op: str = "sum",
        timeout: float | None = None,
        *,
        factor: float | None = None,
    ) -> None:
        """Reduce `array` over all ranks; `out` receives this rank's part of the result.

        `array` has world_size * len(out) elements, or is a list of an array for each rank, which
        may be unequal.
        """
        self._run("reduce_scatter", ins=array, outs=out, op=op, factor=factor, timeout=timeout)

    def reduce_scatter_async(
        self,
        array: Arrays,
        out: Any,
        op: str = "sum",
        timeout: float | None = None,
        *,
        factor: float | None = None,
    ) -> Work:
        """Begin :meth:`reduce_scatter`."""
        return self._begin(
            "reduce_scatter", ins=array, outs=out, op=op, factor=factor, timeout=timeout
        )

    def broadcast(self, array: Any, root: int = 0, timeout: float | None = None) -> None:
        """Replace `array` by that of rank `root`."""
        self._run("broadcast", outs=array, root=root, timeout=timeout)

    def broadcast_async(self, array: Any, root: int = 0, timeout: float | None = None) -> Work:
        """Begin :meth:`broadcast`."""
        return self._begin("broadcast", outs=array, root=root, timeout=timeout)

    def all_gather(self, array: Any, out: Arrays, timeout: float | None = None) -> None:
        """Concatenate the arrays of all ranks in `out`, in the order of ranks.

        `out` has world_size * len(array) elements, or is a list of an array for each rank, which
        may be unequal: that of rank r has the length of that rank's `array`.
        """
        self._run("all_gather", ins=array, outs=out, timeout=timeout)

    def all_gather_async(self, array: Any, out: Arrays, timeout: float | None = None) -> Work:
        """Begin :meth:`all_gather`."""
        return self._begin("all_gather", ins=array, outs=out, timeout=timeout)

    def all_to_all(self, array: Arrays, out: Arrays, timeout: float | None = None) -> None:
        """Send the n-th part of `array` to rank n; `out` receives a part from each rank.

        Both are arrays of world_size equal parts, or, on all ranks, lists of an array for each
        rank, which may be unequal: `array[r]` of rank s is as long as `out[s]` of rank r.
        """
        self._run("all_to_all", ins=array, outs=out, timeout=timeout)

    def all_to_all_async(self, array: Arrays, out: Arrays, timeout: float | None = None) -> Work:
        """Begin :meth:`all_to_all`."""
        return self._begin("all_to_all", ins=array, outs=out, timeout=timeout)

    def gather(
        self, array: Any, out: Arrays = None, root: int = 0, timeout: float | None = None
    ) -> None:
        """Concatenate the arrays of all ranks in `out` of rank `root`; others need no `out`.

        `out` has world_size * len(array) elements, or is a list of an array for each rank.
        """
        self._run("gather", ins=array, outs=out, root=root, timeout=timeout)

    def gather_async(
        self, array: Any, out: Arrays = None, root: int = 0, timeout: float | None = None
    ) -> Work:
        """Begin :meth:`gather`."""
        return self._begin("gather", ins=array, outs=out, root=root, timeout=timeout)

    def scatter(self, array: Arrays, out: Any, root: int = 0, timeout: float | None = None) -> None:
        """Give each rank its part of `array` of rank `root`; others pass None as `array`.

        `array` has world_size * len(out) elements, or is a list of an array for each rank.
        """
        self._run("scatter", ins=array, outs=out, root=root, timeout=timeout)

    def scatter_async(
        self, array: Arrays, out: Any, root: int = 0, timeout: float | None = None
    ) -> Work:
        """Begin :meth:`scatter`."""
        return self._begin("scatter", ins=array, outs=out, root=root, timeout=timeout)

    def send(
        self,
        array: Any,
        destination: int,
        timeout: float | None = None,
        *,
        tag: int | None = None,
    ) -> None:
        """Send `array` to rank `destination`, which calls :meth:`recv` with an array as long.

        tag: from 0. Messages of one source, destination and tag match in their order. Those
            without a tag match in their order, too, and wait for the operations before them.
        """
        self._run("send", ins=array, root=destination, peer="destination", tag=tag, timeout=timeout)

    def send_async(
        self,
        array: Any,
        destination: int,
        timeout: float | None = None,
        *,
        tag: int | None = None,
    ) -> Work:
        """Begin :meth:`send`."""
        return self._begin(
            "send", ins=array, root=destination, peer="destination", tag=tag, timeout=timeout
        )

    def recv(
        self,
        array: Any,
        source: int,
        timeout: float | None = None,
        *,
        tag: int | None = None,
    ) -> None:
        """Fill `array` with what rank `source` sends with this `tag`."""
        self._run("recv", outs=array, root=source, peer="source", tag=tag, timeout=timeout)

    def recv_async(
        self,
        array: Any,
        source: int,
        timeout: float | None = None,
        *,
        tag: int | None = None,
    ) -> Work:
        """Begin :meth:`recv`."""
        return self._begin("recv", outs=array, root=source, peer="source", tag=tag, timeout=timeout)

    def barrier(self, timeout: float | None = None) -> None:
        """Wait until all ranks have called it."""
        self._run("barrier", timeout=timeout)

    def barrier_async(self, timeout: float | None = None) -> Work:
        """Begin :meth:`barrier`."""
        return self._begin("barrier", timeout=timeout)
