"""What a program had imported by the end of its last run: names, in the user's cache folder.

Only modules of the interpreter's own library and of site-packages: a program's own files change.
Files that are kept here come from the user; they are read within limits all the same.
"""

from __future__ import annotations

import binascii
import contextlib
import os
import re
import site
import sys

from ._command import Command

_FIRST_LINE = "ddprun preload 1"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,199}")
_NAMES_MAX = 20_000
_BYTES_MAX = 1 << 20
_NOT_LEARNED = ("__main__", "sitecustomize", "usercustomize", "ddprun_watch", "ddprun_preload")


def _path(command: Command) -> str:
    """Return where the list of this program is kept; empty: nowhere."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(base):
        return ""
    key = command.key().encode(errors="surrogateescape")
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", os.path.basename(command.program))[:60]
    return os.path.join(base, "ddprun", "preload", f"{name}-{binascii.crc32(key):08x}.txt")


def _read(command: Command) -> list[str]:
    """Return the lines that were kept: names, and "!name" for those that are forbidden."""
    try:
        with open(_path(command), encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read(_BYTES_MAX).split("\n")
    except OSError:
        return []
    if lines[:2] != [_FIRST_LINE, command.key()]:
        return []
    return [line for line in lines[2 : 2 + _NAMES_MAX] if _NAME.fullmatch(line.lstrip("!"))]


def _write(command: Command, lines: list[str]) -> None:
    path = _path(command)
    if not path:
        return
    text = "\n".join([_FIRST_LINE, command.key(), *lines[:_NAMES_MAX]]) + "\n"
    aside = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        os.replace(aside, path)
    except OSError:  # The next run can learn it; this one continues.
        with contextlib.suppress(OSError):
            os.unlink(aside)


def names(command: Command) -> list[str]:
    """Return what was imported in an earlier run, in that order."""
    return [line for line in _read(command) if not line.startswith("!")]


def forbidden(command: Command) -> list[str]:
    """Return what must not be imported before a fork."""
    return [line[1:] for line in _read(command) if line.startswith("!")]


def forbid(command: Command, name: str) -> None:
    lines = _read(command)
    if "!" + name not in lines:
        _write(command, [*lines, "!" + name])


def _is_preloadable(name: str, folders: tuple[str, ...]) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if spec is None or spec.name != name or name.partition(".")[0] in _NOT_LEARNED:
        return False
    return isinstance(spec.origin, str) and spec.origin.startswith(folders)


def _preloadable(names: list[str]) -> list[str]:
    folders = [os.path.dirname(os.__file__), *site.getsitepackages()]
    user = site.getusersitepackages() if site.ENABLE_USER_SITE else None
    prefixes = tuple(folder + os.sep for folder in [*folders, user] if folder)
    return [name for name in names if _is_preloadable(name, prefixes)]


def learn(argv: list[bytes], names: list[str]) -> None:
    """Keep what a program with this command had imported, with what is known of it."""
    command = Command(argv)
    before = _read(command)
    known = {line.lstrip("!") for line in before}
    added = [name for name in _preloadable(names) if name not in known]
    if added:
        _write(command, before + added)
