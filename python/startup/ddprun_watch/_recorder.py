"""What torch's flight recorder has of this rank, in the few words that its agent asks for.

The recorder is torch's own: a ring of the latest collectives of each group, of NCCL and, from torch
2.8 on, of Gloo. It is read in its own process, as JSON; older torch has none, and then the line of
the script is all that is known.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Iterable
from types import FrameType
from typing import Any

CALLS_MAX = 8  # Per group, the latest.
GROUPS_MAX = 64
TEXT_MAX = 120
BUFFER = "2000"  # How many calls torch keeps; its own default, if it has one.

_STANDARD = os.path.dirname(os.__file__) + os.sep
_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep


def switch_on(c10d: Any, dump: str) -> None:
    """Have torch record, unless the user has decided about that. Before the first group."""
    if hasattr(c10d, "_dump_fr_trace"):
        names = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"
    else:
        names = "TORCH_NCCL_TRACE_BUFFER_SIZE", "", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
    size, older, file = names
    if older not in os.environ:
        os.environ.setdefault(size, BUFFER)
    if dump and "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" not in os.environ:
        # The file that torch itself writes when an operation of NCCL times out; it appends the
        # rank.
        os.environ.setdefault(file, os.path.join(os.path.dirname(dump), "nccl_trace_rank_"))


def dumps_of(torch: Any) -> dict[str, Any]:
    """Return what each of torch's recorders has, by the library that it watches."""
    c10d: Any = getattr(torch._C, "_distributed_c10d", None)
    found = {}
    if hasattr(c10d, "_dump_fr_trace_json"):
        found["gloo"] = json.loads(c10d._dump_fr_trace_json())
    if hasattr(c10d, "_dump_nccl_trace_json") and torch.cuda.is_initialized():
        found["nccl"] = json.loads(c10d._dump_nccl_trace_json())
    return found


def _text(value: Any) -> str:
    return str(value)[:TEXT_MAX]


def _operands(entry: dict[str, Any]) -> str:
    """Return sizes and type of what goes in, such as "[8, 64] Float"."""
    sizes = ", ".join(str(size) for size in entry.get("input_sizes", ())[:4])
    types = entry.get("input_dtypes", ())
    return _text(f"{sizes} {types[0] if types else ''}".strip())


def _call(entry: dict[str, Any]) -> dict[str, Any]:
    name = str(entry.get("profiling_name", ""))
    return {
        "number": int(entry["collective_seq_id"]),
        "op": _text(name.split(":", 1)[-1] or "a collective"),
        "of": _operands(entry),
        "open": not entry.get("retired") and entry.get("state") != "completed",
    }


def _own_groups() -> list[str]:
    """Return the names of the groups that this rank is in; a rank may have called nothing yet."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)
    return [_text(name) for name in dict(getattr(world, "pg_names", {})).values()]


def calls_by_group(dumps: Iterable[dict[str, Any]], names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the latest collectives of each group, oldest first. Pure. `names`: of all groups."""
    groups: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in names}
    for dump in dumps:
        for entry in dump.get("entries", ()):
            if entry.get("is_p2p"):
                continue
            call = _call(entry)
            # Coalesced operations have one number: the last one counts.
            groups.setdefault(_text(entry["process_group"][0]), {})[call["number"]] = call
    return [
        {"name": name, "calls": [calls[number] for number in sorted(calls)[-CALLS_MAX:]]}
        for name, calls in list(groups.items())[-GROUPS_MAX:]
    ]


def _package() -> str:
    """Return the folder of the program's own package ddprun, if it has imported that."""
    file = getattr(sys.modules.get("ddprun"), "__file__", None)
    return os.path.dirname(file) + os.sep if file else _OWN


def _is_users(path: str) -> bool:
    if (
        path.startswith(("<", _OWN, _package()))
        or "site-packages" in path
        or "dist-packages" in path
    ):
        return False
    return not path.startswith(_STANDARD)


def place(frames: list[tuple[str, int, str]]) -> str:
    """Return the innermost line of the user's own code, such as "train.py:27 in step". Pure."""
    if not frames:
        return ""
    own = [frame for frame in frames if _is_users(frame[0])] or frames
    path, line, function = own[-1]
    inside = "" if function == "<module>" else " in " + function
    return _text(f"{os.path.basename(path)}:{line}{inside}")


def _frames(of: traceback.StackSummary) -> list[tuple[str, int, str]]:
    return [(frame.filename, frame.lineno or 0, frame.name) for frame in of]


def _stack(frame: FrameType | None) -> traceback.StackSummary:
    # Without source lines: files may be on a disk that does not answer.
    return traceback.StackSummary.extract(traceback.walk_stack(frame), lookup_lines=False)


def _raised() -> list[tuple[str, int, str]]:
    """Return the frames of the exception by which the program ends, the outermost first, if any."""
    failed = getattr(sys, "last_traceback", None)
    return _frames(traceback.StackSummary.extract(traceback.walk_tb(failed), lookup_lines=False))


def _where() -> str:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return place(_raised() or list(reversed(_frames(_stack(frame)))))


def _all_stacks() -> dict[str, list[str]]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = {
        names.get(ident, str(ident)): _frames(_stack(frame))
        for ident, frame in sys._current_frames().items()
    }
    if raised := _raised():  # The main thread has left these frames, and is in this file.
        frames[threading.main_thread().name] = raised[::-1]
    return {
        thread: [f"{path}:{line} {name}" for path, line, name in stack]
        for thread, stack in frames.items()
    }


def record(torch: Any, dump: str) -> dict[str, Any]:
    """Return where this rank is; write all that is known of that to the file `dump`, if any."""
    dumps = dumps_of(torch)
    here = {"where": _where(), "groups": calls_by_group(dumps.values(), _own_groups())}
    if dump:
        whole = {**here, "torch": torch.__version__, "stacks": _all_stacks(), "recorders": dumps}
        with contextlib.suppress(OSError):  # The disk may be full; the agent knows it all the same.
            with open(dump + ".new", "w", encoding="utf-8") as file:
                json.dump(whole, file)
            os.replace(dump + ".new", dump)
    return here
