"""A worker's first moments: what agent/workers/child_start.cc does for one that is started cold."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import gc
import os
import sys
from collections.abc import Iterable
from typing import Protocol

from . import _image, _kernel
from ._channel import Channel, Request
from ._command import Command
from ._guard import Guard
from ._learned import Learned
from ._output import Output

_EXIT_CANNOT_START = 127
_LINK = 3
# What os.fork() calls around a fork, for agent/workers/fork_below.h.
_HOOKS = (ctypes.c_void_p * 3)(
    *(
        ctypes.cast(getattr(ctypes.pythonapi, "PyOS_" + name), ctypes.c_void_p)
        for name in ("BeforeFork", "AfterFork_Parent", "AfterFork_Child")
    )
)


class Server(Protocol):
    """What a worker takes over from the fork server."""

    channel: Channel
    command: Command
    output: Output
    name: str
    changed: dict[bytes, bytes | None]
    folder: str
    learned: Learned
    wanted: str


def fork() -> tuple[int, str]:
    """Fork a worker that is no child of this process. Return 0 in it, else its number.

    A process between the two ends at once, so the worker becomes a child of the agent, which is the
    sub-reaper above us. A number below 0 comes with the reason.
    """
    pid = _fork_below()
    if -pid in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
        return _fork_twice()
    return pid, "" if pid >= 0 else f"fork: {os.strerror(-pid)}"


def _fork_below() -> int:
    """Fork by agent/workers/fork_below.h, which is faster, but not there for all processors."""
    try:
        function = _image.functions().ddprun_fork_below
    except (OSError, AttributeError):
        return -errno.ENOSYS
    sys.audit("os.fork")
    return int(function(_HOOKS))


def _fork_twice() -> tuple[int, str]:
    report, answer = os.pipe()
    try:
        middle = os.fork()
    except OSError as error:
        os.close(report)
        os.close(answer)
        return -1, f"fork: {os.strerror(error.errno or 0)}"
    if middle == 0:
        try:
            worker = os.fork()
            if worker == 0:
                os.close(report)
                os.close(answer)
                return 0, ""
            os.write(answer, str(worker).encode())
        except OSError as error:
            os.write(answer, f"-fork: {os.strerror(error.errno or 0)}".encode())
        os._exit(0)
    os.close(answer)
    os.waitpid(middle, 0)
    text = os.read(report, 200).decode()
    os.close(report)
    return (int(text), "") if text.isdigit() else (-1, text.lstrip("-") or "the fork was killed")


def become(request: Request, server: Server) -> None:
    """Make this fork of the server what a process of its own would be. Ends it where it cannot."""
    try:
        printed = server.output.printed()
        os.setsid()
        server.channel.leave()
        _take_ends(request)
        _await_agent(request)
        set_environment(request.environment, server.changed)
        _kernel.show(request.argv, _shown(request.environment))
        _kernel.set_process_name(server.name)
        server.command.take_arguments(request.argv)
        for stream, text in zip((1, 2), printed):
            while text:
                text = text[os.write(stream, text) :]
        _renew()
        # At exit: the frozen objects include the dictionary of __main__, which holds objects with
        # finalizers.
        atexit.register(gc.unfreeze)
        learned = server.learned if server.wanted == "auto" else None
        Guard(request, server.command, server.folder, learned).install()
    except BaseException as error:
        try:
            os.write(
                2, f"ddprun: cannot start this worker from its fork server: {error!r}\n".encode()
            )
        finally:
            os._exit(_EXIT_CANNOT_START)


def _take_ends(request: Request) -> None:
    for number, end in enumerate(request.ends, start=1):
        os.dup2(end, number)
    for number in range(len(request.ends) + 1, _LINK + 1):
        with contextlib.suppress(OSError):  # It was free.
            os.close(number)
    if (b"DDPRUN_STDIN", b"1") not in request.environment:
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)


def _await_agent(request: Request) -> None:
    """Wait until the agent has us as its child, and everything that it does for one is done."""
    if os.read(request.go, 1) != b"g":
        os._exit(_EXIT_CANNOT_START)  # The agent has given this worker up, or has gone.
    _kernel.die_with_parent()
    if os.getppid() != request.agent:
        os._exit(_EXIT_CANNOT_START)


def set_environment(
    variables: Iterable[tuple[bytes, bytes]], changed: dict[bytes, bytes | None]
) -> None:
    """Give this process these variables, and those that modules have set as they were imported."""
    wanted = dict(variables)
    for variable, value in changed.items():
        if value is None:
            wanted.pop(variable, None)
        else:
            wanted[variable] = value
    for name in [name for name in os.environb if name not in wanted]:
        del os.environb[name]
    for name, value in wanted.items():
        if os.environb.get(name) != value:
            os.environb[name] = value


def _shown(environment: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return these variables without those by which a cold worker would be told to take notes.

    sitecustomize.py, which is on PYTHONPATH for them, takes both out of os.environ, too.
    """
    left = [each for each in environment if not each[0].startswith(b"DDPRUN_PRELOAD")]
    if any(name.startswith(b"DDPRUN_WATCH") for name, _ in left):
        return left  # Then a cold start has our folder there, too.
    named = dict(left).get(b"PYTHONPATH", b"").split(os.fsencode(os.pathsep))
    path = os.pathsep.encode().join(p for p in named if p != os.fsencode(_image.STARTUP))
    is_other = [(name, path if name == b"PYTHONPATH" else value) for name, value in left]
    return [each for each in is_other if each != (b"PYTHONPATH", b"")]


def _renew() -> None:
    """Renew what a library holds of the process before: random numbers, and numbers of threads.

    Python's `random` sees to itself.

    torch seeds itself at random when it is imported, with 53 bits; a smaller seed was set by hand.
    """
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is not None and generator.initial_seed() >> 32:
        generator.seed()
    mtrand = sys.modules.get("numpy.random.mtrand")
    if mtrand is not None:
        mtrand.seed()
    # Python keeps the number that the kernel gave to the main thread of the process before.
    threading = sys.modules.get("threading")
    if threading is not None and hasattr(threading.Thread, "_set_native_id"):
        threading.current_thread()._set_native_id()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        current = process.current_process()
        current.authkey = os.urandom(32)
