"""System calls that Python has no functions for."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Iterable

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_MM = 35
_PR_SET_MM_MAP = 14
_SIGKILL = 9
_PROT_READ_WRITE = 3
_MAP_PRIVATE_ANONYMOUS = 0x22

_libc = ctypes.CDLL(None, use_errno=True)
_libc.sbrk.restype = ctypes.c_void_p
_libc.sbrk.argtypes = [ctypes.c_ssize_t]
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]


def _prctl(option: int, *arguments: int) -> bool:
    padded = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    return bool(_libc.prctl(option, *padded) == 0)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    if not _prctl(_PR_SET_PDEATHSIG, _SIGKILL):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def process_name() -> str:
    """Return the name of this process, as ps shows it."""
    with open("/proc/self/comm", encoding="utf-8", errors="surrogateescape") as file:
        return file.read().rstrip("\n")


def set_process_name(name: str) -> None:
    """Give this process a name of at most 15 bytes."""
    text = ctypes.create_string_buffer(name.encode(errors="surrogateescape")[:15])
    _prctl(_PR_SET_NAME, ctypes.addressof(text))


def flush_c_streams() -> None:
    """Write out what C code has printed and the library still holds."""
    _libc.fflush(None)


def first_command() -> list[bytes]:
    """Return the command line that this process was started with."""
    with open("/proc/self/cmdline", "rb") as file:
        return file.read().split(b"\0")[:-1]


def first_environment() -> list[tuple[bytes, bytes]]:
    """Return the variables that this process was started with."""
    with open("/proc/self/environ", "rb") as file:
        pairs = [entry.partition(b"=") for entry in file.read().split(b"\0") if entry]
    return [(name, value) for name, equals, value in pairs if equals]


def _stat_fields() -> list[bytes]:
    """Return the fields of /proc/self/stat as proc(5) counts them, from the third on."""
    with open("/proc/self/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def age_ns() -> int:
    """Return for how long this process has run: no less, and up to two ticks more."""
    started = (int(_stat_fields()[22 - 3]) - 2) * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started


def written_bytes() -> int:
    """Return how much this process has written since its fork; an OSError: nobody counts."""
    with open("/proc/self/io", encoding="ascii") as file:
        counts = dict(line.split(": ") for line in file)
    return int(counts["wchar"])


def show(argv: list[bytes], environment: Iterable[tuple[bytes, bytes]]) -> bool:
    """Have /proc show this command line and these variables as those of this process.

    What the agent, the keeper and ps know of a process they read there. The memory that it was
    started with stays as it is: libraries may point into it.
    """
    line = b"".join(argument + b"\0" for argument in argv)
    variables = b"".join(name + b"=" + value + b"\0" for name, value in environment)
    memory = _libc.mmap(
        None, len(line) + len(variables) + 1, _PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS, -1, 0
    )
    if memory in (None, ctypes.c_void_p(-1).value):
        return False
    ctypes.memmove(memory, line + variables, len(line) + len(variables))
    fields = _stat_fields()

    def field(number: int) -> int:  # As proc(5) counts them; the first two are cut off.
        return int(fields[number - 3])

    middle, end = memory + len(line), memory + len(line) + len(variables)
    layout = struct.pack(
        "=12QIi",
        *(field(26), field(27), field(45), field(46)),  # Code and data.
        *(field(47), _libc.sbrk(0), field(28)),  # Heap and stack.
        *(memory, middle, middle, end),
        *(0, 0, -1),  # The auxiliary vector and the program's file stay.
    )
    text = ctypes.create_string_buffer(layout, len(layout))
    return _prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.addressof(text), len(layout))
