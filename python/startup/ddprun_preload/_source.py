"""Which variables a program sets, read from its text and not run."""

from __future__ import annotations

import ast
import os

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


def is_read_early(variable: str) -> bool:
    """Whether a module may read it when it is imported."""
    return variable not in _READ_LATE and not variable.startswith(_READ_LATE_PREFIXES)


def read(path: str) -> tuple[str, str]:
    """Return a variable that a program sets and that modules may read when they are imported.

    With the file and line that sets it; empty: there is none. `path` is the file in which the
    program begins; the modules beside it are read, too.
    """
    folder = os.path.dirname(path)
    waiting, seen = [path], {path}
    while waiting and len(seen) <= _FILES_MAX:
        imports, variable, where = _read_file(waiting.pop())
        if variable:
            return variable, where
        for name in imports:
            for beside in _files_of(folder, name):
                if beside not in seen:
                    seen.add(beside)
                    waiting.append(beside)
    return "", ""


def _files_of(folder: str, name: str) -> list[str]:
    stem = os.path.join(folder, *name.split("."))
    candidates = [stem + ".py", os.path.join(stem, "__init__.py")]
    return [path for path in candidates if os.path.isfile(path)]


def _read_file(path: str) -> tuple[set[str], str, str]:
    """Return the modules that it imports, and what it sets where."""
    try:
        if os.path.getsize(path) > _BYTES_MAX:
            return set(), "", ""
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return set(), "", ""
    names: set[str] = set()
    for node in ast.walk(tree):
        variable = _set_by(node)
        if variable:
            return set(), variable, f"{os.path.basename(path)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names.add(module)
            names.update(f"{module}.{alias.name}".strip(".") for alias in node.names)
    if "dotenv" in names:
        return set(), "variables of the environment (dotenv)", os.path.basename(path)
    names.discard("")
    return names, "", ""


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
        if is_read_early(name):
            return name
    return ""
