#!/usr/bin/env python3
"""Plants the defects of mutants.txt one at a time and says which test turns red.

    tests/mutation/mutate.py [--only WORDS] [--missing] [--part 1/2] [--list] [--file sim_defects.txt]
    tests/mutation/mutate.py --check       plants none; fails if a text of one of the lists is not in the source once

Works on a copy of the tree in build/mutants, so that yours is never touched; needs what deploy/test.sh installs. A
defect that no test notices, or whose text is no longer in the source, fails the whole run. Takes about 20 s a defect.
What mutants.txt's defects turned red, and when, is kept in RESULTS.md beside it: rows of those that were run are new.
"""
import argparse
import datetime
import fcntl
import functools
import json
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TREE = os.path.join(ROOT, "build", "mutants", "tree")
BUILD = os.path.join(TREE, "build", "dev")  # As in every checkout: what ccache has of build/dev need not be compiled again.


class Mutant:
    def __init__(self, what, file, tests, old, new):
        self.what, self.file, self.tests, self.old, self.new = what, file, tests, old, new


def read_mutants(path):
    """Blocks: "# what", "file: tests", then "- old" and "+ new" lines."""
    mutants = []
    with open(path) as f:
        blocks = [b for b in f.read().split("\n\n") if b.strip() and not b.startswith("//")]
    for block in blocks:
        lines = block.strip("\n").split("\n")
        file, tests = lines[1].split(": ")
        side = lambda mark: "\n".join(line[2:] for line in lines[2:] if line[0] == mark)
        mutants.append(Mutant(lines[0][2:], file, tests.split(), side("-"), side("+")))
    return mutants


