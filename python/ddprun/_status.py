"""What a status of the library becomes: nothing, or an exception with the library's sentence."""

from __future__ import annotations

import os
import socket

from ._errors import BY_STATUS, Error
from ._library import foreign, is_foreign, library


def _host() -> str:
    return os.environ.get("DDPRUN_HOST") or socket.gethostname()


def _check(status: int, operation: str, rank: int) -> None:
    """Raise the exception for `status`, with the sentence of this thread's last failed call."""
    if status == 0:
        return
    sentence = library().ddprun_last_error().decode(errors="replace")
    if is_foreign(sentence):
        raise foreign()
    raise BY_STATUS.get(status, Error)(
        sentence,
        rank=rank,
        host=_host(),
        operation=operation,
        peer=library().ddprun_last_error_peer(),
    )
