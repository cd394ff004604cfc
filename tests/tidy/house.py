#!/usr/bin/env python3
"""Measures the source as a house: house.py [ROOT]. How many files and how long, folders with many
names, small modules, the words of comments and of identifiers, and the places a flag stands in.
It judges nothing; what must hold is in tidy_test. --list also names what it counted."""

import argparse
import collections
import re
import statistics
import subprocess
from pathlib import Path

COMPONENTS = ("common", "rendezvous", "agent", "launcher", "worker_sdk")
SUFFIXES = (".h", ".cc", ".cu", ".c")
SMALL = 40  # Lines of code.
NAMES = 15  # In one folder.

TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|"""
    r"""(?P<raw>R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)")|"""
    r"""(?P<text>"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+')""",
    re.S,
)
PYTHON_TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*)|(?P<doc>\"\"\".*?\"\"\")|"""
    r"""(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')""",
    re.S,
)
# As a machine's deeds: a process receives, sends, reports.
ODD_WORD = re.compile(
    r"\b(who|whoever|whom|whose|nobody|somebody|everybody|say|says|said|saying|"
    r"tell|tells|told|telling|hear|hears|heard|hearing)\b",
    re.I,
)
# Parts of identifiers for the same deeds, and the names that the house's review lists.
ODD_PARTS = set(
    "who whoever whose nobody somebody everybody say says said tell tells told hear hears heard "
    "ear ears talk talks speak speaks spoke spoken speaker newborn birth births born wish wishes "
    "patient patients doubt doubts impatience impatient hopeless untold unsaid wordless".split()
)
ODD_NAMES = set("words_are_there WordsCame becomes_plain at_stop_ shared_bell AgentsWord".split())
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


class Source:
    """One file: its code without comments and literals, its comments, its lines of code."""

    def __init__(self, path, text, is_python=False):
        self.path = path
        self.text = text
        self.comments = []
        self.without_comments = self._blanked(text, is_python, literals=False)
        self.comments = []
        self.code = self._blanked(text, is_python, literals=True)
        self.lines = sum(1 for line in self.without_comments.split("\n") if line.strip())

    def _blanked(self, text, is_python, literals):
        def replaced(found):
            if found.group("comment"):
                self.comments.append(found.group("comment"))
            elif is_python and found.group("doc"):
                before = text[: found.start()].rstrip()
                if before and before[-1] not in ":\n" and not before.endswith('"""'):
                    return found.group()
                self.comments.append(found.group("doc"))
            elif not literals:
                return found.group()
            return re.sub(r"[^\n]", " ", found.group())

        return (PYTHON_TOKEN if is_python else TOKEN).sub(replaced, text)


def sources(root):
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z"], check=True, stdout=subprocess.PIPE, text=True
    )
    cxx, python = [], []
    for path in filter(None, listed.stdout.split("\0")):
        if not (root / path).is_file():
            continue  # Deleted, and not committed yet.
        if path.startswith("python/") and path.endswith(".py"):
            python.append(Source(path, (root / path).read_text(), is_python=True))
        elif path.split("/")[0] in COMPONENTS and path.endswith(SUFFIXES):
            cxx.append(Source(path, (root / path).read_text()))
    return cxx, python


def crowded(files):
    """The folders of more than NAMES modules: x.h and x.cc are one."""
    names = collections.defaultdict(set)
    for file in files:
        path = Path(file.path)
        names[str(path.parent)].add(path.stem)
    return sorted((len(all_), folder) for folder, all_ in names.items() if len(all_) > NAMES)[::-1]


def modules(files):
    """Lines of code by path without suffix."""
    lines = collections.Counter()
    for file in files:
        lines[str(Path(file.path).with_suffix(""))] += file.lines
    return lines


def odd_words(files):
    words = odd = 0
    where = []
    for file in files:
        for comment in file.comments:
            words += len(re.findall(r"[A-Za-z][A-Za-z']*", comment))
            for found in ODD_WORD.finditer(comment):
                odd += 1
                where.append(f"{file.path}: {found.group()}: {' '.join(comment.split())}")
    return words, odd, where


