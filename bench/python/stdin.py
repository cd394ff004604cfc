#!/usr/bin/env python3
"""What workers get from standard input under ddprun and under torchrun: a table, not a time.

    DDPRUN_BIN=build/dev/bin TORCHRUN=venv/bin/torchrun bench/python/stdin.py

A worker answers with the line that it has read; "-" is the end of the file. On a terminal, "prompt" means that the text of
input() was on the screen while the worker waited, and "debugger" that pdb took a command. Without TORCHRUN only ddprun's
column is filled.
"""

import os
import pty
import select
import subprocess
import sys
import tempfile
import time

DDPRUN = os.path.join(os.environ.get("DDPRUN_BIN", "build/dev/bin"), "ddprun")
PATIENCE = 60

READS = """import os, sys
line = sys.stdin.readline()
print("answer", os.environ["LOCAL_RANK"], line.strip() or "-", flush=True)
"""
ASKS = """import os
if os.environ["LOCAL_RANK"] == "0":
    print("answer 0", input("PROMPT> "), flush=True)
"""
DEBUGS = """import os
value = 41
if os.environ["LOCAL_RANK"] == "0":
    breakpoint()
print("answer", os.environ["LOCAL_RANK"], value, flush=True)
"""


def answers(text):
    found = set()
    for line in text.splitlines():
        words = line[line.find("answer "):].split() if "answer " in line else []
        if len(words) == 3 and words[1].isdigit():
            found.add(f"rank {words[1]}: {words[2]}")
    return ", ".join(sorted(found)) or "no answer"


def piped(launcher, script, stdin):
    options = {"input": "line\n"} if stdin == "pipe" else {}
    words = [*launcher, script]
    if stdin == "closed":
        words = ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *words]
    with open("/etc/hostname" if stdin == "file" else os.devnull, encoding="utf-8") as file:
        try:
            done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE,
                                  check=False, **(options or {"stdin": file}))
        except subprocess.TimeoutExpired:
            return f"nothing in {PATIENCE} s"
    return answers(done.stdout)


def on_terminal(launcher, script, expect, types):
    """What is on the terminal until `expect` is, and after `types` was typed."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(launcher[0], [*launcher, script])
    shown, seen_at, until = "", 0.0, time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                part = os.read(terminal, 65536)
            except OSError:
                break
            if not part:
                break
            shown += part.decode(errors="replace")
        if not seen_at and expect in shown:
            seen_at = time.monotonic()
            os.write(terminal, types.encode())
    else:
        os.write(terminal, b"\x03")
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    if not seen_at:
        return "nothing to answer on the screen"
    return f"{answers(shown)} (exit code {os.waitstatus_to_exitcode(status)})"


def cases(launcher, folder):
    def script(text):
        path = os.path.join(folder, "worker.py")
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        return path

    for count in (1, 2):
        for stdin in ("pipe", "file", "closed"):
            yield f"{stdin}, {count} worker{'s' * (count > 1)}", lambda n=count, s=stdin: piped(
                launcher(n), script(READS), s)
    for count in (1, 2):
        yield f"prompt on a terminal, {count}", lambda n=count: on_terminal(launcher(n), script(ASKS), "PROMPT> ", "yes\n")
        yield f"debugger on a terminal, {count}", lambda n=count: on_terminal(
            launcher(n), script(DEBUGS), "(Pdb)", "value = 42\nc\n")
    yield "Ctrl-D at a prompt, 1", lambda: on_terminal(launcher(1), script(READS), "", "\x04")
    yield "Ctrl-C at a prompt, 1", lambda: on_terminal(launcher(1), script(ASKS), "PROMPT> ", "\x03")


def main():
    torchrun = os.environ.get("TORCHRUN")
    columns = {"ddprun": lambda n: [DDPRUN, "--nproc-per-node", str(n)]}
    if torchrun:
        columns["torchrun"] = lambda n: [torchrun, "--nproc-per-node", str(n)]
    os.environ["PYTHON_EXEC"] = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        tables = {name: list(cases(launcher, folder)) for name, launcher in columns.items()}
        print("| standard input | " + " | ".join(columns) + " |")
        print("|---|" + "---|" * len(columns))
        for i, (what, _) in enumerate(tables["ddprun"]):
            print(f"| {what} | " + " | ".join(table[i][1]() for table in tables.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
