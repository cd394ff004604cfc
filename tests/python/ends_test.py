"""How groups, threads and programs of Python end: with work under way, by an exception, after a fork."""

import subprocess
import sys
import textwrap

import package_case
import ddprun_case  # pylint: disable=wrong-import-order


class Ends(package_case.PackageCase):
    def test_a_program_that_ends_completes_what_is_under_way(self):
        done = self.ranks("""
            group = ddprun.init()
            values = array.array("f", [1.0] * 4)
            if group.rank == 0:
                work = group.all_reduce_async(values)
                open(os.environ["MARK"], "w").close()
            else:
                come(os.environ["MARK"])
                group.all_reduce(values)
                print("sum", values[0])
        """, MARK=self.path("mark"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("sum 2.0", done.stdout)

    def test_a_group_is_not_freed_while_another_thread_is_in_a_call(self):
        done = self.ranks("""
            group = ddprun.init()
            into = bytearray(5)
            def waits_in(name):
                return any(frame.f_code.co_name == name for frame in sys._current_frames().values())
            def receive():
                group.recv(into, 1)
                print("received", bytes(into))
            if group.rank == 0:
                thread = threading.Thread(target=receive)
                thread.start()
                while not waits_in("_call"):
                    time.sleep(0.01)
                closing = threading.Thread(target=group.close)
                closing.start()
                while "closed" not in repr(group):
                    time.sleep(0.01)
                try:
                    group.barrier()
                except ddprun.BadArgument as error:
                    print("refused:", error)
                closing.join(0.3)  # It cannot end now.
                assert closing.is_alive()
                open(os.environ["MARK"], "w").close()
                closing.join(), thread.join()
            else:
                come(os.environ["MARK"])
                group.send(b"hello", 0)
        """, MARK=self.path("mark"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("received b'hello'", done.stdout, done.stderr)
        self.assertIn("refused: the group is closed", done.stdout)

    def test_a_program_may_end_while_a_thread_of_it_is_in_a_call(self):
        done = self.ranks("""
            group = ddprun.init()
            def receive():
                try:
                    group.recv(bytearray(1), 1)
                except ddprun.Aborted:
                    print("aborted")
            if group.rank == 0:
                threading.Thread(target=receive, daemon=True).start()
                while not any(frame.f_code.co_name == "_call" for frame in sys._current_frames().values()):
                    time.sleep(0.01)
            else:
                come(os.environ["MARK"])
            import atexit
            atexit._run_exitfuncs()
            open(os.environ["MARK"], "w").close()
            print("ended", group)
        """, MARK=self.path("mark"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("aborted", done.stdout)
        self.assertEqual(done.stdout.count("ended <ddprun.ProcessGroup closed>"), 2, done.stdout)

    def test_a_rank_that_exits_with_work_under_way_ends_soon_and_is_the_first_cause(self):
        done = self.ranks("""
            from ddprun import _core
            _core.EXIT_LIMIT_S = 0.5
            group = ddprun.init(op_timeout=20)
            while group.rank == 0:
                time.sleep(1)  # Until it is stopped.
            work = group.all_reduce_async(array.array("f", [0] * 4))
            sys.exit(3)
        """)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("which other ranks did not complete within 0.5 s; they are aborted", done.stdout + done.stderr)
        self.assertRegex(done.stderr, "rank 1 .* failed first: .* exited with 3")

    def test_a_rank_that_raises_ends_at_once_and_is_the_first_cause(self):
        done = self.ranks("""
            group = ddprun.init()
            while group.rank == 0:
                time.sleep(1)  # Until it is stopped.
            values = array.array("f", [0] * 4)
            work = group.all_reduce_async(values, timeout=3000)
            raise ValueError("no such data")
        """)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("rank 1", done.stderr)
        self.assertIn("no such data", done.stderr)
        self.assertNotIn("with operations under way", done.stdout + done.stderr)  # It has not waited for them.

    def test_a_rank_that_raises_does_not_wait_for_its_peers(self):
        """Without a launcher that would stop them."""
        code = """
            import array, sys, ddprun
            rank = int(sys.argv[1])
            group = ddprun.init("file://" + sys.argv[2], rank=rank, world_size=2, op_timeout=3000)
            if rank == 0:
                sys.stdin.read()  # Until the other has ended.
            else:
                work = group.all_reduce_async(array.array("f", [0] * 4))
                raise ValueError("no such data")
        """
        meeting = self.path("meeting")
        command = [sys.executable, "-B", "-c", textwrap.dedent(code)]
        with subprocess.Popen([*command, "0", meeting], env=package_case.environment(), stdin=subprocess.PIPE) as first:
            try:
                second = package_case.run_python(code, "1", meeting)
            finally:
                first.kill()
        self.assertEqual(second.returncode, 1)
        self.assertIn("no such data", second.stderr)

    def test_closed_groups_and_forked_ones(self):
        done = package_case.run_python("""
            import os, ddprun
            group = ddprun.init()
            child = os.fork()
            if child == 0:
                try:
                    group.barrier()
                except ddprun.BadArgument as error:
                    os.write(1, str(error).encode())
                group.close()
                os._exit(0)
            os.waitpid(child, 0)
            group.close()
            group.close()
            try:
                group.barrier()
            except ddprun.BadArgument as error:
                print(error, group)
        """)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("from which this one was forked", done.stdout)
        self.assertIn("the group is closed <ddprun.ProcessGroup closed>", done.stdout)


if __name__ == "__main__":
    ddprun_case.main()
