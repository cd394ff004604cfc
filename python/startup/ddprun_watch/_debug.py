"""torch's own debug handlers, at a socket in the run's temporary folder.

torch 2.4 and later have them in each process: stacks, flight recorder, profiler, wait counters.
`torch.distributed.debug` serves them at ports of all addresses, without a password; its server can
also listen at the path of a socket. It is started when somebody first asks for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
from typing import Any


class Handlers:
    """The handlers of this process, served at `path` from the first question on."""

    def __init__(self, torch: Any, path: str) -> None:
        self._torch = torch
        self._path = path
        self._pid = os.getpid()
        self._server: Any = None

    def describe(self) -> dict[str, Any]:
        """Return {"socket": their path, "handlers": their names}, or {"error": why not}."""
        c10d: Any = getattr(self._torch._C, "_distributed_c10d", None)
        if not hasattr(c10d, "_WorkerServer"):
            version = self._torch.__version__
            return {"error": f"torch {version} has no debug handlers; 2.4 and later have"}
        if self._server is None:
            with contextlib.suppress(ImportError):  # If torch has it, it adds the profiler.
                importlib.import_module("torch.distributed.debug._handlers")
            self._server = _server_at(c10d, self._path)
            os.register_at_fork(after_in_child=self._leave)
        names: list[str] = getattr(c10d, "_get_handler_names", list)()
        return {"socket": self._path, "handlers": sorted(names)}

    def _leave(self) -> None:
        """Keep the server for ever in a forked child: freeing it there would end the parent's."""
        if self._server is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._server))
            self._server = None

    def close(self) -> None:
        """End torch's server, before torch itself is taken down."""
        if self._server is not None and os.getpid() == self._pid:
            self._server.shutdown()
            self._server = None


def _server_at(c10d: Any, path: str) -> Any:
    """Return a server at `path`, which may be longer than an address."""
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    try:
        with contextlib.suppress(FileNotFoundError):  # An earlier worker's.
            os.unlink(path)
        return c10d._WorkerServer(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    finally:
        os.close(folder)
