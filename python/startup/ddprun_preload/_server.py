"""The life of the fork server: it imports, looks at itself, and answers its agent."""

from __future__ import annotations

import gc
import marshal
import os
import sys
import time
from collections.abc import Collection
from typing import NoReturn

from . import _command, _guard, _image, _inspection, _kernel, _modules, _worker
from ._channel import Channel, Request
from ._learned import Learned
from ._output import Output

_EXIT_FAILED = 1
_WITHOUT = "DDPRUN_PRELOAD_WITHOUT"  # Names that earlier attempts of this server left out.
_STEPWISE = "DDPRUN_PRELOAD_STEPWISE"  # It has found a flaw, but not the module that causes it.
_WITHOUT_MAX = 5
_KEEP = "DDPRUN_PRELOAD_KEEP"  # It may be saved; "kept": an earlier one that was saved comes first.


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
        groups = os.environ.pop(_WITHOUT, "").split(":")
        self.without = [group.split(",") for group in groups if group]
        self.stepwise = bool(os.environ.pop(_STEPWISE, ""))
        self.keep = os.environ.pop(_KEEP, "")
        self.changed: dict[bytes, bytes | None] = {}  # Variables that modules have set, or removed.
        self.files: dict[str, _image.State | None] = {}  # That this process depends on.

    def prepare(self) -> None:
        """Import, look whether this process may be forked, and report to the agent."""
        began = time.monotonic()
        _kernel.set_process_name("ddprun-preload")
        if not _kernel.show(self.command.argv, list(self.environment.items())):
            self.refuse("this kernel does not let a process change what /proc shows of it")
        # Taken in any case: what is left unread would reset the channel, and lose the last reply.
        file = self.channel.receive_image() if self.keep == "kept" else -1
        names, why = _modules.names_for(self.wanted, self.command, self.learned)
        if not names:
            self.refuse(why)
        if file >= 0:
            self.become_kept(file, names, began)
        self.load(names, began)

    def forbidden(self) -> list[str]:
        return self.learned.forbidden() if self.wanted == "auto" else []

    def load(self, names: list[str], began: float, kept: Collection[str] = ()) -> None:
        """Import these names; of a kept server, which has imported `kept`, the new ones."""
        dropped = self.forbidden()
        for name in dropped:
            if name in sys.modules:
                self.refuse(f"the fork server itself has {name}, which must not be preloaded")
        dropped += [name for group in self.without for name in group if name not in dropped]
        started = time.time_ns() - _kernel.age_ns()
        before = dict(os.environb)
        for name in _modules.import_all(names, dropped, self.of_ranks):
            if self.stepwise:
                self.check(name)
        if _modules.blamed:
            self.start_again(*_modules.blamed[0])
        flaw = self.output.flaw() or _inspection.flaw()
        if flaw:
            self.start_again([], flaw)
        for variable in before.keys() | os.environb.keys():
            if os.environb.get(variable) != before.get(variable):
                self.changed[variable] = os.environb.get(variable)
        if not _guard.works():
            self.refuse("this Python does not show when a program uses a preloaded module first")
        _guard.mark()
        is_auto = self.wanted == "auto"
        if is_auto:
            late, reader = _modules.set_too_late(self.learned, self.changed)
            if late:
                why = f"the program sets {late} before it imports {reader}, which may read it"
                self.refuse(why)
        for name, why in {} if is_auto else _modules.failed.items():
            self.channel.absent(f"{name} cannot be imported, and is left out: {why}")
        if kept and set(sys.modules) <= set(kept):
            text = _modules.summary(time.monotonic() - began, dropped)
            return self.channel.resumed(text + ", kept by an earlier run")
        if is_auto and not kept:
            self.learned.note_slow(_modules.seconds)
        gc.collect()
        gc.freeze()
        if self.keep:
            self.note_files(started, bool(kept))
        self.channel.ready(_modules.summary(time.monotonic() - began, dropped))

    def note_files(self, started: int, is_kept: bool) -> None:
        """Note what this server depends on, to see later whether it is as it was."""
        before = self.files if is_kept else {}
        self.files = {**_image.states(), **before}
        late = _image.changed_since(self.files, started)
        if late:
            self.files[late] = None  # Never again.

    def become_kept(self, file: int, names: list[str], began: float) -> None:
        """Become the fork server of an earlier run. Returns if that cannot be, or fails."""
        try:
            conditions, begin = _image.conditions_of(file)
            why = self.unfit_for(conditions)
            if not why:
                parameters = marshal.dumps(
                    {
                        "names": names,
                        "began": began,
                        "argv": self.command.argv,
                        "environment": self.environment,
                        "variables": dict(os.environb),
                        "of_ranks": self.of_ranks,
                        "name": self.name,
                        "file": file,
                    }
                )
                number = os.memfd_create("ddprun-preload")
                os.write(number, parameters)
                why = _image.become(file, begin, number)
                os.close(number)
        except (OSError, ValueError, EOFError, TypeError, KeyError) as error:
            why = str(error) or repr(error)
        os.close(file)
        self.channel.unfit(why)

    def unfit_for(self, conditions: dict[str, object]) -> str:
        """Return why this process must not become the one with these conditions."""
        for name, value in self.conditions().items():
            if conditions[name] != value:
                return f"{name} is another one"
        modules = set(conditions["modules"])  # type: ignore[call-overload]
        imported = modules.intersection(self.forbidden())
        if imported:
            return f"it has imported {min(imported)}, which must not be"
        path = _image.changed(conditions["files"])  # type: ignore[arg-type]
        return f"{path} has changed" if path else ""

    def conditions(self) -> dict[str, object]:
        """Return what has to be equal in a process that becomes this one."""
        return {
            **_image.surroundings(),
            "its list of modules": self.wanted,
            "its list of learned modules": self.learned.path,
            "its command": self.command.shared(),
        }

    def save(self, file: int) -> None:
        """Write this process to the file, for later runs; or go on as the one that was written."""
        path = _image.changed(self.files)
        why = f"{path} has changed since it was imported" if path else ""
        why = why or self.output.flaw() or _inspection.flaw(given=file)
        if why:
            os.close(file)
            return self.channel.unfit(why)
        modules = list(sys.modules)
        printed = self.output.printed()
        conditions = {**self.conditions(), "files": self.files, "modules": modules}
        try:
            number, why = _image.save(file, conditions)
        except OSError as error:  # No room, or no library.
            number, why = -1, str(error)
        if number > 0:
            return self.resume(number, modules, printed)
        os.close(file)
        if why:
            return self.channel.unfit(why)
        self.channel.saved(str(len(modules)))

    def resume(self, number: int, modules: list[str], printed: list[bytes]) -> None:
        """Be the fork server of another run: its parameters are in the file `number`."""
        with open(number, "rb") as file:
            file.seek(0)
            parameters = marshal.loads(file.read())
        os.close(parameters["file"])
        self.environment = parameters["environment"]
        self.command = _command.Command(parameters["argv"])
        self.of_ranks = parameters["of_ranks"]
        self.name = parameters["name"]
        self.stepwise = False
        _kernel.set_process_name("ddprun-preload")
        _kernel.show(self.command.argv, list(self.environment.items()))
        self.output = Output(printed)
        _worker.set_environment(parameters["variables"].items(), self.changed)
        _modules.seconds.clear()
        _modules.failed.clear()
        self.load(parameters["names"], parameters["began"], modules)

    def check(self, name: str) -> None:
        flaw = self.output.flaw() or _inspection.flaw()
        if flaw:
            self.start_again([name], flaw)

    def start_again(self, names: list[str], flaw: str) -> None:
        """Begin anew, without these names or to find one, as an import cannot be taken back."""
        blame = f"{names[-1]} {flaw}" if names else f"an imported module {flaw}"
        if (self.stepwise and not names) or len(self.without) >= _WITHOUT_MAX:
            self.refuse(blame)
        for name in names if self.wanted == "auto" else []:
            self.learned.forbid(name)
        without = self.without + ([names] if names else [])
        environment = dict(self.environment)
        environment[_WITHOUT.encode()] = ":".join(",".join(group) for group in without).encode()
        environment[_STEPWISE.encode()] = b"" if names and not self.stepwise else b"1"
        environment[_KEEP.encode()] = b"new" if self.keep else b""
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
        if not isinstance(request, Request):
            self.save(request)
            return False
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
    server = _Server(descriptor, wanted, of_ranks, path_of_list)
    try:
        server.prepare()
        while not server.serve_once():
            pass
    except BaseException as error:
        # This process must not be mistaken for a worker, nor run the program.
        try:
            server.channel.failed(error)
        finally:
            os._exit(_EXIT_FAILED)
