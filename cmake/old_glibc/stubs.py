"""Write libraries to link against that have only what an older glibc had.

    stubs.py --glibc 2.28 --cc gcc --readelf readelf FOLDER [FLAG OF CC ...]

glibc keeps every version of a symbol that it ever had, and a version is named after the glibc that
brought it. So the symbols of an older glibc are those of this machine's glibc with such versions.
FOLDER gets a stub of libc.so.6, of libm.so.6, of the loader, and of the libraries that were parts
of their own at that time: symbols and versions without code, to be linked and never loaded. A
program that calls anything newer does not link. cmake/old_glibc.cmake runs this.
"""

import argparse
import re
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

# What moved into libc.so.6 by glibc 2.35. A name that matches nothing was there before.
MOVED = (
    ("libpthread.so.0", r"_*(pthread|sem)_|thrd_(create|detach|exit|join)$|(mtx|cnd|tss|call)_"),
    ("libdl.so.2", r"dl(open|mopen|close|sym|vsym|error|addr1?|info)$"),
    ("librt.so.1", r"(shm_(open|unlink)$|timer_|_*mq_|aio_|lio_)"),
    ("libutil.so.1", r"(openpty|forkpty|login|login_tty|logout|logwtmp)$"),
    ("libresolv.so.2", r"_*(res_(n?(mkquery|query|querydomain|search|send)|\w+ok)$|dn_|ns_name_)"),
    ("libanl.so.1", r"(gai_(cancel|error|suspend)|getaddrinfo_a)$"),
)
# Our stand-in of this name calls the library's, and everything else the stand-in.
WRAPPED = "__libc_start_main"


class Symbol(NamedTuple):
    """One version of one symbol. Variables at one address are names of one variable.

    A program that has a copy of the variable exports the strong names of those that are weak.
    """

    name: str
    version: str
    is_variable: bool
    is_weak: bool
    size: int
    address: int


def number(version):
    """Make GLIBC_2.28 comparable."""
    return tuple(int(part) for part in version.replace("GLIBC_", "").split("."))


def symbols_of(library, readelf, newest):
    """Read the symbols of a library that glibc had when it was `newest`."""
    command = [readelf, "-W", "--dyn-syms", library]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    row = re.compile(
        r" *\d+: (?P<address>[0-9a-f]+) +(?P<size>\w+) (?P<kind>FUNC|IFUNC|OBJECT) +"
        r"(?P<binding>\w+) +\w+ +\d+ (?P<name>\w+)@@?(?P<version>GLIBC_[0-9.]+)"
    )
    for found in filter(None, map(row.match, text.splitlines())):
        if number(found["version"]) <= newest:
            yield Symbol(
                found["name"],
                found["version"],
                found["kind"] == "OBJECT",
                found["binding"] == "WEAK",
                max(1, int(found["size"], 0)),
                int(found["address"], 16),
            )


def assembly(symbols):
    """Define all symbols, each with the newest of its versions as the one that is linked."""
    last = {}
    for symbol in symbols:
        if symbol.name not in last or number(symbol.version) > number(last[symbol.name]):
            last[symbol.name] = symbol.version
    lines, functions, variables = [], [], defaultdict(list)
    for index, symbol in enumerate(symbols):
        label = f"stub_{index}"
        is_linked = symbol.version == last[symbol.name] and symbol.name != WRAPPED
        lines += [
            f"{'.weak' if symbol.is_weak else '.globl'} {label}",
            f".type {label}, %{'object' if symbol.is_variable else 'function'}",
            f".size {label}, {symbol.size}",
            f".symver {label}, {symbol.name}{'@@' if is_linked else '@'}{symbol.version}",
        ]
        if symbol.is_variable:
            variables[symbol.address].append((label, symbol.size))
        else:
            functions.append(label)
    lines += [".text", *(f"{label}:" for label in functions), ".byte 0", ".data"]
    for of_variable in variables.values():
        lines += [".balign 32", *(f"{label}:" for label, _ in of_variable)]
        lines.append(f".zero {max(size for _, size in of_variable)}")
    return "\n".join([*lines, '.section .note.GNU-stack,"",%progbits', ""])


def version_script(symbols):
    """Name the versions, the oldest first."""
    versions = sorted({symbol.version for symbol in symbols}, key=number)
    before = ["", *versions]
    hidden = ["local: stub_*;", *("" for _ in versions)]
    return "".join(
        f"{version} {{ {local} }} {older};\n"
        for version, older, local in zip(versions, before, hidden)
    )


def main():
    """Write the stubs, and the linker script that the linker finds for -lc."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--glibc", required=True)
    arguments.add_argument("--cc", required=True)
    arguments.add_argument("--readelf", required=True)
    arguments.add_argument("folder", type=lambda text: Path(text).resolve())
    options, flags = arguments.parse_known_args()
    folder, compiler = options.folder, [options.cc, *flags]
    folder.mkdir(parents=True, exist_ok=True)

    def found(name):
        """Find a file of the C library where the compiler finds it."""
        command = [*compiler, f"-print-file-name={name}"]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        return Path(said.strip()).resolve(strict=True)

    loader = re.search(r"ld-linux[\w.-]*", found("libc.so").read_text()).group()
    libraries = defaultdict(list)
    for library in ("libc.so.6", "libm.so.6", loader):
        for symbol in symbols_of(found(library), options.readelf, number(options.glibc)):
            homes = (old for old, names in MOVED if re.match(names, symbol.name))
            libraries[next(homes, library)].append(symbol)
    for library, symbols in libraries.items():
        source, script = folder / f"{library}.s", folder / f"{library}.map"
        source.write_text(assembly(symbols))
        script.write_text(version_script(symbols))
        linked = [f"-Wl,-soname,{library}", f"-Wl,--version-script={script}", source]
        command = [*compiler, "-shared", "-nostdlib", *linked, "-o", folder / library]
        subprocess.run(command, check=True)
    beside = " ".join(str(folder / library) for library, _ in MOVED if library in libraries)
    (folder / "libc.so").write_text(
        f"GROUP ( AS_NEEDED ( {beside} ) {folder / 'libc.so.6'} {folder / 'libstand_ins.a'}"
        f" {found('libc_nonshared.a')} AS_NEEDED ( {folder / loader} ) )\n"
    )
    (folder / "libm.so").write_text(f"INPUT ( {folder / 'libm.so.6'} )\n")


if __name__ == "__main__":
    main()
