"""What the benchmarks share: contestants that take turns, so that a noisy machine is noisy for all."""
import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
PYTHON = os.environ.get("PYTHON_EXEC", "/usr/bin/python3")


def add_build_option(parser, *programs):
    """--build FOLDER: absolute whatever was typed, for contestants start in folders of their own, and with `programs` in it."""
    def folder(text):
        path = os.path.abspath(text)
        for program in programs:
            if not os.access(os.path.join(path, program), os.X_OK):
                raise argparse.ArgumentTypeError(f"there is no {os.path.join(path, program)}; `cmake --preset dev && "
                                                 "cmake --build --preset dev` builds it in build/dev")
        return path
    parser.add_argument("--build", type=folder, default=os.path.join(ROOT, "build", "dev"))


def mpi_program(kind, source, folder):
    """(mpirun, the program compiled from `source`) of "openmpi" or "mpich"; None where that MPI or its headers are not installed."""
    compiler, launcher = shutil.which("mpicxx." + kind), shutil.which("mpirun." + kind)
    if not compiler or not launcher:
        return None
    program = os.path.join(folder, kind)
    done = subprocess.run([compiler, "-O2", "-o", program, source], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
        print(f"without {kind}: its {os.path.basename(compiler)} cannot compile {os.path.basename(source)} ({reason}); "
              f"Debian has its headers in lib{kind}-dev", file=sys.stderr)
        return None
    return launcher, program


def has_torch(rows, python=PYTHON):
    """Whether that interpreter has PyTorch; where not, says that `rows` are left out, and what would bring them."""
    return has_module("torch", rows, python, "Debian has it in python3-torch")


def has_module(module, rows, python=PYTHON, cure=""):
    find = f"import importlib.util as u, sys; sys.exit(u.find_spec('{module}') is None)"
    try:
        if subprocess.run([python, "-c", find], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return True
    except OSError:
        pass
    print(f"without {rows}: {python} has no {module}; {cure + ', and ' if cure else ''}PYTHON_EXEC names another interpreter",
          file=sys.stderr)
    return False


def need_torch():
    """For a script all of whose contestants are PyTorch's."""
    if not has_torch("anything to measure"):
        sys.exit(2)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def take_turns(contestants, rounds):
    """{name: [value of each round]} of {name: function}. Each round begins with the next contestant."""
    names = list(contestants)
    values = {name: [] for name in names}
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            values[name].append(contestants[name]())
    return values


def median_ratio(ours, theirs):
    """Of the rounds' own ratios: what disturbed a round disturbed both."""
    return statistics.median(o / t for o, t in zip(ours, theirs))


def spread(values):
    return f"{statistics.median(values):.3f} [{min(values):.3f}-{max(values):.3f}]"
