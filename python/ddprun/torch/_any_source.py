"""Messages from any source: an operation that the C interface lacks.

A receive from each source is posted, into memory of its own; the first message that comes is the
result. The others stay posted, and serve the next receive from any or just that source with this
tag. So all messages of a tag that is received from any source should have one size and type. What
is posted has no time limit, for it waits on behalf of later receives; each of these has one.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import torch

from .._c_api import RECV, TIMED_OUT
from .._core import own_locks
from . import _generations
from ._arguments import Lending, check, milliseconds
from ._engine import Engine
from ._errors import bad_argument, error
from ._works import WorkBase

_FOREVER_MS = 10**12  # Some decades.


class AnySourceWork(WorkBase):
    """A receive whose source is known at its end."""

    def __init__(self, posts: Posts, tensor: Any) -> None:
        super().__init__()
        self._posts = posts
        self._tensor = tensor
        self._ended = threading.Event()
        self._source = -1
        self._error: Exception | None = None
        self._trigger: Any = torch.futures.Future()
        self._future = self._trigger.then(self._outcome)
        self._limit_ms = min(posts.engine.timeout_ms or _FOREVER_MS, _FOREVER_MS)
        self._deadline = time.monotonic() + self._limit_ms / 1000
        self._timer: threading.Timer | None = None

    def end(self, source: int, values: Any, failure: Exception | None) -> None:
        """Take the message of `source`."""
        self._source, self._error = source, failure
        if failure is None:
            try:
                with torch.no_grad():
                    self._tensor.detach().copy_(values.view_as(self._tensor))
            except Exception as wrong:  # While using the tensor: wait() raises it.
                self._error = wrong
        if self._timer is not None:
            self._timer.cancel()
        self._ended.set()
        self._trigger.set_result(None)

    def _give_up(self) -> None:
        text = f"recv: no message came within the timeout of {self._limit_ms} ms"
        late = error(TIMED_OUT, text, operation="recv", rank=self._posts.engine.rank)
        if self._posts.forget(self):
            self.end(-1, None, late)

    def _outcome(self, _: Any = None) -> list[Any]:
        if self._error is not None:
            raise self._error
        return [self._tensor]

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the message."""
        limit = milliseconds(timeout)
        if limit and not self._ended.wait(limit / 1000):
            raise error(
                TIMED_OUT,
                f"recv: no message came within the timeout of {limit} ms given to wait()",
                operation="recv",
                rank=self._posts.engine.rank,
            )
        if not self._ended.wait(max(0.0, self._deadline - time.monotonic())):
            self._give_up()
            self._ended.wait()  # Its message may just have arrived.
        self._outcome()
        return True

    def get_future(self) -> Any:
        """Return a future of the list of the tensor."""
        if self._timer is None and not self._ended.is_set():
            left = max(0.0, self._deadline - time.monotonic())
            self._timer = threading.Timer(left, self._give_up)
            self._timer.daemon = True
            self._timer.start()
        return self._future

    def is_completed(self) -> bool:
        """Return whether wait() would not block."""
        return self._ended.is_set()

    def exception(self) -> Exception | None:
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
        own_locks(self)
        # By source and tag: memory of a posted receive, and whether its message has arrived.
        self._posted: dict[tuple[int, int], Any] = {}
        self._come: dict[tuple[int, int], Exception | None] = {}
        self._waiting: list[tuple[int, int, AnySourceWork]] = []  # source or -1, tag, work

    def make_locks(self) -> None:
        """Make the lock; see _core.own_locks()."""
        self._lock = threading.Lock()

    def is_posted(self, source: int, tag: int) -> bool:
        """Return whether the next message of `source` goes to a receive of this class."""
        return (source, tag) in self._posted

    @property
    def is_empty(self) -> bool:
        """Whether nothing is posted."""
        return not self._posted

    def receive(self, tensor: Any, source: int, tag: int) -> AnySourceWork:
        """Receive from `source`, or from any if it is -1."""
        rank = self.engine.rank
        check(tensor, "recv", rank, written=True)
        if tag < 0:
            raise bad_argument(f"the tag {tag} is negative", "recv", rank)
        if self.engine.size == 1:
            raise bad_argument("there is no other rank in the group", "recv", rank)
        self.engine.watch()  # May fail: then nothing is posted.
        work = AnySourceWork(self, tensor)
        shape = (tensor.numel(), tensor.dtype)
        sources = [source] if source >= 0 else range(self.engine.size)
        with self._lock:
            self._waiting.append((source, tag, work))
            new = [each for each in sources if each != rank and (each, tag) not in self._posted]
            for key, memory in self._posted.items():
                if key[1] == tag and (memory.numel(), memory.dtype) != shape:
                    self._waiting.pop()
                    raise bad_argument(
                        f"{memory.numel()} x {memory.dtype} are expected from rank {key[0]} with "
                        f"tag {tag} since a receive from any source, not {shape[0]} x {shape[1]}",
                        "recv",
                        rank,
                    )
            for each in new:
                self._posted[each, tag] = torch.empty(shape[0], dtype=shape[1])
        left = list(new)
        try:
            while left:
                self._post(left[0], tag)
                left.pop(0)
        except BaseException:
            self._take_back(work, left, tag)
            raise
        self._match()
        _generations.note(work)  # After the works of the posts.
        return work

    def _take_back(self, work: AnySourceWork, sources: list[int], tag: int) -> None:
        """Forget a receive that was refused, and what it has not posted; the rest stays posted."""
        with self._lock:
            self._waiting = [wanted for wanted in self._waiting if wanted[2] is not work]
            for source in sources:
                self._posted.pop((source, tag), None)

    def _post(self, source: int, tag: int) -> None:
        lending = Lending("recv", self.engine.rank)
        work = self.engine.run(
            RECV,
            lending,
            outs=lending.arrays([self._posted[source, tag]], written=True),
            root=source,
            tag=tag,
            timeout_ms=_FOREVER_MS,
        )

        def has_come(_: Any) -> None:
            with self._lock:
                self._come[source, tag] = work.exception()
            self._match()

        work.get_future().add_done_callback(has_come)

    def forget(self, work: AnySourceWork) -> bool:
        """Keep no message for a receive any more; return whether it had none yet."""
        with self._lock:
            for wanted in self._waiting:
                if wanted[2] is work:
                    self._waiting.remove(wanted)
                    return True
        return False

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
