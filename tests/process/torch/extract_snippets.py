#!/usr/bin/env python3
"""Writes the C++ blocks of a Markdown file, in their order, as one source file: extract_snippets.py PAGE SOURCE [N].

A block with a main() ends a program; N says which of the page's programs, from 1.
"""
import sys


def programs(page):
    inside, lines, is_over = False, [], False
    with open(page, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            if line.startswith("```"):
                inside = line.strip() == "```cpp"
                if inside and is_over:
                    yield lines
                    lines, is_over = [], False
                lines.append(f'#line {number + 1} "{page}"\n' if inside else "")
            elif inside:
                lines.append(line)
                is_over = is_over or line.startswith("int main(")
    yield lines


def main():
    page, source, *which = sys.argv[1:]
    lines = list(programs(page))[int(which[0]) - 1 if which else 0]
    with open(source, "w", encoding="utf-8") as f:
        f.writelines(lines)


if __name__ == "__main__":
    main()
