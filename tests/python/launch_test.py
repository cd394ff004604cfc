"""What starts ranks from Python: ddprun.launch(), python -m ddprun, and the ddprun of a virtual environment."""

import os
import subprocess
import sys
import textwrap

import package_case
import ddprun_case  # pylint: disable=wrong-import-order


class Launch(package_case.PackageCase):
    def test_launch_returns_results_and_raises_the_verdict(self):
        module = self.path("jobs.py")
        with open(module, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent("""
                import os, sys
                import ddprun

                def square(value):
                    with ddprun.init() as group:
                        group.barrier()
                    return int(os.environ["RANK"]), value * value

                def leave(rank):
                    if int(os.environ["RANK"]) == rank:
                        sys.exit(9)

                if __name__ == "__main__":
                    print(ddprun.launch(square, (7,), nproc=3))
                    try:
                        ddprun.launch(leave, (1,))
                    except ddprun.RunError as error:
                        print("failed:", error.rank, error.fault, error.exit_code, str(error)[:6])
                    try:
                        ddprun.launch(os._exit, (0,))
                    except ddprun.RunError as error:
                        print("nothing:", error)
                    try:
                        ddprun.launch(lambda: 0)
                    except ValueError as error:
                        print("refused:", error)
            """))
        done = subprocess.run([sys.executable, "-B", module], env=package_case.environment(), capture_output=True, text=True,
                              timeout=2 * ddprun_case.PATIENCE, check=False)
        self.assertIn("[(0, 49), (1, 49), (2, 49)]", done.stdout, done.stderr)
        self.assertIn("failed: 1 exit 9 rank 1", done.stdout)
        self.assertIn("nothing: rank 0 ended without a result", done.stdout)
        self.assertIn("refused: the function and its arguments must be picklable", done.stdout)

    def test_a_second_launch_forks_its_ranks(self):
        module = self.path("jobs.py")
        with open(module, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent("""
                import os, sys
                import ddprun

                def work():
                    before = "wsgiref.util" in sys.modules
                    import wsgiref.util
                    return before, os.environ["RANK"]

                if __name__ == "__main__":
                    for _ in range(2):
                        print(ddprun.launch(work, nproc=2, options=("--preload", "auto")))
            """))
        done = subprocess.run([sys.executable, "-B", module], env={**package_case.environment(), "XDG_CACHE_HOME": self.path("cache")},
                              cwd=self.dir, capture_output=True, text=True, timeout=2 * ddprun_case.PATIENCE, check=False)
        self.assertEqual(done.stdout.splitlines(), ["[(False, '0'), (False, '1')]", "[(True, '0'), (True, '1')]"], done.stderr)

    def test_a_second_launch_from_a_notebook_forks_its_ranks(self):
        os.mkdir(self.path("site"))
        with open(self.path("site/works.py"), "w", encoding="utf-8") as file:
            file.write("import sys\ndef work():\n    before = 'wsgiref.util' in sys.modules\n    import wsgiref.util\n"
                       "    return before\n")
        code = """
            import ddprun, works
            for _ in range(2):
                print(ddprun.launch(works.work, nproc=2, options=("--preload", "auto")))
        """
        done = package_case.run_python(code, XDG_CACHE_HOME=self.path("cache"),
                                       PYTHONPATH=package_case.PACKAGE + os.pathsep + self.path("site"))
        self.assertEqual(done.stdout.splitlines(), ["[False, False]", "[True, True]"], done.stdout + done.stderr)

    def test_launch_from_a_notebook(self):
        """Whatever of a notebook the call refers to, it is taken by value, or refused before a process starts."""
        code = """
            import builtins, functools, sys
            import ddprun
            class Point:
                def __init__(self, x):
                    self.x = x
            def twice(value):
                return 2 * value
            def moved(point):
                point.x += 1
                return point
            for call in ((builtins.id, (Point(1),)), (functools.partial(twice, 4), ()), (twice, (4,))):
                try:
                    print("got", ddprun.launch(*call, nproc=1))
                except ValueError as error:
                    print("refused:", error)
            print("plain", ddprun.launch(functools.partial(max, 3), (5,), nproc=2))
            if "cloudpickle" in sys.modules and hasattr(sys.modules["cloudpickle"], "CloudPickler"):
                found, = ddprun.launch(moved, (Point(1),), nproc=1)
                print("point", found.x, type(found) is Point)
        """
        done = package_case.run_python("import sys; sys.modules['cloudpickle'] = None\n" + textwrap.dedent(code))
        for name in ("Point", "twice", "twice"):
            self.assertIn(f"refused: {name} was defined interactively: put it into a module, or install cloudpickle",
                          done.stdout, done.stderr)
        self.assertIn("plain [5, 5]", done.stdout, done.stderr)
        os.mkdir(self.path("site"))
        with open(self.path("site/cloudpickle.py"), "w", encoding="utf-8") as file:
            file.write("import operator, pickle\ndef dumps(call):\n    return pickle.dumps((operator.mul, (6, 7)))\n"
                       "if 'RANK' in __import__('os').environ:\n    dumps = pickle.dumps\n")
        done = package_case.run_python(code, PYTHONPATH=package_case.PACKAGE + os.pathsep + self.path("site"))
        self.assertEqual(done.stdout.count("got [42]"), 3, done.stdout + done.stderr)
        try:
            import cloudpickle  # noqa: F401  pylint: disable=import-outside-toplevel,unused-import
        except ImportError:
            return
        done = package_case.run_python(code)
        self.assertEqual(done.stdout.count("got [8]"), 2, done.stdout + done.stderr)
        self.assertIn("point 2 True", done.stdout)

    def test_a_ddprun_of_an_environment_runs_its_interpreter(self):
        bin_folder = self.path("env/bin")
        os.makedirs(bin_folder)
        open(self.path("env/pyvenv.cfg"), "w", encoding="utf-8").close()
        copy = os.path.join(bin_folder, "ddprun")
        try:
            os.link(ddprun_case.DDPRUN, copy)
        except OSError:
            subprocess.run(["cp", ddprun_case.DDPRUN, copy], check=True)
        own = os.path.join(bin_folder, "python3")
        with open(own, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\necho own\n")
        os.chmod(own, 0o755)
        script = self.path("script.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write("print('of PATH')")
        named = package_case.environment()  # PYTHON_EXEC says which.
        unnamed = {name: value for name, value in named.items() if name != "PYTHON_EXEC"}
        said = [subprocess.run([copy, script], env=env, capture_output=True, text=True, timeout=ddprun_case.PATIENCE,
                               check=False).stdout for env in (unnamed, named)]
        self.assertIn("own", said[0])
        self.assertIn("of PATH", said[1])

    def test_the_module_becomes_the_program(self):
        done = subprocess.run([sys.executable, "-B", "-m", "ddprun", "--version"], env=package_case.environment(),
                              capture_output=True, text=True, timeout=ddprun_case.PATIENCE, check=False)
        self.assertTrue(done.stdout.startswith("ddprun "), done.stdout + done.stderr)


if __name__ == "__main__":
    ddprun_case.main()