def odd_names(files):
    uses = collections.Counter()
    for file in files:
        for name in re.findall(r"[A-Za-z_]\w*", file.code):
            parts = {part.lower() for part in PART.findall(name)}
            if parts & ODD_PARTS or name in ODD_NAMES:
                uses[name] += 1
    return uses


def places_of_flags(cxx):
    """Lines that declare a flag of ddprun, by flag: its row, what reads it or lists it by its name,
    and the member of Options that it sets. Effects, messages and command lines are no places."""
    by_path = {file.path: file.without_comments for file in cxx}
    row = re.compile(r'\{\s*(?:k\w+,\s*)?"([a-z][a-z0-9-]*)",(?!\s*[\w:]*\bk[A-Z]\w*\s*\})')
    tables = ("launcher/options/", "common/options/")
    other = re.compile(r".*/(doctor|replay|slurm)_options\.cc")  # Tables of other commands.
    texts = [t for path, t in by_path.items() if path.startswith(tables) and not other.match(path)]
    places = {}
    for flag in sorted(set(row.findall(by_path["launcher/options/flags.cc"]))):
        name = flag.replace("-", "_")
        member = re.compile(rf"^\s+[\w:<>, ]+\s{name}\b *(=[^;]*|\{{[^;]*)?;", re.M)
        places[flag] = sum(text.count(f'"{flag}"') for text in texts)
        places[flag] += len(member.findall(by_path["launcher/options/options.h"]))
    return places


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", default=".", type=Path)
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    cxx, python = sources(given.root)
    details = []

    def row(name, *values):
        print(f"{name:<52}" + "".join(f"{value:>12}" for value in values))

    row("", "C++", "Python")
    row("product files", len(cxx), len(python))
    row("lines of code", *(sum(f.lines for f in files) for files in (cxx, python)))
    both = [[f.lines for f in files] for files in (cxx, python)]
    row("lines of a file, median", *(int(statistics.median(lines)) for lines in both))
    row("lines of a file, 90 %", *(sorted(lines)[len(lines) * 9 // 10] for lines in both))
    row("lines of a file, most", *(max(lines) for lines in both))
    row(f"files of at most {SMALL} lines", *(sum(x <= SMALL for x in lines) for lines in both))
    whole = [modules(files) for files in (cxx, python)]
    row("modules (x.h and x.cc are one)", *(len(each) for each in whole))
    row("lines of a module, median", *(int(statistics.median(each.values())) for each in whole))
    small = [[name for name, lines in each.items() if lines <= SMALL] for each in whole]
    row(f"modules of at most {SMALL} lines", *(len(each) for each in small))
    details += [f"small: {whole[i][name]:>3} {name}" for i in (0, 1) for name in sorted(small[i])]
    folders = [crowded(files) for files in (cxx, python)]
    row(f"folders of more than {NAMES} names", *(len(each) for each in folders))
    details += [f"crowded: {count} {folder}" for each in folders for count, folder in each]
    words = [odd_words(files) for files in (cxx, python)]
    row("words of comments", *(each[0] for each in words))
    row("odd words in them", *(each[1] for each in words))
    row("odd words in 1,000", *(f"{1000 * each[1] / max(each[0], 1):.1f}" for each in words))
    details += [f"word: {where}" for each in words for where in each[2]]
    names = [odd_names(files) for files in (cxx, python)]
    row("odd identifiers", *(len(each) for each in names))
    row("uses of them", *(sum(each.values()) for each in names))
    details += [f"name: {uses:>3} {name}" for each in names for name, uses in sorted(each.items())]
    places = places_of_flags(cxx)
    row("flags of ddprun", len(places))
    row("places of a flag, median", int(statistics.median(places.values())))
    row("places of a flag, most", max(places.values()))
    details += [f"flag: {count} --{flag}" for flag, count in sorted(places.items()) if count > 2]
    if given.list:
        print("\n".join(details))


if __name__ == "__main__":
    main()
