"""Writes ``ddprun/_c_api.py``, the C interface for ctypes, from the headers of the C interface.

Run it after a change of ``worker_sdk/include/ddprun/c``::

    python3 python/generate_c_api.py

The result is committed, so that the package runs from a source tree without a build;
``tests/python/c_api_test.py`` fails if it is not what the headers give. Two rules make a header
readable here: one declaration ends with one semicolon, and a struct is ``typedef struct {...}``.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterable
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
HEADERS = _ROOT / "worker_sdk/include/ddprun/c"
RESULT = _ROOT / "python/ddprun/_c_api.py"

# Ordered by dependencies; others follow by name.
_FIRST = ("c_base.h", "c_group.h", "c_elastic.h")
_WIDTH = 100

_SCALARS = {
    "char": "c_char",
    "double": "c_double",
    "int": "c_int",
    "int32_t": "c_int32",
    "int64_t": "c_int64",
    "size_t": "c_size_t",
    "uint32_t": "c_uint32",
    "uint64_t": "c_uint64",
}

_FUNCTION_POINTER = re.compile(r"(?:typedef )?(\w+) \(\*(\w+)\)\((.*)\)")
_STRUCT = re.compile(r"typedef struct \{(.*)\} ddprun_(\w+)", re.S)
_CONSTANT = re.compile(r"DDPRUN_(\w+)\s*=\s*(-?\d+)")
_DEFINITION = re.compile(r"^#define DDPRUN_(\w+) +(\(.*\)|-?\d+)$", re.M)


def read_headers() -> list[str]:
    """Return the text of each header without comments, in the order of dependencies."""
    names = sorted(path.name for path in HEADERS.glob("c_*.h"))
    names = [*_FIRST, *(name for name in names if name not in _FIRST)]
    texts = [(HEADERS / name).read_text(encoding="utf-8") for name in names]
    return [re.sub(r"/\*.*?\*/", "", text, flags=re.S) for text in texts]


def _declarations(text: str) -> Iterable[str]:
    """Yield the declarations of a header, each on one line, without their semicolons."""
    text = re.sub(r"^#(?:.*\\\n)*.*$", "", text, flags=re.M)
    text = re.sub(r'extern "C" \{|^\}\s*$', "", text, flags=re.M)
    depth, first = 0, 0
    for at, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if character == ";" and depth == 0:
            yield " ".join(text[first:at].split())
            first = at + 1


def _class_name(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


class Interface:
    """What the headers declare, as source text of Python."""

    def __init__(self) -> None:
        self.constants: dict[str, int] = {}
        self.types: list[str] = []  # Source of structs and of types of functions.
        self.structs: dict[str, list[tuple[str, str]]] = {}  # Fields: name, type.
        self.functions: dict[str, tuple[str, list[str]]] = {}
        self._scalars = dict(_SCALARS)
        self._pointees: dict[str, str] = {}  # C name of a struct -> its class.

    def read(self, text: str) -> None:
        """Add a header."""
        for name, value in _DEFINITION.findall(text):
            self.constants[name] = _integer(value)
        for declaration in _declarations(text):
            self._add(declaration)

    def _add(self, declaration: str) -> None:
        if declaration.startswith("enum"):
            self.constants.update((name, int(n)) for name, n in _CONSTANT.findall(declaration))
        elif struct := _STRUCT.fullmatch(declaration):
            self._add_struct(struct[2], struct[1])
        elif function := _FUNCTION_POINTER.fullmatch(declaration):
            self._add_function_type(function[2], function[1], function[3])
        elif alias := re.fullmatch(r"typedef (\w+) (ddprun_\w+)", declaration):
            self._scalars[alias[2]] = self._scalars[alias[1]]
        elif not declaration.startswith("typedef struct"):  # That declares a handle.
            self._add_function(declaration)

    def _add_struct(self, name: str, body: str) -> None:
        fields = [self._field(field.strip()) for field in body.split(";") if field.strip()]
        kind = _class_name(name)
        self.structs[name] = fields
        self._pointees["ddprun_" + name] = kind
        lines = [
            line
            for field, type_ in fields
            for line in _wrapped("        ", f'("{field}", ', [type_], ")")
        ]
        head = f'class {kind}(Structure):\n    """``ddprun_{name}``."""\n\n    _fields_ = ('
        self.types.append("\n".join([head, *lines, "    )"]))

    def _field(self, text: str) -> tuple[str, str]:
        if function := _FUNCTION_POINTER.fullmatch(text):
            return function[2], self._function_type(function[1], function[3])
        if array := re.fullmatch(r"(.*)\[(\w+)\]", text):
            name, type_ = self._field(array[1])
            length = array[2].replace("DDPRUN_", "")
            return name, f"{type_} * {self.constants.get(length, length)}"
        name = re.findall(r"\w+", text)[-1]
        type_ = self._type(text[: -len(name)])
        return (name + "_" if keyword.iskeyword(name) else name), type_

    def _add_function_type(self, name: str, result: str, parameters: str) -> None:
        kind = _class_name(name.replace("ddprun_", ""))
        self._scalars[name] = kind
        self.types.append(f"{kind} = {self._function_type(result, parameters)}")

    def _function_type(self, result: str, parameters: str) -> str:
        return f"CFUNCTYPE({', '.join([self._type(result), *self._parameters(parameters)])})"

    def _add_function(self, declaration: str) -> None:
        parts = re.fullmatch(r"(.*?)ddprun_(\w+)\((.*)\)", declaration)
        if parts is None:
            raise ValueError(f"not understood: {declaration}")
        self.functions[parts[2]] = (self._type(parts[1]), self._parameters(parts[3]))

    def _parameters(self, text: str) -> list[str]:
        if text.strip() == "void":
            return []
        return [self._type(re.sub(r"\w+$", "", each.strip())) for each in text.split(",")]

    def _type(self, text: str) -> str:
        """Return the type of a C type without the name of what has it."""
        base, stars = text.replace("const ", "").replace(" const", "").strip(), 0
        while base.endswith("*"):
            base, stars = base[:-1].strip(), stars + 1
        if base == "char" and stars:
            return _pointer("c_char_p", stars - 1)
        if base in self._pointees and stars == 1:
            return _pointer(self._pointees[base], 1)
        if base in self._scalars and stars < 2:
            return _pointer(self._scalars[base], stars)
        if stars:  # A handle, bytes, or an address of some array: an address.
            return _pointer("c_void_p", stars - 1)
        if base == "void":
            return "None"
        raise ValueError(f"not understood: {text}")


def _pointer(to: str, depth: int) -> str:
    return _pointer(f"POINTER({to})", depth - 1) if depth else to


def _integer(text: str) -> int:
    """Return the value of a constant expression of two integers at most."""
    node = ast.parse(text, mode="eval").body
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return int(ast.literal_eval(node.left)) - int(ast.literal_eval(node.right))
    return int(ast.literal_eval(node))


def _wrapped(indent: str, opening: str, parts: list[str], closing: str) -> list[str]:
    """Return the lines of an item of a tuple or dict, broken where the formatter breaks them."""
    line = f"{indent}{opening}{', '.join(parts)}{closing},"
    if len(line) <= _WIDTH:
        return [line]
    # Either a pair, or a field with a call as its type.
    field = re.fullmatch(r'\("(\w+)", ', opening)
    inner = [f'"{field[1]}"', *parts] if field else parts
    start = "(" if field else opening
    return [indent + start, *(f"{indent}    {each}," for each in inner), indent + closing + ","]


def _table(functions: dict[str, tuple[str, list[str]]]) -> list[str]:
    lines = ["FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {"]
    for name, (result, parameters) in functions.items():
        lines += _wrapped("    ", f'"{name}": (', [result, f"[{', '.join(parameters)}]"], ")")
    return [*lines, "}"]


def read_interface() -> Interface:
    """Return what all headers declare."""
    interface = Interface()
    for text in read_headers():
        interface.read(text)
    return interface


def generated() -> str:
    """Return the text of the module."""
    interface = read_interface()
    types = "\n\n".join(interface.types)
    # The formatter wants two empty lines around a class, and one between other statements.
    types = re.sub(r"\n\n(?=class )|(?<=    \))\n\n", "\n\n\n", types)
    constants = "\n".join(f"{name} = {value}" for name, value in interface.constants.items())
    table = "\n".join(["# name: (result, arguments)", *_table(interface.functions)])
    body = f"{constants}\n\n\n{types}\n\n\n{table}\n"
    names = sorted(set(re.findall(r"(?<!\")\b(?:c_\w+|CFUNCTYPE|POINTER|Structure)\b", body)))
    names.sort(key=lambda name: (not name.isupper(), name[0].islower(), name))
    imports = "".join(f"    {name},\n" for name in names)
    return f'''"""The C interface of libddprun.so: its numbers, structs, and functions.

Made by python/generate_c_api.py from the headers ddprun/c/*.h, which document it; names lack their
``ddprun_``. Pointers to handles, to bytes, and to pointers are addresses. Most structs begin with
their own size.
"""

from __future__ import annotations

from ctypes import (
{imports})
from typing import Any

{body}'''


if __name__ == "__main__":
    RESULT.write_text(generated(), encoding="utf-8")
