"""More cases of store_cases.py: how bytes may be cut, what ends a connection, and limits."""

import struct

from store_cases import CLOSED, NEW, case
from store_client import VALIDATE, keys_of, text

KEY_MAX, VALUE_MAX, COUNT_MAX = 8 << 10, 8 << 20, 131_072


# Bytes.

@case(b"value")
def a_request_in_single_bytes(v):
    c = v.connect()
    for byte in c.request("set", text(v.key("k")), text(b"value")):
        c.send(bytes([byte]))
    return c.get(v.key("k"))


@case((b"2", 1))
def many_requests_in_one_segment(v):
    c = v.connect()
    c.send(b"".join(c.request("set", text(v.key("k")), text(str(i).encode())) for i in range(3)) +
           c.request("get", text(v.key("k"))) + c.request("add", text(v.key("n")), struct.pack("<q", 1)))
    return c.receive_text(), c.receive_number()


@case(1, NEW)
def validate_in_pieces_after_its_first_byte(v):
    c = v.connect(greet=False)
    c.send(VALIDATE[:1])
    v.settle()
    c.send(VALIDATE[1:])
    return c.add(v.key("n"), 1)


@case(1, NEW)
def validate_and_the_first_request_in_one_segment(v):
    c = v.connect(greet=False)
    c.send(VALIDATE + c.request("add", text(v.key("n")), struct.pack("<q", 1)))
    return c.receive_number()


# What ends a connection. A server that closed another one instead would fail in what follows.

@case(CLOSED, NEW)
def validate_with_a_wrong_number(v):
    c = v.connect(greet=False)
    c.send(b"\x00\xce\xf7\x85\x3d")
    v.settle()
    c.send(bytes(8))  # To us it is a SET of 1.13 with a key of 1 GB.
    return c.num_keys()


@case(CLOSED)
def an_unknown_operation(v):
    c = v.connect()
    c.send(bytes([99]))
    return c.receive(1)


@case(CLOSED)
def a_key_longer_than_memory(v):
    c = v.connect()
    c.send(c.request("get", struct.pack("<Q", 2**62)))
    return c.receive(1)


@case((CLOSED, 1))
def a_bad_request_closes_its_own_connection_only(v):
    bad, good = v.connect(), v.connect()
    before = good.add(v.key("n"), 1)
    bad.send(bytes([99]))
    try:
        bad.receive(1)
    except Exception as closed:  # Whoever has not closed it fails in an_unknown_operation too.
        return type(closed).__name__.lower(), before
    return "open", before


# Limits. Each is the largest that passes, and one more.

@case(b"v")
def a_key_of_the_largest_size(v):
    c = v.connect()
    key = v.key("k").ljust(KEY_MAX, b"k")
    c.set(key, b"v")
    return c.get(key)


@case(CLOSED)
def a_key_that_is_too_large(v):
    c = v.connect()
    key = v.key("k").ljust(KEY_MAX + 1, b"k")
    c.set(key, b"v")
    return c.get(key)


@case(VALUE_MAX)
def a_value_of_the_largest_size(v):
    c = v.connect()
    c.set(v.key("k"), bytes(VALUE_MAX))
    size = len(c.get(v.key("k")))
    c.delete(v.key("k"))
    return size


@case(CLOSED)
def a_value_that_is_too_large(v):
    c = v.connect()
    c.set(v.key("k"), bytes(VALUE_MAX + 1))
    size = len(c.get(v.key("k")))
    c.delete(v.key("k"))
    return size


@case(True)
def as_many_keys_as_may_be_named_at_once(v):
    c = v.connect()
    c.set(v.key("k"), b"v")
    return c.check(*[v.key("k")] * COUNT_MAX)


@case(CLOSED)
def more_keys_than_may_be_named_at_once(v):
    c = v.connect()
    c.set(v.key("k"), b"v")
    return c.check(*[v.key("k")] * (COUNT_MAX + 1))


@case(CLOSED, NEW)
def appending_beyond_the_largest_value(v):
    c = v.connect()
    c.set(v.key("k"), bytes(VALUE_MAX))
    c.append(v.key("k"), b"1")
    size = len(c.get(v.key("k")))
    c.delete(v.key("k"))
    return size


@case(CLOSED, ours_only=True)
def a_request_larger_than_one_may_be(v):
    """Each field is within its limit, all together are not."""
    c = v.connect()
    if c.dialect == "old":
        c.send(c.request("wait", keys_of([b"k" * KEY_MAX] * (8192 + 1))))
    else:
        c.send(c.request("multi_set", struct.pack("<Q", 9), *[text(v.key("k")) + text(bytes(VALUE_MAX))] * 9))
    return c.num_keys()
