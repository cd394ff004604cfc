"""What modules print while they are imported: each worker prints it, as if it had imported them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from . import _kernel

_PRINTED_MAX = 16 << 10  # Fits into a pipe, so that a worker does not wait for its agent here.
_STREAMS = (1, 2)


class Output:
    """Takes the place of standard output and error in the server."""

    def __init__(self, printed: Iterable[bytes] = (b"", b"")) -> None:
        for stream, text in zip(_STREAMS, printed):
            file = os.memfd_create("ddprun-preload")
            os.write(file, text)
            os.dup2(file, stream)
            os.close(file)

    def _flush(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        _kernel.flush_c_streams()

    def flaw(self) -> str:
        """Return what is wrong with it; empty: nothing."""
        self._flush()
        if sum(os.fstat(stream).st_size for stream in _STREAMS) > _PRINTED_MAX:
            return "prints much when it is imported"
        return ""

    def printed(self) -> list[bytes]:
        """Return what was printed to each of the two."""
        self._flush()
        return [os.pread(stream, _PRINTED_MAX, 0) for stream in _STREAMS]
