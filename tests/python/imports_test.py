"""The modules of the package: which imports which, without a circle, and each by itself."""

import ast
import os
import subprocess
import sys
import unittest

import package_case
import ddprun_case  # pylint: disable=wrong-import-order

FOLDER = os.path.join(package_case.PACKAGE, "ddprun")
DCP = "ddprun.checkpoint.dcp"  # Of PyTorch's, too, and of no old one: torch_checkpoint_test imports it.
TORCHRUN = "ddprun._rendezvous"  # Imported by torchrun alone.
NOT_IMPORTED = {"ddprun.__main__", "ddprun._worker", DCP}  # Two are programs.


def modules():
    """The file of each module by its name."""
    found = {}
    for folder, _, files in os.walk(FOLDER):
        package = ".".join(["ddprun", *os.path.relpath(folder, FOLDER).replace(".", "").split(os.sep)]).rstrip(".")
        for name in files:
            if name.endswith(".py"):
                found[package if name == "__init__.py" else f"{package}.{name[:-3]}"] = os.path.join(folder, name)
    return found


def imported(module, path, known):
    """The modules of the package that a module names in an import, wherever in its file: also for its types only."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    package = module if path.endswith("__init__.py") else module.rpartition(".")[0]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, [base, node.module]))
            found.update(f"{base}.{name.name}" if f"{base}.{name.name}" in known else base for name in node.names)
    return found & set(known) - {module}


def circle_of(graph):
    """The modules of a circle, in order; None without one."""
    done, path = set(), []

    def visit(module):
        if module in path:
            return [*path[path.index(module):], module]
        if module in done:
            return None
        path.append(module)
        found = next(filter(None, map(visit, sorted(graph[module]))), None)
        path.pop()
        done.add(module)
        return found
    return next(filter(None, map(visit, sorted(graph))), None)


class Imports(unittest.TestCase):
    """Which module imports which."""

    def test_no_module_is_imported_by_what_it_imports(self):
        known = modules()
        self.assertGreater(len(known), 40)
        graph = {module: imported(module, path, known) for module, path in known.items()}
        self.assertIn("ddprun._library", graph["ddprun._group"])
        self.assertIn("ddprun._group", graph["ddprun.elastic._step"])
        self.assertIsNone(circle_of(graph))

    def test_a_circle_is_found(self):
        self.assertEqual(circle_of({"a": {"b"}, "b": {"c", "d"}, "c": set(), "d": {"b"}}), ["b", "d", "b"])
        self.assertIsNone(circle_of({"a": {"b", "c"}, "b": {"c"}, "c": set()}))

    def test_only_the_torch_packages_import_torch(self):
        for module, path in modules().items():
            with open(path, encoding="utf-8") as file:
                tree = ast.parse(file.read())
            names = {name.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
            names |= {node.module.split(".")[0] for node in ast.walk(tree)
                      if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module}
            self.assertTrue("torch" not in names or ".torch" in module or module in (DCP, TORCHRUN), module)

    def test_each_module_can_be_the_first_that_is_imported(self):
        names = sorted(set(modules()) - NOT_IMPORTED)
        self.assert_importable([name for name in names if ".torch" not in name], "")
        if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False).returncode == 0:
            self.assert_importable([name for name in names if ".torch" in name], "torch")

    def assert_importable(self, names, before):
        """Each in a child of its own of one interpreter, which has imported what takes long, and nothing of the package."""
        done = package_case.run_python("""
            import importlib, os, sys
            before, *names = sys.argv[1:]
            if before:
                importlib.import_module(before)
            for name in names:
                assert not any(each.split(".")[0] == "ddprun" for each in sys.modules)
                child = os.fork()
                if child == 0:
                    importlib.import_module(name)
                    os._exit(0)
                print(name, os.waitpid(child, 0)[1], flush=True)
        """, before, *names)
        self.assertEqual(done.stdout.splitlines(), [f"{name} 0" for name in names], done.stderr)


if __name__ == "__main__":
    ddprun_case.main()
