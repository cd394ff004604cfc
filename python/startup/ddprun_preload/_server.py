"""The life of the fork server: it imports, looks at itself, and answers its agent."""

from __future__ import annotations

import gc
import os
import time
from typing import NoReturn

from . import _command, _inspection, _kernel, _modules, _worker
from ._channel import Channel, Request
from ._learned import Learned
from ._output import Output

_EXIT_FAILED = 1
_WITHOUT = "DDPRUN_PRELOAD_WITHOUT"  # Names that an earlier attempt of this server left out.
_STEPWISE = "DDPRUN_PRELOAD_STEPWISE"  # It has found a flaw, but not the module that causes it.
_WITHOUT_MAX = 5


class _Server:
    """What it was started with, and what it has imported."""

    def __init__(self, descriptor: int, wanted: str, of_ranks: str, path_of_list: str) -> None:
        self.channel = Channel(descriptor)
        self.wanted = wanted
        self.of_ranks = of_ranks.split(",")
        self.learned = Learned(path_of_list)
        self.environment = dict(_kernel.first_environment())
        self.command = _command.own_command()
        self.folder = os.getcwd()
        self.name = _kernel.process_name()
        self.output = Output()
        self.without = [name for name in os.environ.pop(_WITHOUT, "").split(":") if name]
        self.stepwise = bool(os.environ.pop(_STEPWISE, ""))
        self.changed: dict[bytes, bytes | None] = {}  # Variables that modules have set, or removed.

    def prepare(self) -> None:
        """Import, look whether this process may be forked, and report to the agent."""
        began = time.monotonic()
        _kernel.set_process_name("ddprun-preload")
        if not _kernel.show(self.command.argv, list(self.environment.items())):
            self.refuse("this kernel does not let a process change what /proc shows of it")
        names, why = _modules.names_for(self.wanted, self.command, self.learned)
        if not names:
            self.refuse(why)
        forbidden = self.learned.forbidden() if self.wanted == "auto" else []
        dropped = forbidden + self.without
        before = dict(os.environb)
        for name in _modules.import_all(names, dropped, self.of_ranks):
            if self.stepwise:
                self.check(name)
        if _modules.blamed:
            self.start_again(*_modules.blamed)
        flaw = self.output.flaw() or _inspection.flaw()
        if flaw:
            self.start_again("", flaw)
        for variable in before.keys() | os.environb.keys():
            if os.environb.get(variable) != before.get(variable):
                self.changed[variable] = os.environb.get(variable)
        is_auto = self.wanted == "auto"
        set_first = _modules.set_by_program(self.learned, self.changed) if is_auto else ""
        if set_first:
            self.refuse(f"the program sets {set_first} before it imports modules that may read it")
        if is_auto:
            self.learned.note_slow(_modules.seconds)
        gc.collect()
        gc.freeze()
        self.channel.ready(_modules.summary(time.monotonic() - began, dropped))

    def check(self, name: str) -> None:
        flaw = self.output.flaw() or _inspection.flaw()
        if flaw:
            self.start_again(name, flaw)

    def start_again(self, name: str, flaw: str) -> None:
        """Begin anew, without `name` or to find it, as an import cannot be taken back."""
        blame = f"{name} {flaw}" if name else f"an imported module {flaw}"
        if (self.stepwise and not name) or len(self.without) >= _WITHOUT_MAX:
            self.refuse(blame)
        if name and self.wanted == "auto":
            self.learned.forbid(name)
        without = self.without + ([name] if name else [])
        environment = dict(self.environment)
        environment[_WITHOUT.encode()] = ":".join(without).encode()
        environment[_STEPWISE.encode()] = b"" if name and not self.stepwise else b"1"
        _kernel.set_process_name(self.name)
        _inspection.end_children()
        os.execve(self.command.argv[0], self.command.argv, environment)

    def refuse(self, why: str) -> NoReturn:
        self.channel.refuse(why)
        os._exit(0)

    def objection(self, request: Request) -> str:
        """Return why a worker of this request has to be started cold; empty: it need not."""
        if not self.command.fits(request.argv):
            return "its command is another one"
        hidden = self.command.hides(_modules.top_level())
        return f"its own {hidden} hides a module of that name" if hidden else ""

    def serve_once(self) -> bool:
        """Answer one request. Return whether this is the worker."""
        request = self.channel.receive()
        if request is None:  # The agent has gone.
            os._exit(0)
        with request:
            why = self.objection(request)
            if why:
                self.channel.cold(request.number, why)
                return False
            pid, why = _worker.fork()
            if pid == 0:
                _worker.become(request, self)
                return True
            if pid > 0:
                self.channel.forked(request.number, pid)
            else:
                self.channel.cold(request.number, why)
        return False


def serve(descriptor: int, wanted: str, of_ranks: str, path_of_list: str) -> None:
    """Be the fork server at this end of the agent's channel. Return in workers only."""
    try:
        server = _Server(descriptor, wanted, of_ranks, path_of_list)
        server.prepare()
        while not server.serve_once():
            pass
    except BaseException as error:
        # This process must not be mistaken for a worker, nor run the program.
        try:
            os.write(2, f"ddprun: preload: {error!r}\n".encode())
        finally:
            os._exit(_EXIT_FAILED)