def copy_tree():
    """Only what changed is written, so that what was built stays built."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [f for f in folders if f not in ("build", ".git", "__pycache__")]
        to = os.path.join(TREE, os.path.relpath(folder, ROOT))
        os.makedirs(to, exist_ok=True)
        for name in files:
            source, target = os.path.join(folder, name), os.path.join(to, name)
            with open(source, "rb") as f:
                text = f.read()
            if not os.path.exists(target) or open(target, "rb").read() != text:
                shutil.copyfile(source, target)
                shutil.copymode(source, target)


def commands():
    """What each test runs, as ctest knows it; nothing for a program that was never built here."""
    known = subprocess.run(["ctest", "--test-dir", BUILD, "--show-only=json-v1"], capture_output=True, text=True, check=True)
    return {test["name"]: test.get("command", []) for test in json.loads(known.stdout)["tests"]}


def is_script(command):
    return any(word.endswith((".py", ".sh")) for word in command)


def programs_of(test, command):
    """What has to be built for it: the programs that it names, and those that scripts find themselves."""
    if not command:
        return {test} if not test[-1].isdigit() else {re.sub(r"_\d+$", "_test", test), "bin/ddprun"}  # c_calls_3: its ranks
    programs = {os.path.relpath(word, BUILD) for word in command if word.startswith(BUILD + os.sep)}
    if is_script(command):
        script = next(word for word in command if word.endswith((".py", ".sh")))
        with open(script) as f:  # Of this tree, as the build folder is.
            named = re.findall(r'"tests", "([\w.]+)"', f.read())
        programs |= {"bin/ddprun", "bin/ddprun-rendezvous", "bin/ddprunctl", *(f"tests/{name}" for name in named)}
        if "python" in script or test in ("system_linking", "system_abi"):
            programs.add("worker_sdk/all")
    if test in ("system_train", "system_train_options", "system_event_file"):
        programs.add("bin/train")
    return programs


def build(tests):
    known = commands()
    programs = set().union(*(programs_of(test, known[test]) for test in tests))
    return subprocess.run(["ninja", "-C", BUILD, *sorted(programs)], capture_output=True, text=True)


@functools.cache
def is_green(test):
    """Of the source as it is. A script may need what is not built here: then it tells nothing."""
    return run(test) == "green"


def run(test):
    """"green", or which of its cases turned red."""
    done = subprocess.run(["ctest", "--test-dir", BUILD, "-R", f"^{test}$", "--output-on-failure"],
                          capture_output=True, text=True, errors="replace", env={**os.environ, "DDPRUN_FAILFAST": "1"})
    if done.returncode == 0:
        return "green"
    if "***Timeout" in done.stdout:
        return "hangs"
    seed = re.search(r"seed (\d+)", done.stdout)
    if test == "sim_test":
        return f"seed {seed.group(1)}" if seed else "red"
    if script := re.search(r"^(?:FAIL|ERROR): (\w+)", done.stdout, re.M):
        return script.group(1)
    cases = re.findall(r"-{70,}\n\s*(\S.*?)\n", done.stdout)
    named = [c for c in cases if ": " in c]
    return named[0] if named else "red"


def try_mutant(mutant):
    path = os.path.join(TREE, mutant.file)
    with open(path) as f:
        text = f.read()
    if text.count(mutant.old) != 1:
        return {"the source": f"has the text {text.count(mutant.old)} times"}, False
    known = commands()
    if scripts := [test for test in mutant.tests if is_script(known[test])]:
        build(scripts)
        if red := [test for test in scripts if not is_green(test)]:
            return {red[0]: "red without the defect, too"}, False
    try:
        with open(path, "w") as f:
            f.write(text.replace(mutant.old, mutant.new))
        built = build(mutant.tests)
        if built.returncode != 0:
            print(built.stdout[-2000:], file=sys.stderr)
            return {"the compiler": "refuses it"}, False
        results = {test: run(test) for test in mutant.tests}
    finally:
        with open(path, "w") as f:
            f.write(text)
    return results, any(r != "green" for r in results.values())


class Results:
    """RESULTS.md: one row a defect of the list, in its order; rows of defects that are gone go too."""
    PATH = os.path.join(HERE, "RESULTS.md")
    HEAD = ("# What planted defects turn red\n\n"
            "Written by mutate.py; each row is of the last time that its defect was planted.\n\n"
            "| file | defect | turned red | run |\n|---|---|---|---|\n")

    def __init__(self, mutants):
        self._mutants = mutants
        self._rows = {}
        if os.path.exists(self.PATH):
            with open(self.PATH) as f:
                rows = [line.strip("|\n ").split(" | ") for line in f if line.startswith("| ")]
            self._rows = {row[1]: row for row in rows[1:] if len(row) == 4}

    def has(self, mutant):
        return mutant.what in self._rows

    def note(self, mutant, words):
        self._rows[mutant.what] = [mutant.file, mutant.what, words.replace("|", "/"), str(datetime.date.today())]
        with open(self.PATH, "w") as f:
            f.write(self.HEAD)
            f.writelines(f"| {' | '.join(self._rows[m.what])} |\n" for m in self._mutants if m.what in self._rows)


def strays():
    for name in ("mutants.txt", "sim_defects.txt"):
        seen = set()
        for mutant in read_mutants(os.path.join(HERE, name)):
            if mutant.what in seen:
                yield f"{name}: '{mutant.what}' stands there twice"
            seen.add(mutant.what)
            with open(os.path.join(ROOT, mutant.file)) as f:
                times = f.read().count(mutant.old)
            if times != 1:
                yield f"{name}: {mutant.file} has the text of '{mutant.what}' {times} times"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="defects whose description contains these words")
    parser.add_argument("--missing", action="store_true", help="defects without a row in RESULTS.md")
    parser.add_argument("--part", default="1/1", help="I/N: the I-th of N parts, for several copies of the repository at once")
    parser.add_argument("--file", default="mutants.txt", help="another list of defects, in the same folder")
    parser.add_argument("--list", action="store_true", help="show them, plant none")
    parser.add_argument("--check", action="store_true", help="see that all texts are in the source, plant none")
    options = parser.parse_args()
    if options.check:
        found = list(strays())
        print("\n".join(found) or "every planted defect meets the source")
        return 1 if found else 0
    listed = read_mutants(os.path.join(HERE, options.file))
    mutants = [m for m in listed if (options.only or "") in m.what]
    results_file = Results(listed) if options.file == "mutants.txt" else None
    if options.missing and results_file:
        mutants = [m for m in mutants if not results_file.has(m)]
    part, parts = map(int, options.part.split("/"))
    mutants = mutants[part - 1::parts]
    if options.list:
        print("\n".join(f"{m.file}: {m.what}" for m in mutants))
        return 0
    if not (alone := only_user_of_the_copy()):
        print(f"another mutate.py plants its defects in {TREE}: wait for it, or clone the repository", file=sys.stderr)
        return 2
    with alone:
        return plant(mutants, results_file)


def only_user_of_the_copy():
    """An open file that says so until it is closed; None if there is another."""
    os.makedirs(TREE, exist_ok=True)
    lock = open(os.path.join(TREE, "..", "lock"), "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def plant(mutants, results_file):
    """The exit status."""
    copy_tree()
    # Some defects make a test wait for ever: that is noticed, too.
    subprocess.run(["cmake", "--preset", "dev", "-DDDPRUN_TEST_TIMEOUT=300"], cwd=TREE, check=True,
                   stdout=subprocess.DEVNULL)
    survivors = 0
    for mutant in mutants:
        results, caught = try_mutant(mutant)
        survivors += not caught
        words = "; ".join(f"{test}: {result}" for test, result in results.items() if result != "green")
        words = words if caught else f"**nobody noticed** {words}".strip()
        print(f"| {mutant.file} | {mutant.what} | {words} |", flush=True)
        if results_file:
            results_file.note(mutant, words)
    print(f"{len(mutants)} planted, {survivors} not noticed", file=sys.stderr)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
