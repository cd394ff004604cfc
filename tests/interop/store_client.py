"""One connection to a TCPStore server, byte by byte, in either dialect (docs/protocol.md, "The store")."""

import socket
import struct

VALIDATE = b"\x00\xce\xf7\x85\x3c"
PATIENCE = 20.0  # Seconds for any answer.

# The operations' numbers: PyTorch 1.13's, and those of 2.2 and later.
NUMBERS = {
    "old": {"set": 0, "compare_set": 1, "get": 2, "add": 3, "check": 4, "wait": 5, "num_keys": 6, "watch": 7,
            "delete": 8},
    "new": {"set": 1, "compare_set": 2, "get": 3, "add": 4, "check": 5, "wait": 6, "num_keys": 7, "delete": 8,
            "append": 9, "multi_get": 10, "multi_set": 11, "cancel": 12, "ping": 13, "push": 14, "pop": 15,
            "length": 16, "list_keys": 17, "barrier": 18},
}


class Closed(Exception):
    """The server has closed the connection."""


def text(raw):
    return struct.pack("<Q", len(raw)) + raw


def keys_of(keys):
    return struct.pack("<Q", len(keys)) + b"".join(map(text, keys))


class Client:
    def __init__(self, port, dialect, patience=PATIENCE):
        self.dialect = dialect
        self._socket = socket.create_connection(("127.0.0.1", port), patience)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def greet(self):
        if self.dialect == "new":
            self.send(VALIDATE)
        return self

    def close(self):
        self._socket.close()

    # Bytes.

    def request(self, operation, *fields):
        return bytes([NUMBERS[self.dialect][operation]]) + b"".join(fields)

    def send(self, raw):
        try:
            self._socket.sendall(raw)
        except (BrokenPipeError, ConnectionResetError):
            raise Closed() from None

    def receive(self, size):
        got = b""
        while len(got) < size:
            try:
                part = self._socket.recv(size - len(got))
            except ConnectionResetError:
                part = b""
            if not part:
                raise Closed()
            got += part
        return got

    def receive_text(self):
        return self.receive(self.receive_number())

    def receive_number(self):
        return struct.unpack("<q", self.receive(8))[0]

    # Operations. Keys and values are bytes; what is answered is returned.

    def set(self, key, value):
        self.send(self.request("set", text(key), text(value)))

    def get(self, key):
        self.send(self.request("get", text(key)))
        return self.receive_text()

    def add(self, key, delta):
        self.send(self.request("add", text(key), struct.pack("<q", delta)))
        return self.receive_number()

    def compare_set(self, key, expected, desired):
        self.send(self.request("compare_set", text(key), text(expected), text(desired)))
        return self.receive_text()

    def check(self, *keys):
        self.send(self.request("check", keys_of(keys)))
        return self.receive(1) == b"\0"

    def num_keys(self):
        self.send(self.request("num_keys"))
        return self.receive_number()

    def delete(self, key):
        self.send(self.request("delete", text(key)))
        return self.receive_number()

    def watch(self, key):
        self.send(self.request("watch", text(key)))
        return self.receive(1)[0]

    def change(self):
        """What a watcher is told: kind, key, before, after."""
        return self.receive(1)[0], self.receive_text(), self.receive_text(), self.receive_text()

    def append(self, key, more):
        self.send(self.request("append", text(key), text(more)))

    def multi_get(self, *keys):
        self.send(self.request("multi_get", keys_of(keys)))
        return [self.receive_text() for _ in keys]

    def multi_set(self, *pairs):
        items = b"".join(text(key) + text(value) for key, value in pairs)
        self.send(self.request("multi_set", struct.pack("<Q", len(pairs)), items))

    def ping(self, number):
        self.send(self.request("ping", struct.pack("<I", number)))
        return struct.unpack("<I", self.receive(4))[0]

    def push(self, key, element):
        self.send(self.request("push", text(key), text(element)))

    def pop(self, key):
        """The element; None if there is none."""
        self.send(self.request("pop", text(key)))
        return self.receive_text() if self.receive_number() > 0 else None

    def length(self, key):
        self.send(self.request("length", text(key)))
        return self.receive_number()

    def list_keys(self):
        self.send(self.request("list_keys"))
        return [self.receive_text() for _ in range(self.receive_number())]

    # Waiting: asked for here, answered later.

    def wait(self, *keys):
        self.send(self.request("wait", keys_of(keys)))

    def barrier(self, key, world):
        self.send(self.request("barrier", text(key), struct.pack("<q", world)))

    def cancel(self):
        self.send(self.request("cancel"))

    def told(self):
        return {0: "go", 1: "canceled"}[self.receive(1)[0]]
