"""What a program draws on a terminal of a given width, and the same as HTML."""

import fcntl
import html
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

COLOURS = {"31": "#cd3131", "32": "#0f9d58", "33": "#b58900", "34": "#3b8eea", "36": "#11a8cd", "90": "#8a8f98", "91": "#f14c4c",
           "93": "#e5c07b", "94": "#6fb3ff"}
PATIENCE = 60


def drawn(argv, columns, lines=40, env=None, until=None, keys=(), end=b"q", cwd=None):
    """All bytes that `argv` writes to a terminal until it ends; with `until`, a text, it is sent `keys` and `end` once that is there."""
    main_end, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    program = subprocess.Popen(argv, stdin=other, stdout=other, stderr=other, cwd=cwd, close_fds=True, start_new_session=True,
                               env={**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", "COLUMNS": "", **(env or {})})
    os.close(other)
    seen, deadline, waits = b"", time.monotonic() + PATIENCE, list(until or [])
    try:
        while time.monotonic() < deadline:
            if select.select([main_end], [], [], 0.1)[0]:
                try:
                    seen += os.read(main_end, 1 << 16)
                except OSError:
                    break  # It has ended.
            elif program.poll() is not None:
                break
            if until and not waits:
                continue
            if waits and waits[0].encode() in seen:
                waits.pop(0)
                if waits or not until:
                    continue
                for key in keys:
                    os.write(main_end, key)
                    time.sleep(0.5)
                    while select.select([main_end], [], [], 0.3)[0]:
                        seen += os.read(main_end, 1 << 16)
                before = seen
                os.write(main_end, end)
                seen = before
        else:
            raise TimeoutError(f"{argv} does not end: {seen[-2000:]!r}")
    finally:
        if program.poll() is None:
            program.terminate()
        program.wait()
        os.close(main_end)
    return seen.decode(errors="replace")


def screen_of(text):
    """The lines of what was drawn: the last whole frame of a program that redraws, else all."""
    frames = [part.split("\x1b[J")[0] for part in text.split("\x1b[H")[1:] if "\x1b[J" in part]
    if frames:
        text = frames[-1]
    lines = []
    for line in text.replace("\x1b[K", "").split("\n"):
        line = line.rstrip("\r")
        lines.append(line[line.rfind("\r") + 1:])
    while lines and not plain(lines[-1]).strip():
        lines.pop()
    return lines


def wrapped(lines, columns):
    """Lines as a terminal shows them that are longer than it is wide."""
    result = []
    for line in lines:
        here, width = "", 0
        for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z])", line):
            if part.startswith("\x1b"):
                here += part
                continue
            for sign in part:
                if width == columns:
                    result.append(here)
                    here, width = "", 0
                here, width = here + sign, width + 1
        result.append(here)
    return result


def plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def as_html(lines, columns, dark=True):
    """A page that looks like that terminal."""
    body = []
    for line in lines:
        spans, classes, colour = [], set(), None
        for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z])", line):
            order = re.fullmatch(r"\x1b\[([0-9;]*)m", part)
            if order:
                for code in (order.group(1) or "0").split(";"):
                    if code in ("", "0"):
                        classes, colour = set(), None
                    elif code in COLOURS:
                        colour = COLOURS[code]
                    elif code in ("1", "2", "7"):
                        classes.add({"1": "b", "2": "d", "7": "r"}[code])
            elif part and not part.startswith("\x1b"):
                style = f' style="color:{colour}"' if colour else ""
                spans.append(f'<span class="{" ".join(sorted(classes))}"{style}>{html.escape(part)}</span>')
        body.append("".join(spans))
    ink, paper = ("#d7dae0", "#0f1215") if dark else ("#16191d", "#ffffff")
    return f"""<!doctype html><meta charset="utf-8"><title>a terminal of {columns} columns</title>
<style>body{{margin:0;background:{paper};color:{ink}}}pre{{margin:0;padding:10px 12px;width:{columns}ch;box-sizing:content-box;
font:13px/1.3 "DejaVu Sans Mono",monospace;font-variant-ligatures:none}}.b{{font-weight:700}}.d{{opacity:.65}}
.r{{background:{ink};color:{paper}}}</style><pre>{chr(10).join(body)}</pre>"""
