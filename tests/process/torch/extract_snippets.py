#!/usr/bin/env python3
"""Writes the C++ blocks of a Markdown file, in their order, as one source file: extract_snippets.py PAGE SOURCE [N].

A block that begins with an #include begins another program, if there is a main() already; N says which of the
page's programs, from 1.
"""
import sys


def blocks(page):
    """Lists of lines, the first of which says where they come from."""
    inside = None
    with open(page, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            if line.startswith("```"):
                if inside:
                    yield inside
                inside = [f'#line {number + 1} "{page}"\n'] if line.strip() == "```cpp" else None
            elif inside:
                inside.append(line)


def programs(page):
    lines = []
    for block in blocks(page):
        if block[1].startswith("#include") and any(line.startswith("int main(") for line in lines):
            yield lines
            lines = []
        lines += block
    yield lines


def main():
    page, source, *which = sys.argv[1:]
    lines = list(programs(page))[int(which[0]) - 1 if which else 0]
    with open(source, "w", encoding="utf-8") as f:
        f.writelines(lines)


if __name__ == "__main__":
    main()
