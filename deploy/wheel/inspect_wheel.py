"""What deploy/wheel.sh promises of a wheel, checked in the file: inspect_wheel.py BUILT REPAIRED.

BUILT is what scikit-build-core made, REPAIRED what auditwheel made of it. Prints a line for each
program and library and for what is wrong; exits with 1 if something is. Needs pyelftools, which
comes with auditwheel.
"""

import io
import re
import sys
import zipfile
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

MEGABYTES_MAX = 13.0  # The watch of --report, which comes with the programs, takes 0.8 of them.
# The C library, its parts that are libraries of their own in older versions, and its loader.
MAY_NEED = ("libc.so.", "libm.so.", "libpthread.so.", "libdl.so.", "librt.so.", "ld-linux")
GLIBC = (2, 28)  # DDPRUN_GLIBC in pyproject.toml.
PROGRAMS = {"ddprun", "ddprun-rendezvous", "ddprunctl"}
LIBRARY = "ddprun/_lib/libddprun.so"
IN_LIBEXEC = {"libddprun-nccl-profiler.so", "libddprun-watch.so", "libddprun-image.so"}
WATCH = (
    ".data/data/libexec/ddprun/python/sitecustomize.py",
    ".data/data/libexec/ddprun/python/ddprun_watch/__init__.py",
    ".data/data/libexec/ddprun/python/ddprun_preload/__init__.py",
)
# Rewritten by every tool that gives a wheel another tag.
ABOUT = (".dist-info/WHEEL", ".dist-info/RECORD")


def members(path):
    """Read the files of a wheel, by name."""
    with zipfile.ZipFile(path) as archive:
        return {
            info.filename: (archive.read(info), info.external_attr >> 16)
            for info in archive.infolist()
            if not info.is_dir()
        }


def dynamic(elf):
    """DT_NEEDED, DT_SONAME, and the symbols that others see."""
    needed, soname, exports = [], None, []
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            for tag in section.iter_tags():
                if tag.entry.d_tag == "DT_NEEDED":
                    needed.append(tag.needed)
                if tag.entry.d_tag == "DT_SONAME":
                    soname = tag.soname
    table = elf.get_section_by_name(".dynsym")
    for symbol in table.iter_symbols() if table else []:
        is_here = symbol.entry.st_shndx not in ("SHN_UNDEF", "SHN_ABS")
        if is_here and symbol.entry.st_info.bind != "STB_LOCAL":
            exports.append(symbol.name)
    return needed, soname, exports


def complaints_about(built, repaired):
    """Sentences about what is wrong."""
    for name in sorted(set(built) | set(repaired)):
        if not name.endswith(ABOUT) and built.get(name) != repaired.get(name):
            yield f"auditwheel changed {name}: something needs a library that no system has"
    programs, libraries = set(), set()
    for name, (content, mode) in sorted(built.items()):
        if content[:4] != b"\x7fELF":
            if ".data/scripts/" in name:
                yield f"{name} is no program but a script"
            continue
        needed, soname, exports = dynamic(ELFFile(io.BytesIO(content)))
        print(f"   {Path(name).name}: {len(content) / 1e6:.2f} MB, needs {' '.join(needed)}")
        yield from (f"{name} needs {other}" for other in needed if not other.startswith(MAY_NEED))
        if ".data/scripts/" in name:
            programs.add(Path(name).name)
            if not mode & 0o111:
                yield f"{name} is not executable"
        else:
            libraries.add(Path(name).name)
        if name == LIBRARY:
            others = [symbol for symbol in exports if not symbol.startswith("ddprun_")]
            if others or not exports:
                yield f"{name} exports {', '.join(others[:5]) or 'nothing'}"
            if soname != Path(name).name:
                yield f"{name} has the soname {soname}"
    if programs != PROGRAMS:
        yield f"the programs are {sorted(programs)}"
    if libraries != {Path(LIBRARY).name, *IN_LIBEXEC}:
        yield f"the libraries are {sorted(libraries)}"
    for name in WATCH:
        if not any(member.endswith(name) for member in built):
            yield f"there is no {name}: --report would know nothing of PyTorch's steps"


def main(built, repaired):
    """Print what is in the wheel, and what is wrong with it."""
    wrong = list(complaints_about(members(built), members(repaired)))
    megabytes = Path(repaired).stat().st_size / 1e6
    print(f"   {Path(repaired).name}: {megabytes:.2f} MB")
    if megabytes > MEGABYTES_MAX:
        wrong.append(f"the wheel has {megabytes:.2f} MB, {MEGABYTES_MAX:g} are allowed")
    tag = re.search(r"-py3-none-manylinux_(\d+)_(\d+)_", Path(repaired).name)
    if not tag or (int(tag[1]), int(tag[2])) > GLIBC:
        wrong.append(f"{Path(repaired).name} is not for glibc {GLIBC[0]}.{GLIBC[1]}")
    for sentence in wrong:
        print(f"wrong: {sentence}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
