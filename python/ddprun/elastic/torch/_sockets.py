"""The connections that another library makes, so that they can be ended: Gloo itself has no way."""

from __future__ import annotations

import contextlib
import os
import socket
import stat


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
