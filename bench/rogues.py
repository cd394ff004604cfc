"""Strangers that come to a port in masses, for rendezvous.py: one process, so many connections kept up for ever.

A quarter each: says nothing; sends half a TLS ClientHello and no more; sends random bytes; knows a wrong token's
handshake up to the point where it must prove it (a whole ClientHello of Python's, without a key). Whoever is thrown out
comes back after ten seconds.
"""
import multiprocessing
import random
import selectors
import socket
import ssl
import time


def client_hello():
    """The bytes of a whole ClientHello."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    connection = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        connection.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def flood(port, count, steady):
    hello = client_hello()
    words = [b"", hello[:40], None, hello]
    selector = selectors.DefaultSelector()

    def come(kind):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(("127.0.0.1", port))
        selector.register(s, selectors.EVENT_WRITE, kind)

    for i in range(count):
        come(i % 4)
    connected = 0
    back = []  # When those that were thrown out come again.
    while True:
        for key, events in selector.select(0.05):
            s, kind = key.fileobj, key.data
            try:
                if events & selectors.EVENT_WRITE:
                    s.send(words[kind] if words[kind] is not None else random.randbytes(300))
                    selector.modify(s, selectors.EVENT_READ, kind)
                    connected += 1
                    if connected == count:
                        steady.set()
                    continue
                if s.recv(4096):
                    continue
            except OSError:
                pass
            selector.unregister(s)
            s.close()
            back.append((time.monotonic() + 10, kind))
        while back and back[0][0] <= time.monotonic():
            come(back.pop(0)[1])


class Rogues:
    """`count` of them, from start() to end()."""

    def __init__(self, port, count):
        self.steady = multiprocessing.Event()
        self.process = multiprocessing.Process(target=flood, args=(port, count, self.steady), daemon=True)

    def start(self):
        self.process.start()
        if not self.steady.wait(60):
            raise SystemExit("the rogues did not get through within a minute")

    def end(self):
        self.process.terminate()
        self.process.join()
