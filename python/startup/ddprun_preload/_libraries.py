"""What the shared libraries of this process may read: the names in their constants.

What a library reads of the environment while it is loaded cannot be seen from Python, but its name
is in the library.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

_HEADER = struct.Struct("<16s2HI3QI6H")  # Of an ELF file of 64 bits.
_SECTION = struct.Struct("<2I4Q2I2Q")
_MAGIC = b"\x7fELF\x02\x01"
_NAMES_MAX = 1 << 20
_CONSTANTS = (b".rodata", b".lrodata", b".data")
_CHUNK = 1 << 20
# Their libraries put names together from parts, or are loaded with other ones.
_FAMILIES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "CUDA_", "HIP_", "MALLOC_")


def mapped_files() -> set[str]:
    """Return the files of which this process has a part in its memory."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = [line.rstrip("\n").split(None, 5)[5:] for line in maps]
    return {path[0] for path in paths if path and path[0].startswith("/")}


def reader_of(variable: str) -> str:
    """Return a library that may read it when it is loaded; empty: there is none."""
    return "a library" if variable.startswith(_FAMILIES) else with_text(variable)


def with_text(text: str) -> str:
    """Return a library whose constants contain this text; empty: none does."""
    wanted = os.fsencode(text) + b"\0"
    for path in sorted(mapped_files()):
        try:
            with open(path, "rb") as file:
                if _has(file.fileno(), wanted):
                    return os.path.basename(path)
        except (OSError, struct.error):  # It is no such file, or has gone.
            continue
    return ""


def _has(file: int, wanted: bytes) -> bool:
    for begin, size in _constants(file):
        end = begin + size
        while begin < end:
            if wanted in os.pread(file, min(_CHUNK + len(wanted), end - begin), begin):
                return True
            begin += _CHUNK
    return False


def _constants(file: int) -> Iterator[tuple[int, int]]:
    """Return where the sections with constants are."""
    header = _HEADER.unpack(os.pread(file, _HEADER.size, 0))
    if not header[0].startswith(_MAGIC):
        return
    table, size, count, names_at = header[6], header[11], header[12], header[13]
    if size != _SECTION.size or names_at >= count:
        return
    rows = [_SECTION.unpack(os.pread(file, size, table + size * n)) for n in range(count)]
    names = os.pread(file, min(rows[names_at][5], _NAMES_MAX), rows[names_at][4])
    for row in rows:
        if names[row[0] :].startswith(_CONSTANTS):
            yield row[4], row[5]
