"""Where others ask this rank: a socket in the run's temporary folder, which only its user may open.

A connection on which nothing is said is the agent's question what the rank is in; a line of text is
``ddprunctl debug``'s for torch's debug handlers. The answer is one JSON text. A thread waits for
both outside of Python's lock, and is gone before torch is taken down.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import sys
import threading
import time
from typing import Any, Callable

from . import _debug, _recorder

_JOIN_S = 2.0
_PAUSE_S = 0.05
_LINE_MAX = 64


class Door:
    """Answers at `path` by what `answer` returns, and a line by `debug`, until it is closed."""

    def __init__(
        self,
        path: str,
        answer: Callable[[], dict[str, Any]],
        debug: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self._path = path
        self._answer = answer
        self._debug = debug
        self._pid = os.getpid()
        self._socket = _bound(path)
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="ddprun door", daemon=True)
        self._thread.start()
        os.register_at_fork(after_in_child=self._socket.close)

    def _serve(self) -> None:
        while not self._is_closed:
            try:
                visitor, _ = self._socket.accept()
            except OSError:
                if self._is_closed:
                    return
                time.sleep(_PAUSE_S)  # No descriptor is left; the visitor waits.
                continue
            with visitor:
                if not self._is_closed:
                    self._reply(visitor)

    def _reply(self, visitor: socket.socket) -> None:
        try:
            visitor.settimeout(_JOIN_S)
            visitor.sendall(self._text(self._debug if visitor.recv(_LINE_MAX) else self._answer))
        except OSError:
            pass  # The agent has gone.

    def _text(self, answer: Callable[[], dict[str, Any]]) -> bytes:
        try:
            return json.dumps(answer()).encode()
        except Exception as error:  # The program goes on.
            unknown = {"where": f"unknown: {error!r}"[:100], "groups": [], "error": repr(error)}
            return json.dumps(unknown).encode()

    def close(self) -> None:
        """End the thread. Of a program that ends by an exception, leave the answer behind."""
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(_JOIN_S)
        if getattr(sys, "last_value", None) is None:
            return
        try:
            with open(self._path + ".last.new", "wb") as file:
                file.write(self._text(self._answer))
            os.replace(self._path + ".last.new", self._path + ".last")
        except OSError:
            pass


def _bound(path: str) -> socket.socket:
    """Return a socket that listens at `path`, which may be longer than an address."""
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
        listener.listen(4)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(folder)
    return listener


def open_door(path: str, dump: str) -> None:
    """Answer at `path` from now on. Called when torch was imported."""
    torch = sys.modules["torch"]
    try:
        if torch.distributed.is_available():
            _recorder.switch_on(torch._C._distributed_c10d, dump)
        handlers = _debug.Handlers(torch, path + ".torch")
        atexit.register(handlers.close)
        atexit.register(Door(path, lambda: _recorder.record(torch, dump), handlers.describe).close)
    except Exception as error:  # The program goes on.
        print(f"ddprun: warning: the agent cannot ask this rank: {error!r}", file=sys.stderr)
