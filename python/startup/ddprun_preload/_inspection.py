"""Whether this process may be forked: what a copy would share with it, or lack.

A thread is missing in the copy, and what it held stays locked; a descriptor or a shared mapping
would be the same one in all workers; a GPU's context is unusable in a copy.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

# Descriptors of this process, and files that workers may share: they hold no state.
_OWN = range(4)  # Standard input, output and error, and the channel.
_HARMLESS = ("/dev/null", "/dev/urandom", "/dev/random", "/dev/zero")


def flaw(given: int = -1) -> str:
    """Return what forbids it, as "opens ..."; empty: nothing. `given`: a descriptor of ours."""
    for found in _flaws(given):
        return found
    return ""


def _flaws(given: int) -> Iterator[str]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        yield "starts a process when it is imported"
    except ChildProcessError:
        pass
    for descriptor in os.listdir("/proc/self/fd"):
        if int(descriptor) in (*_OWN, given):
            continue
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue  # The descriptor of the folder that is read here.
        if target not in _HARMLESS:
            yield f"opens {target} when it is imported"
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            fields = line.split(None, 5)
            path = fields[5].rstrip("\n") if len(fields) > 5 else ""
            if path.startswith("/dev/nvidia"):
                yield f"opens {path} when it is imported"
            if fields[1].startswith("rw") and fields[1].endswith("s"):
                yield f"shares memory ({path or 'anonymous'}) when it is imported"
    if _threads() > 1:
        yield "starts a thread when it is imported"


def end_children() -> None:
    """End the processes that modules have started: they would outlive what comes after an exec."""
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children", encoding="ascii") as file:
                children = [int(child) for child in file.read().split()]
        except OSError:  # The kernel lacks that file, or the thread has ended.
            continue
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _threads() -> int:
    """Count the threads of this process that a fork leaves: OpenBLAS ends its own before one."""
    if len(os.listdir("/proc/self/task")) > 1:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    return len(os.listdir("/proc/self/task"))
