"""What Python knows of the C interface is what the C headers declare, to a compiler, too."""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

import package_case
import ddprun_case  # pylint: disable=wrong-import-order
from ddprun import _c_api

sys.path.insert(0, package_case.PACKAGE)
import generate_c_api  # noqa: E402  pylint: disable=wrong-import-position

INCLUDE = os.path.join(package_case.PACKAGE, "../worker_sdk/include")
LIBRARY = package_case.LIBRARY


def struct_of(name):
    """The class of a struct of C."""
    return getattr(_c_api, "".join(word.capitalize() for word in name.split("_")))


class Generated(unittest.TestCase):
    """The module is what python/generate_c_api.py makes of the headers."""

    def test_the_committed_module_is_what_the_headers_give(self):
        with open(generate_c_api.RESULT, encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(text, generate_c_api.generated(), "a header has changed: run python3 python/generate_c_api.py")

    def test_fields_and_parameters_are_read_with_their_types_and_order(self):
        interface = generate_c_api.Interface()
        interface.read(textwrap.dedent("""
            #define DDPRUN_LIMIT 8
            #define DDPRUN_LOWEST (-7 - 1)
            #define DDPRUN_MADE(a, b) \\
              { sizeof(ddprun_thing), (a), (b) }
            enum {
              DDPRUN_ONE = 1,
              DDPRUN_TWO = 2
            };
            typedef int32_t ddprun_kind;
            typedef struct ddprun_handle ddprun_handle;
            typedef struct {
              size_t size;
              const char* in;
              int (*call)(void* user, const char* key, int64_t* sum);
              char text[DDPRUN_LIMIT];
              const int32_t* ranks;
            } ddprun_thing;
            typedef int32_t (*ddprun_body)(ddprun_handle* handle, void* user);
            ddprun_kind ddprun_use(ddprun_handle* handle, const ddprun_thing* thing, ddprun_body body,
                                   const char* const* names, const size_t** counts, ddprun_handle** made);
            void ddprun_free(ddprun_handle* handle);
            const char* ddprun_name(void);
        """))
        self.assertEqual(interface.constants, {"LIMIT": 8, "LOWEST": -8, "ONE": 1, "TWO": 2})
        self.assertEqual(interface.structs["thing"], [
            ("size", "c_size_t"), ("in_", "c_char_p"), ("call", "CFUNCTYPE(c_int, c_void_p, c_char_p, POINTER(c_int64))"),
            ("text", "c_char * 8"), ("ranks", "POINTER(c_int32)")])
        self.assertEqual(interface.functions, {
            "use": ("c_int32", ["c_void_p", "POINTER(Thing)", "Body", "POINTER(c_char_p)", "POINTER(c_void_p)", "POINTER(c_void_p)"]),
            "free": ("None", ["c_void_p"]), "name": ("c_char_p", [])})

    def test_a_declaration_that_is_not_understood_is_refused(self):
        for declaration in ("union ddprun_both { int a; };", "ddprun_status ddprun_use(ddprun_unknown value);"):
            with self.assertRaisesRegex(ValueError, "not understood"):
                generate_c_api.Interface().read(declaration)


class Compared(unittest.TestCase):
    """Against others that read the headers."""

    @unittest.skipUnless(shutil.which("cc"), "no C compiler")
    def test_structs_have_the_sizes_and_offsets_that_a_compiler_gives_them(self):
        structs = generate_c_api.read_interface().structs
        lines = ["#include <stddef.h>", "#include <stdio.h>", "#include <ddprun/c_api.h>", "int main(void) {"]
        for name, fields in structs.items():
            lines.append(f'printf("{name} %zu", sizeof(ddprun_{name}));')
            for field, _ in fields:
                c_field = field.rstrip("_")
                lines.append(f'printf(" {field} %zu %zu", offsetof(ddprun_{name}, {c_field}), sizeof(((ddprun_{name}*)0)->{c_field}));')
            lines.append('printf("\\n");')
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "sizes")
            subprocess.run(["cc", "-I", INCLUDE, "-x", "c", "-", "-o", program], input="\n".join([*lines, "return 0; }"]),
                           text=True, check=True)
            printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
        self.assertEqual(len(printed.splitlines()), len(structs))
        for line in printed.splitlines():
            name, size, *places = line.split()
            kind = struct_of(name)
            self.assertEqual(ctypes.sizeof(kind), int(size), name)
            own = [str(part) for field, *_ in kind._fields_  # pylint: disable=protected-access
                   for part in (field, getattr(kind, field).offset, getattr(kind, field).size)]
            self.assertEqual(own, places, name)

    def test_the_library_exports_just_these_functions(self):
        listed = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
        exported = {line.split()[-1].split("@")[0] for line in listed.splitlines()}
        exported = {name[len("ddprun_"):] for name in exported if name.startswith("ddprun_")}
        self.assertEqual(exported, set(_c_api.FUNCTIONS))


if __name__ == "__main__":
    ddprun_case.main()
