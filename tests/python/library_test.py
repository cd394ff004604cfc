"""The package and libddprun: what is loaded, which library is refused, and what the package repeats of the C interface."""

import copy
import os
import pickle
import re
import unittest

import package_case
import ddprun_case  # pylint: disable=wrong-import-order
import ddprun
from ddprun import _arguments, _c_api, _errors, _library


class Tables(unittest.TestCase):
    """What the package repeats of the C interface."""

    def test_element_types_are_those_of_the_header(self):
        with open(os.path.join(package_case.PACKAGE, "../worker_sdk/include/ddprun/c/c_base.h"), encoding="utf-8") as file:
            text = file.read()
        listed = re.search(r"DDPRUN_F32 = 0.*?}", text, flags=re.S).group()
        short = {"float": "F", "bfloat": "BF", "int": "I", "uint": "U", "bool": "BOOL", "complex": "C"}
        named = [short[name.rstrip("0123456789")] + name.lstrip("abcdefghijklmnopqrstuvwxyz") for name in _arguments.NUMBERS]
        self.assertEqual(re.findall(r"DDPRUN_(\w+) = ", listed), named)

    def test_each_status_has_its_exception(self):
        header = os.path.join(package_case.PACKAGE, "../worker_sdk/include/ddprun/c/c_base.h")
        with open(header, encoding="utf-8") as file:
            text = file.read()
        self.assertIn("DDPRUN_CORRUPT = 10,", text)
        self.assertIn(f"#define DDPRUN_C_API_VERSION {_c_api.C_API_VERSION}\n", text)
        self.assertEqual(sorted(_errors.BY_STATUS), [*range(1, 11), _c_api.WRONG_RESULT])


class Libraries(unittest.TestCase):
    """What is loaded, or not."""

    def test_importing_loads_nothing(self):
        done = package_case.run_python("""
            import sys, ddprun
            print("libddprun" in open("/proc/self/maps").read(), "torch" in sys.modules, ddprun.__version__ != "")
        """)
        self.assertEqual(done.stdout, "False False True\n", done.stderr)

    def test_a_missing_or_foreign_library_is_named(self):
        for path, sentence in (("/no/such.so", "/no/such.so does not exist: install ddprun's wheel"),
                               ("/etc/passwd", "/etc/passwd cannot be loaded")):
            done = package_case.run_python("import ddprun; ddprun.init()", DDPRUN_LIB=path)
            self.assertIn("LibraryError: " + sentence, done.stderr)

    def test_another_version_is_refused(self):
        class Fake:
            """A library with some of the functions."""

            def __init__(self, version):
                self.ddprun_c_api_version = lambda: version

        for fake, sentence in ((object(), "is not ddprun's library"), (Fake(99), "has version 99 of the C interface"),
                               (Fake(_c_api.C_API_VERSION), "lacks ddprun_version: it is older")):
            with self.assertRaisesRegex(ddprun.LibraryError, sentence):
                _library._declare(fake, "lib.so")  # pylint: disable=protected-access

    def test_a_library_whose_structs_are_smaller_is_refused(self):
        done = package_case.run_python("""
            import ctypes
            from ddprun import _c_api, _group
            class Longer(ctypes.Structure):
                _fields_ = (*_c_api.InitOptions._fields_, ("later", ctypes.c_int64))
            _group.InitOptions = Longer
            _c_api.FUNCTIONS["group_init"][1][0] = ctypes.POINTER(Longer)
            _group.init()
        """)
        self.assertRegex(done.stderr, r"LibraryError: .*libddprun.so is of ddprun \d+\.\d+\.\d+, whose structs lack fields that "
                                      "this package, of .*, uses: install both from one wheel")

    def test_exceptions_pass_between_processes(self):
        parts = {"rank": 1, "host": "here", "operation": "send", "peer": 2}
        verdict = {"text": "rank 1 failed", "first_cause": {"rank": 1, "host": "here", "fault": "exit"}}
        made = [kind("a text", **parts) for kind in (*_errors.BY_STATUS.values(), ddprun.Error)]
        made += [ddprun.RunError("a text", verdict, 7),
                 ddprun.elastic.MembershipChanged("a text", status=11, **parts)]
        for error in made:
            for passed in (copy.copy(error), *(pickle.loads(pickle.dumps(error, n)) for n in range(2, 6))):
                self.assertIs(type(passed), type(error))
                self.assertEqual((str(passed), passed.args, vars(passed)), ("a text", ("a text",), vars(error)))


if __name__ == "__main__":
    ddprun_case.main()
