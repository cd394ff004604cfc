#!/usr/bin/env python3
"""Writes the C++ blocks of a Markdown file, in their order, as one source file: extract_snippets.py PAGE SOURCE."""
import sys


def main():
    page, source = sys.argv[1:]
    inside, lines = False, []
    with open(page, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            if line.startswith("```"):
                inside = line.strip() == "```cpp"
                lines.append(f'#line {number + 1} "{page}"\n' if inside else "")
            elif inside:
                lines.append(line)
    with open(source, "w", encoding="utf-8") as f:
        f.writelines(lines)


if __name__ == "__main__":
    main()
