"""The list of what a program imports: names, in the user's cache folder.

The agent writes it, from what workers have noted (agent/workers/learned_names.h); the fork server
reads it, and adds what must not be imported before a fork. It is read within limits all the same.
"""

from __future__ import annotations

import contextlib
import os
import re

_FIRST_LINE = "ddprun preload 2"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,199}")
_NAMES_MAX = 20_000
_BYTES_MAX = 4 << 20
_SLOW_S = 1.0
_SLOW_MAX = 20


class Learned:
    """The list at a path; empty: there is none."""

    def __init__(self, path: str) -> None:
        self.path = path

    def _lines(self) -> list[str]:
        try:
            with open(self.path, encoding="utf-8", errors="surrogateescape") as file:
                lines = file.read(_BYTES_MAX).split("\n")
        except OSError:
            return []
        is_list = lines[0] == _FIRST_LINE and len(lines) > 1
        return lines[: 2 + _NAMES_MAX] if is_list else []

    def names(self) -> list[str]:
        """Return what was imported in earlier runs, in that order."""
        return [line for line in self._lines()[2:] if _NAME.fullmatch(line)]

    def forbidden(self) -> list[str]:
        """Return what must not be imported before a fork."""
        marked = [line[1:] for line in self._lines()[2:] if line.startswith("!")]
        return [name for name in marked if _NAME.fullmatch(name)]

    def set_before(self) -> list[str]:
        """Return the variables that had changed before a module was imported."""
        return [line[1:] for line in self._lines()[2:] if line.startswith("=")]

    def forbid(self, name: str) -> None:
        """Have later fork servers not import it."""
        first, program, *lines = self._lines() or [_FIRST_LINE, ""]
        if not self.path or "!" + name in lines:
            return
        kept = [line for line in lines if line not in ("", name)]
        self._write([first, program, *kept, "!" + name])

    def note_slow(self, seconds: dict[str, float]) -> None:
        """Keep the seconds of packages that take long, for ``ddprun doctor``."""
        lines = self._lines()
        if not self.path or not lines:
            return
        slow = sorted(seconds.items(), key=lambda each: -each[1])
        noted = [f"~{name} {took:.2f}" for name, took in slow if took > _SLOW_S]
        first, program, *names = lines
        kept = [line for line in names if line and not line.startswith("~")]
        noted = [line for line in noted if _NAME.fullmatch(line[1:].partition(" ")[0])]
        if noted or len(kept) < len([line for line in names if line]):
            self._write([first, program, *kept, *noted[:_SLOW_MAX]])

    def _write(self, lines: list[str]) -> None:
        aside = f"{self.path}.{os.getpid()}"
        text = "\n".join(lines) + "\n"
        try:
            os.makedirs(os.path.dirname(aside), mode=0o700, exist_ok=True)
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
            os.replace(aside, self.path)
        except OSError:  # The next one finds out by itself.
            with contextlib.suppress(OSError):
                os.unlink(aside)
