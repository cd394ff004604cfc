"""``torchrun --rdzv-backend ddprun``: torchrun's agents meet at ``ddprun-rendezvous --c10d-port``.

PyTorch finds this by the entry point ``torchrun.handlers``. In contrast to the backend c10d no
agent hosts the store, so the loss of any agent leaves the others with their rendezvous.
"""

from __future__ import annotations

import socket
import time
from typing import Any, Callable


def handler() -> Callable[[Any], Any]:
    """Return the function that makes a rendezvous handler of torchrun's parameters."""
    return _create


class _Backend:
    """PyTorch's backend c10d under the name that the agent has asked for."""

    name = "ddprun"

    def __init__(self, c10d: Any) -> None:
        self.get_state = c10d.get_state
        self.set_state = c10d.set_state


def _create(params: Any) -> Any:
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    host, _, port = params.endpoint.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(
            f"--rdzv-endpoint '{params.endpoint}': the backend ddprun needs HOST:PORT, the port"
            " being that of ddprun-rendezvous --c10d-port PORT"
        )
    _wait_for(host.strip("[]"), int(port), params.get_as_int("read_timeout", 60))
    params.config["is_host"] = "false"
    backend, store = create_backend(params)
    return create_handler(store, _Backend(backend), params)


def _wait_for(host: str, port: int, seconds: float) -> None:
    """Until the daemon accepts connections: PyTorch's own store would wait for minutes."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), seconds).close()
            return
        except OSError as error:
            if time.monotonic() < deadline:
                time.sleep(0.2)
                continue
            from torch.distributed.elastic.rendezvous import RendezvousConnectionError

            raise RendezvousConnectionError(
                f"no rendezvous daemon answers at {host}:{port} ({error}); start it there:"
                f" ddprun-rendezvous --c10d-port {port} --c10d-address 0.0.0.0"
            ) from error
