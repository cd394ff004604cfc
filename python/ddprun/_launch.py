"""``ddprun.launch``: a function as the workers of a run, from a script or a notebook."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing import spawn
from pathlib import Path
from types import FunctionType
from typing import Any, Callable, TypeVar

from ._arguments import whole
from ._errors import RunError
from ._library import program

Result = TypeVar("Result")


class _ByReference(pickle.Pickler):
    """Refuses what another process could not import."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, FunctionType)) and value.__module__ == "__main__":
            raise ValueError(
                f"{value.__qualname__} was defined interactively: put it into a module, or "
                "install cloudpickle"
            )
        return NotImplemented


def _pickled(call: tuple[Any, ...]) -> bytes:
    """Pickle by reference to modules; what a notebook has defined by value, by cloudpickle."""
    main = sys.modules["__main__"]
    is_importable = hasattr(main, "__file__") or getattr(main, "__spec__", None) is not None
    if not is_importable:
        with contextlib.suppress(ImportError):
            return bytes(importlib.import_module("cloudpickle").dumps(call))
    file = io.BytesIO()
    try:
        (pickle.Pickler if is_importable else _ByReference)(file).dump(call)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(f"the function and its arguments must be picklable: {error}") from error
    return file.getvalue()


def _exit_code_of(command: list[str]) -> int:
    """Run ddprun. What interrupts this interrupts it, too, and passes once it has ended."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        return process.wait()
    except BaseException as interruption:
        _stop(process, interruption)
        raise


def _stop(process: subprocess.Popen[bytes], interruption: BaseException) -> None:
    """Have ddprun give its workers their time to end; that has a limit, --shutdown-timeout."""
    is_ctrl_c = isinstance(interruption, KeyboardInterrupt)
    while process.poll() is None:
        try:
            process.send_signal(signal.SIGINT if is_ctrl_c else signal.SIGTERM)
            process.wait()
        except KeyboardInterrupt:  # The second one: ddprun acts on it.
            is_ctrl_c = True


def _run_error(folder: Path, code: int) -> RunError:
    try:
        verdict = json.loads((folder / "verdict.json").read_text(errors="replace"))
    except (OSError, ValueError):
        return RunError(f"ddprun exited with {code}; its output says why", {}, code)
    return RunError(str(verdict.get("text", f"ddprun exited with {code}")), verdict, code)


def _result_of(folder: Path, rank: int) -> Any:
    try:
        return pickle.loads((folder / f"result.{rank}").read_bytes())
    except FileNotFoundError:
        raise RunError(f"rank {rank} ended without a result", {}, 0) from None


def launch(
    fn: Callable[..., Result],
    args: Sequence[Any] = (),
    nproc: int = 2,
    options: Sequence[str] = (),
) -> list[Result]:
    """Run ``fn(*args)`` in `nproc` new processes on this machine, under ddprun.

    Each process has the environment of a worker, so ``ddprun.init()`` or torch's
    ``init_process_group()`` in `fn` finds the others. Returns the results of the calls, in the
    order of ranks. If the run fails, all its processes are stopped and RunError contains the
    verdict. Ctrl-C ends the run as it ends ddprun: the processes receive SIGINT, and have
    ddprun's --shutdown-timeout to end.

    `fn` and `args` are pickled: define `fn` in a module or script that guards its own start by
    ``if __name__ == "__main__":``. In a notebook cloudpickle must be installed. `options` are
    further flags of the program, such as ``("--max-restarts", "1")``.
    """
    nproc = whole(nproc, "nproc", 1, 2**31 - 1)
    call = _pickled((fn, tuple(args)))
    with tempfile.TemporaryDirectory(prefix="ddprun-launch-") as name:
        folder = Path(name)
        preparation = spawn.get_preparation_data("ddprun worker")
        # A worker does not need the parent's secrets.
        preparation.pop("authkey", None)
        (folder / "call").write_bytes(pickle.dumps(preparation) + call)
        command = [program(), "--standalone", "--nproc-per-node", str(nproc)]
        command += ["--error-file", str(folder / "verdict.json"), *options]
        command += ["--no-python", sys.executable, "-u", "-m", "ddprun._worker", name]
        code = _exit_code_of(command)
        if code != 0:
            raise _run_error(folder, code)
        return [_result_of(folder, rank) for rank in range(nproc)]


def work(folder: Path) -> None:
    """Be one rank of a launch: call the function, leave what it returned."""
    with open(folder / "call", "rb") as file:
        spawn.prepare(pickle.load(file))
        fn, args = pickle.load(file)
    found = fn(*args)
    # If cloudpickle has pickled the call, it also unpickles objects that a notebook has defined.
    result = getattr(sys.modules.get("cloudpickle"), "dumps", pickle.dumps)(found)
    (folder / f"result.{os.environ['RANK']}").write_bytes(result)
