"""What a program imports and which variables it sets, read from its text and not run."""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass, field

_FILES_MAX = 200
_BYTES_MAX = 2 << 20
# Read when they are needed, not when a module is imported.
_READ_LATE: tuple[str, ...] = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "CUBLAS_WORKSPACE_CONFIG",
    "RANK",
)
_READ_LATE += ("LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TOKENIZERS_PARALLELISM")
_READ_LATE_PREFIXES = ("MASTER_", "NCCL_", "GLOO_", "TORCH_NCCL_", "WANDB_")
_SETTERS = ("setdefault", "update", "__setitem__", "pop", "clear")


@dataclass
class Reading:
    """Of a program and of the modules that lie beside it."""

    imports: set[str] = field(default_factory=set)  # Top-level names.
    sets: str = ""  # A variable that modules may read when they are imported, ...
    sets_where: str = ""  # ... and the file and line that sets it.


def read(path: str) -> Reading:
    """Read the program that begins in this file."""
    reading = Reading()
    folder = os.path.dirname(path)
    waiting, seen = [path], {path}
    while waiting and len(seen) <= _FILES_MAX:
        file = waiting.pop()
        for name in _read_file(file, reading):
            for beside in _files_of(folder, name):
                if beside not in seen:
                    seen.add(beside)
                    waiting.append(beside)
    return reading


def _files_of(folder: str, name: str) -> list[str]:
    stem = os.path.join(folder, *name.split("."))
    candidates = [stem + ".py", os.path.join(stem, "__init__.py")]
    return [path for path in candidates if os.path.isfile(path)]


def _read_file(path: str, reading: Reading) -> set[str]:
    """Return the modules that it imports."""
    try:
        if os.path.getsize(path) > _BYTES_MAX:
            return set()
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names.add(module)
            names.update(f"{module}.{alias.name}".strip(".") for alias in node.names)
        elif not reading.sets:
            variable = _set_by(node)
            if variable:
                reading.sets = variable
                reading.sets_where = f"{os.path.basename(path)}:{getattr(node, 'lineno', 0)}"
    names.discard("")
    if "dotenv" in names and not reading.sets:
        reading.sets = "variables of the environment (dotenv)"
        reading.sets_where = os.path.basename(path)
    reading.imports.update(name.partition(".")[0] for name in names)
    return names


def _is_environ(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in ("environ", "environb")
    return isinstance(node, ast.Name) and node.id in ("environ", "environb")


def _set_by(node: ast.AST) -> str:
    """Return the variable that this sets and that a module may read as it is imported."""
    keys: list[ast.AST | None] = []
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)):
        targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Subscript) and _is_environ(target.value):
                keys.append(target.slice)
            elif isinstance(node, ast.AugAssign) and target is not None and _is_environ(target):
                keys.append(None)  # os.environ |= ...
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        is_setter = node.func.attr in _SETTERS and _is_environ(node.func.value)
        if is_setter or node.func.attr in ("putenv", "unsetenv"):
            keys.append(node.args[0] if node.args else None)
    for key in keys:
        name = getattr(key, "value", None)
        if not isinstance(name, str):
            return "variables of the environment"
        if name not in _READ_LATE and not name.startswith(_READ_LATE_PREFIXES):
            return name
    return ""
