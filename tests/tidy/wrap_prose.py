#!/usr/bin/env python3
"""Fills the paragraphs and list items of Markdown files to 100 columns: wrap_prose.py FILE... Code, tables, headings and
the words themselves stay as they are."""
import re
import sys

COLUMNS = 100
# A code span stays whole; so does what is glued to it.
WORD = re.compile(r"(?:`[^`]*`|[^\s`])+|`")
MARKER = re.compile(r"( *)([*+-]|\d+\.) ")
NO_PROSE = re.compile(r"#{1,6} |\||>|\[[^]]+\]: |<|-{3,}$")


def filled(text, first, rest):
    """The words of `text` in lines that begin with `first`, then with `rest`."""
    lines, line = [], first
    for word in WORD.findall(text):
        # At the beginning of a line these would be a list, a heading or a table.
        glued = re.fullmatch(r"[*+#|>-]+|\d+\.|=+", word)
        if len(line) + len(word) + 1 > COLUMNS and line.strip() and line not in (first, rest):
            if glued:
                line, _, last = line.rpartition(" ")
                word = last + " " + word
            lines.append(line.rstrip())
            line = rest
        line += word if line in (first, rest) else " " + word
    return [*lines, line]


def wrapped(text):
    out, paragraph, first, rest, in_code = [], [], "", "", False

    def flush():
        nonlocal paragraph
        if paragraph:
            out.extend(filled(" ".join(paragraph), first, rest))
        paragraph = []

    for line in text.splitlines():
        stripped = line.strip()
        marker = MARKER.match(line)
        if stripped.startswith("```"):
            flush()
            in_code = not in_code
        if in_code or stripped.startswith("```") or not stripped or NO_PROSE.match(stripped):
            flush()
            out.append(line.rstrip() if not in_code else line)
        elif marker:
            flush()
            first, rest = marker.group(), " " * len(marker.group())
            paragraph = [line[marker.end():]]
        else:
            if not paragraph:
                indent = " " * (len(line) - len(line.lstrip()))
                first = rest = indent
            paragraph.append(stripped)
    flush()
    return "\n".join(out) + "\n"


def main():
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as f:
            text = f.read()
        if wrapped(text) != text:
            with open(path, "w", encoding="utf-8") as f:
                f.write(wrapped(text))


if __name__ == "__main__":
    main()
