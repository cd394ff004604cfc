"""The messages between the fork server and its agent: agent/workers/fork_messages.h.

Fields of bytes, each ended by a NUL, one message a packet. The agent is trusted: it is our parent.
"""

from __future__ import annotations

import array
import os
import socket

_REQUEST_MAX = 256 << 10
_REPLY_MAX = 2000
_DESCRIPTORS_MAX = 4


class Request:
    """One worker that the agent wants, and the descriptors that came with it."""

    def __init__(self, fields: list[bytes], descriptors: list[int]) -> None:
        numbers = [int(field) for field in fields[1:4]]
        self.number, self.agent, count = numbers
        self.argv = fields[4 : 4 + count]
        pairs = [entry.partition(b"=") for entry in fields[4 + count :]]
        self.environment = [(name, value) for name, _, value in pairs]
        self.go, *self.ends = descriptors

    def __enter__(self) -> Request:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptors: the worker has copies of them by now, under their own numbers."""
        for descriptor in [self.go, *self.ends]:
            if descriptor >= 0:
                os.close(descriptor)
        self.go, self.ends = -1, []


class Channel:
    """The server's end of the channel."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)

    def _packet(self) -> tuple[list[bytes], list[int]]:
        """Wait for a packet: its fields and descriptors. No fields: the agent has gone."""
        size = socket.CMSG_SPACE(_DESCRIPTORS_MAX * 4)
        text, ancillary, flags, _ = self._socket.recvmsg(_REQUEST_MAX, size)
        descriptors = array.array("i")
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ValueError("a request that is too long")
        return text.split(b"\0")[:-1], list(descriptors)

    def receive(self) -> Request | int | None:
        """Wait for a request: of a worker, or to save this server into a file.

        None: the agent has gone.
        """
        fields, descriptors = self._packet()
        if not fields:
            return None
        return Request(fields, descriptors) if fields[0] == b"fork" else descriptors[0]

    def receive_image(self) -> int:
        """Take the file with the server of an earlier run, which comes before all else."""
        return self._packet()[1][0]

    def _send(self, *fields: str) -> None:
        self._socket.send(b"".join(f.encode(errors="replace") + b"\0" for f in fields))

    def ready(self, text: str) -> None:
        self._send("ready", text[:_REPLY_MAX])

    def resumed(self, text: str) -> None:
        self._send("resumed", text[:_REPLY_MAX])

    def unfit(self, why: str) -> None:
        self._send("unfit", why[:_REPLY_MAX])

    def absent(self, text: str) -> None:
        self._send("absent", text[:_REPLY_MAX])

    def saved(self, text: str) -> None:
        self._send("saved", text[:_REPLY_MAX])

    def refuse(self, why: str) -> None:
        self._send("refused", why[:_REPLY_MAX])

    def failed(self, error: BaseException) -> None:
        self._send("failed", f"the fork server has failed: {error!r}"[:_REPLY_MAX])

    def forked(self, number: int, pid: int) -> None:
        self._send("forked", str(number), str(pid))

    def cold(self, number: int, why: str) -> None:
        self._send("cold", str(number), why[:_REPLY_MAX])

    def leave(self) -> None:
        """In a worker: the channel is the server's."""
        self._socket.close()
