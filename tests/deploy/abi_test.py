#!/usr/bin/env python3
"""The binary interface of libddprun.so is that of tests/golden/c_api.abi, which libabigail has recorded: no function, parameter, struct
or number of the C interface changes unseen.

  abi_test.py --renew    records the interface of the library below $DDPRUN_BIN's build folder; refused if a program that was linked with
                         the recorded one would break. --renew-all records it all the same, before a release of another version."""
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.dirname(os.environ.get("DDPRUN_BIN", SOURCE + "/build/dev/bin"))
LIBRARY = BUILD + "/worker_sdk/libddprun.so"
HEADERS = SOURCE + "/worker_sdk/include/ddprun/c"
RECORDED = SOURCE + "/tests/golden/c_api.abi"
INCOMPATIBLE = 8  # A bit of abidiff's exit status; 4: any change.
HOW = "If the change is meant and only adds, tests/deploy/abi_test.py --renew records it; commit the file with it."


def record(path):
    """Writes what the library shows to `path`. Numbers have no place in a binary: they are recorded from the headers."""
    subprocess.run(["abidw", "--exported-interfaces-only", "--headers-dir", HEADERS, "--drop-private-types", "--no-corpus-path",
                    "--no-comp-dir-path", "--no-show-locs", "--no-elf-needed", "--no-architecture", "--type-id-style", "hash",
                    "--out-file", path, LIBRARY], check=True)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(re.sub(r" path='[^']*/([^/']*)'", r" path='\1'", text))


def numbers(headers=HEADERS):
    found = []
    for name in sorted(os.listdir(headers)):
        with open(os.path.join(headers, name), encoding="utf-8") as file:
            text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
        found += [f"{key} = {value}\n" for key, value in re.findall(r"\b(DDPRUN_[A-Z0-9_]+) = (\d+)", text)]
        found += [f"{key} = {value}\n" for key, value in re.findall(r"#define (DDPRUN_[A-Z0-9_]+) (\d+)\n", text)]
    return sorted(found)


def compare(before, after):
    """abidiff's exit status and report."""
    done = subprocess.run(["abidiff", "--no-unreferenced-symbols", before, after], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True, check=False)
    return done.returncode, done.stdout


def breaks_programs(code, report):
    """Whether programs that were linked with the first interface could not run with the second. abidiff is sure of few changes."""
    return bool(code & INCOMPATIBLE or re.search("offset changed|deletion|entity changed|parameter [0-9]+ .*was (removed|added)"
                                                 "|type name changed from", report))


def renew(force):
    with tempfile.TemporaryDirectory(prefix="ddprun_abi_") as folder:
        new = folder + "/new.abi"
        record(new)
        old = read_lines(RECORDED + ".numbers") if os.path.exists(RECORDED) else []
        lost = [line for line in old if line not in numbers()]
        code, report = compare(RECORDED, new) if os.path.exists(RECORDED) else (0, "")
        print(report, end="")
        if (breaks_programs(code, report) or lost) and not force:
            sys.exit("Programs that were linked with the recorded interface would break" + (": " + "".join(lost) if lost else "") + ".")
        shutil.copy(new, RECORDED)
        with open(RECORDED + ".numbers", "w", encoding="utf-8") as file:
            file.writelines(numbers())


def open_text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def read_lines(path):
    with open(path, encoding="utf-8") as file:
        return file.readlines()


class Abi(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ddprun_abi_")
        self.addCleanup(shutil.rmtree, self.folder)

    def test_the_library_shows_what_is_recorded(self):
        record(self.folder + "/now.abi")
        code, report = compare(RECORDED, self.folder + "/now.abi")
        self.assertEqual(code, 0, report + HOW)

    def test_numbers_are_kept(self):
        diff = "".join(difflib.unified_diff(read_lines(RECORDED + ".numbers"), numbers(), "recorded", "now", n=0))
        self.assertEqual(diff, "", HOW)

    def test_every_function_is_there_with_its_parameters(self):
        """A library without types for them would be equal to any other."""
        with open(RECORDED, encoding="utf-8") as file:
            text = file.read()
        declared = set()
        for name in os.listdir(HEADERS):
            with open(os.path.join(HEADERS, name), encoding="utf-8") as file:
                declared |= set(re.findall(r"\b(ddprun_\w+)\(", re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)))
        recorded = dict(re.findall(r"<function-decl name='(ddprun_\w+)'[^>]*>(.*?)</function-decl>", text, flags=re.S))
        self.assertEqual(declared - set(recorded), set())
        self.assertIn("<parameter", recorded["ddprun_submit"])
        self.assertRegex(text, r"<class-decl name='ddprun_call' size-in-bits='\d+' is-struct='yes'|"
                               r"<class-decl name='[^']*' size-in-bits='\d+' is-struct='yes'[^>]*naming-typedef-id")

    def test_every_struct_begins_with_its_size(self):
        """All but the one that c_api.h names, and no parameter is of an enum type, whose width is the compiler's choice."""
        text = "".join(open_text(os.path.join(HEADERS, name)) for name in sorted(os.listdir(HEADERS)))
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        structs = {name: body.split(";")[0].strip() for body, name in
                   re.findall(r"typedef struct \{(.*?)\n\} (\w+);", text, flags=re.S)}
        self.assertGreater(len(structs), 15)
        without = sorted(name for name, first in structs.items() if first != "size_t size")
        self.assertEqual(without, ["ddprun_sample"])
        self.assertIn("Every struct but ddprun_sample begins with its size", " ".join(open_text(HEADERS + "/../c_api.h").split()))
        self.assertNotIn("typedef enum", text)

    def changed(self, what, by):
        with open(RECORDED, encoding="utf-8") as file:
            text = file.read()
        self.assertRegex(text, what)
        with open(self.folder + "/changed.abi", "w", encoding="utf-8") as file:
            file.write(re.sub(what, by, text, count=1))
        return compare(RECORDED, self.folder + "/changed.abi")

    def test_a_parameter_that_is_gone_or_another_breaks_programs(self):
        """abidiff reports it, but does not say that it is incompatible."""
        code, report = self.changed(r"(?s)(<function-decl name='ddprun_submit'.*?)<parameter type-id='\w+' name='work'/>", r"\1")
        self.assertTrue(breaks_programs(code, report), report)
        with open(RECORDED, encoding="utf-8") as file:
            integer = re.search(r"<type-decl name='int' [^>]*id='(\w+)'", file.read()).group(1)
        code, report = self.changed(r"(?s)(<function-decl name='ddprun_barrier'.*?)<parameter type-id='\w+' name='timeout_ms'/>",
                                    rf"\1<parameter type-id='{integer}' name='timeout_ms'/>")
        self.assertTrue(breaks_programs(code, report), report)

    def test_fields_at_the_end_and_functions_break_none(self):
        code, report = self.changed(r"<elf-symbol name='ddprun_submit'[^>]*/>", "")
        self.assertTrue(breaks_programs(code, report), report)
        code, report = compare(self.folder + "/changed.abi", RECORDED)  # The other way: a function more.
        self.assertFalse(breaks_programs(code, report), report)

    def test_a_function_that_is_gone_is_seen(self):
        code, report = self.changed(r"<elf-symbol name='ddprun_submit'[^>]*/>", "")
        self.assertTrue(code & INCOMPATIBLE, report)


if __name__ == "__main__":
    if "--renew" in sys.argv or "--renew-all" in sys.argv:
        renew("--renew-all" in sys.argv)
        sys.exit(0)
    if not shutil.which("abidw"):
        print("abidw is missing: apt-get install abigail-tools")
        sys.exit(77)
    unittest.main()
