"""Messages from any source: an operation that the C interface lacks.

A receive from each source is posted, into memory of its own; the first message that comes is the
result. The others stay posted, and serve the next receive from any or just that source with this
tag. So all messages of a tag that is received from any source should have one size and type.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch

from . import _forward
from ._engine import RECV, Engine
from ._errors import TIMED_OUT, DdprunError, bad_argument, error
from ._tensors import Lending
from ._works import WorkBase, milliseconds


class AnySourceWork(WorkBase):
    """A receive whose source is known at its end."""

    def __init__(self, posts: Posts, tensor: Any) -> None:
        super().__init__()
        self._posts = posts
        self._tensor = tensor
        self._ended = threading.Event()
        self._source = -1
        self._error: DdprunError | None = None
        self._trigger: Any = torch.futures.Future()
        self._future = self._trigger.then(self._outcome)

    def end(self, source: int, values: Any, failure: DdprunError | None) -> None:
        """Take the message of `source`."""
        if failure is None:
            with torch.no_grad():
                self._tensor.detach().copy_(values.view_as(self._tensor))
        self._source, self._error = source, failure
        self._ended.set()
        self._trigger.set_result(None)

    def _outcome(self, _: Any = None) -> list[Any]:
        if self._error is not None:
            raise self._error
        return [self._tensor]

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the message."""
        limit = milliseconds(timeout)
        if not self._ended.wait(limit / 1000 if limit else None):
            raise error(
                TIMED_OUT,
                f"recv: no message came within the timeout of {limit} ms given to wait()",
                operation="recv",
                rank=self._posts.engine.rank,
            )
        self._outcome()
        return True

    def get_future(self) -> Any:
        """Return a future of the list of the tensor."""
        return self._future

    def is_completed(self) -> bool:
        """Return whether wait() would not block."""
        return self._ended.is_set()

    def exception(self) -> DdprunError | None:
        """Return what wait() would raise."""
        return self._error

    def source_rank(self) -> int:
        """Return the rank from which the message came."""
        return self._source

    _source_rank = source_rank


class Posts:
    """The receives of a group that are posted for any source."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._lock = threading.Lock()
        # By source and tag: memory of a posted receive, and whether its message has come.
        self._posted: dict[tuple[int, int], Any] = {}
        self._come: dict[tuple[int, int], DdprunError | None] = {}
        self._waiting: list[tuple[int, int, AnySourceWork]] = []  # source or -1, tag, work

    def is_posted(self, source: int, tag: int) -> bool:
        """Return whether the next message of `source` goes to a receive of this class."""
        return (source, tag) in self._posted

    @property
    def is_empty(self) -> bool:
        """Whether nothing is posted."""
        return not self._posted

    def receive(self, tensor: Any, source: int, tag: int) -> AnySourceWork:
        """Receive from `source`, or from any if it is -1."""
        work = AnySourceWork(self, tensor)
        shape = (tensor.numel(), tensor.dtype)
        sources = [source] if source >= 0 else range(self.engine.size)
        with self._lock:
            self._waiting.append((source, tag, work))
            new = [
                each
                for each in sources
                if each != self.engine.rank and (each, tag) not in self._posted
            ]
            for key, memory in self._posted.items():
                if key[1] == tag and (memory.numel(), memory.dtype) != shape:
                    self._waiting.pop()
                    raise bad_argument(
                        f"{memory.numel()} x {memory.dtype} are expected from rank {key[0]} with "
                        f"tag {tag} since a receive from any source, not {shape[0]} x {shape[1]}",
                        "recv",
                        self.engine.rank,
                    )
            for each in new:
                self._posted[each, tag] = torch.empty(shape[0], dtype=shape[1])
        for each in new:
            self._post(each, tag)
        self._match()
        _forward.note(work)  # After those of the posts.
        return work

    def _post(self, source: int, tag: int) -> None:
        lending = Lending("recv", self.engine.rank)
        work = self.engine.run(
            RECV,
            lending,
            outs=lending.arrays([self._posted[source, tag]], written=True),
            root=source,
            tag=tag,
        )

        def has_come(_: Any) -> None:
            with self._lock:
                self._come[source, tag] = work.exception()
            self._match()

        work.get_future().add_done_callback(has_come)

    def _match(self) -> None:
        """Give messages that have come to receives that wait, both in their order."""
        matches = []
        with self._lock:
            for wanted in list(self._waiting):
                source, tag, work = wanted
                key = next(
                    (key for key in self._come if key[1] == tag and source in (-1, key[0])), None
                )
                if key is not None:
                    self._waiting.remove(wanted)
                    matches.append((work, key[0], self._posted.pop(key), self._come.pop(key)))
        for work, source, memory, failure in matches:
            work.end(source, memory, failure)
