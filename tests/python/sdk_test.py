"""What ddprun.ProcessGroup has beside operations: store, hosts, phases, memory, common numbers; metrics, step timer,
crash reports, and groups without lost ranks."""

import subprocess
import sys
import textwrap

import package_case
import ddprun_case  # pylint: disable=wrong-import-order


class Groups(package_case.PackageCase):
    def test_the_store_is_common_and_has_deadlines(self):
        self.right("""
            group = ddprun.init()
            me, store = group.rank, group.store
            if me == 0:
                late = refused(ddprun.TimedOut, '"later"', store.get, "later", timeout=0.1)
                assert isinstance(late, TimeoutError)
                refused(ddprun.TimedOut, "later", store.wait, ["later", "never"], 0.1)
                store.set("name", b"a\\0b")
                store.set("empty", b"")
                group.barrier()
                assert store.get("later", 60) == "\u00e9".encode() and store.erase("later") and not store.erase("later")
            else:
                store.wait(["name", "empty"], 60)
                assert store.get("name") == b"a\\0b" and store.get("empty") == b"" and store.check(["name", "empty"])
                assert not store.check(["name", "later"])
                group.barrier()
                store.set("later", "\u00e9".encode())
            store.add("count", 5 + me)
            group.barrier()
            assert store.add("count", -1 - me) in (10, 9, 8) and isinstance(store.add("own" + str(me), 1), int)
            group.barrier()
            assert store.add("count", 0) == 8
        """)

    def test_numbers_of_all_ranks(self):
        self.right("""
            with ddprun.init() as group:
                me = group.rank
                assert group.average(me + 0.5) == 1.0
                seeds = array.array("Q", [group.shared_seed(), group.shared_seed()]).tobytes()
                group.all_gather(seeds, both := bytearray(32))
                assert both[:16] == both[16:] and both[:8] != both[8:16]
                metrics = ddprun.Metrics()
                assert metrics.reduce(group) == {}
                metrics.add("loss", 1.0 + me, weight=1 + 2 * me)
                metrics.add("loss", 4.0, weight=0)
                if me == 1:
                    metrics.add("alone", -2)
                every = metrics.reduce(group)
                assert every == {"loss": (1.75, 7, 4, 1, 4), "alone": (-2, -2, 1, -2, -2)}, every
                assert every["loss"].average == 1.75 and every["loss"].weight == 4
                assert metrics.reduce(group) == {}
                assert group.host_of(1 - me) == "here"
                refused(ddprun.BadArgument, "2", group.host_of, 2)
        """, DDPRUN_HOST="here")

    def test_shared_memory_lives_as_long_as_something_refers_to_it(self):
        self.right("""
            import gc
            group = ddprun.init()
            size = 3 << 20
            def mapped():
                # Bytes of memory that is shared with others.
                gc.collect()
                ends = [line.split()[0].split("-") for line in open("/proc/self/maps") if line.split()[1] == "rw-s"]
                return sum(int(end, 16) - int(begin, 16) for begin, end in ends)
            before = mapped()
            memory = group.allocate(size)
            assert len(memory) == size and memory.format == "B" and not any(memory[:100]) and not memory.readonly
            assert mapped() >= before + size, "it is not shared"
            values = memory.cast("f")
            values[7] = group.rank + 1
            group.all_reduce(values)
            assert values[7] == 3
            child = os.fork()
            if child == 0:
                del values, memory  # Frees nothing: what is behind it is its parent's.
                gc.collect()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            group.barrier()
            part = memory[28:32]
            group.close()
            del memory, values
            assert part.tobytes() == array.array("f", [3]).tobytes() and mapped() >= size
            del part
            assert mapped() < size, mapped()
        """)

    def test_a_stuck_rank_is_named_with_the_phase_it_has_said(self):
        done = self.ranks("""
            group = ddprun.init()
            for _ in range(10):
                group.barrier()
            if group.rank == 1:
                group.set_phase("evaluate")
                time.sleep(100000)
            group.barrier()
        """, flags=("--on-stall", "kill", "--stall-timeout", "2"))
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"rank 1 \(local rank 1, pid \d+\) has been in evaluate for ")

    def test_the_steps_of_a_loop_are_in_the_report(self):
        done = self.right("""
            timer = ddprun.StepTimer()
            timer.join(timeout=60)
            group = ddprun.init()
            for step in range(32):
                timer.enter("data")
                if group.rank == 1 and step % 4 == 2:
                    time.sleep(0.05)
                timer.enter("backward")
                timer.enter("exposed")
                group.barrier()
                timer.enter("optimizer")
                timer.end_step(100)
            refused(ddprun.BadArgument, "the timer has met the others already", timer.join)
            timer.close()
            timer.close()
            refused(ddprun.BadArgument, "the timer is closed", timer.enter, "data")
        """, flags=("--report",))
        self.assertRegex(done.stdout, r"rank 1 was last in \d+ of \d+ steps, [\d.]+ ms each, in data")

    def test_ranks_that_are_left_go_on(self):
        """Without a launcher that would end them."""
        code = """
            import array, sys, ddprun
            rank = int(sys.argv[1])
            group = ddprun.init("file://" + sys.argv[2], rank=rank, world_size=3, op_timeout=60)
            group.barrier()
            if rank == 1:
                sys.stdout.flush()
                import os
                os._exit(0)
            try:
                while True:
                    group.barrier()
            except ddprun.Error:
                pass
            smaller = group.shrink([1] if rank == 0 else [], patience=30)
            group.close()
            values = array.array("i", [rank])
            smaller.all_reduce(values)
            print(smaller.rank, smaller.world_size, values[0])
            smaller.close()
        """
        meeting = self.path("meeting")
        command = [sys.executable, "-B", "-c", textwrap.dedent(code)]
        started = [subprocess.Popen([*command, str(rank), meeting], env=package_case.environment(), text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(3)]
        try:
            said = [process.communicate(timeout=package_case.PATIENCE) for process in started]
        finally:
            for process in started:
                process.kill()
        self.assertEqual([out for out, _ in said], ["0 2 2\n", "", "1 2 2\n"], said)

    def test_a_crash_says_where(self):
        done = self.ranks("""
            import ctypes
            ddprun.install_crash_report()
            ddprun.install_crash_report()
            ctypes.string_at(16)
        """, nproc=1)
        self.assertEqual(done.returncode, 128 + 11, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"failed first: [^\n]*\n(?:.*\n)*SIGSEGV at address 0x10\n(?:.*\n)*[^\n]*_ctypes")

    def test_a_crash_after_init_says_where_python_was_too(self):
        done = self.ranks("""
            import ctypes
            def crashes():
                ctypes.string_at(16)
            group = ddprun.init()
            crashes()
        """, nproc=1)
        self.assertEqual(done.returncode, 128 + 11, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"failed first: [^\n]*\n(?:.*\n)*SIGSEGV at address 0x10\n(?:.*\n)*[^\n]*_ctypes")
        self.assertRegex(done.stdout + done.stderr, r"Fatal Python error: Segmentation fault\n(?:.*\n)*.* in crashes")

    def test_a_handler_of_the_programs_own_is_not_replaced(self):
        done = self.ranks("""
            import faulthandler, signal
            def handle(number, frame):
                print("handled", number, flush=True)
                os._exit(5)
            signal.signal(signal.SIGABRT, handle)
            group = ddprun.init()
            assert not faulthandler.is_enabled()
            os.kill(os.getpid(), signal.SIGABRT)
            time.sleep(60)
        """, nproc=1)
        self.assertEqual(done.returncode, 5, done.stdout + done.stderr)
        self.assertIn("handled 6", done.stdout)

    def test_what_a_function_raised_in_one_thread_is_not_raised_in_another_of_its_number(self):
        self.right("""
            from ddprun import _callbacks
            _callbacks._keep_what_ctypes_drops()
            class Raised:
                exc_value = ValueError("of the first")
                class exc_traceback:
                    class tb_frame:
                        f_code = _callbacks._CODE
            found = []
            def first():
                sys.unraisablehook(Raised)
            def second():
                found.append(_callbacks.take_dropped())
            numbers = []
            for run in (first, second):
                thread = threading.Thread(target=run)
                thread.start()
                numbers.append(thread.ident)
                thread.join()
            assert numbers[0] != numbers[1] or found == [None], found
            sys.unraisablehook(Raised)  # In one thread it is kept for the caller.
            assert _callbacks.take_dropped() is Raised.exc_value and _callbacks.take_dropped() is None
        """, nproc=1)

    def test_what_ranks_tell_each_other_outside_collectives(self):
        done = self.ranks("""
            ddprun.install_crash_report()
            group = ddprun.init(host=f"host{os.environ['RANK']}")
            me, store = group.rank, group.store
            assert (group.local_world_size, group.group_rank) == (2, 0) and len(group.run_id) > 0
            assert [group.host_of(r) for r in (0, 1)] == ["host0", "host1"]
            if me == 0:
                store.set("key", b"a\\0b")
                assert not store.erase("no such key")
            assert store.get("key") == b"a\\0b"
            store.wait(["key"], timeout=60)
            store.add("sum", 1 << 40)
            group.barrier()
            assert store.add("sum", 0) == 2 << 40 and store.check(["key", "sum"]) and not store.check(["none"])
            try:
                store.get("none", timeout=0.05)
                print("found")
            except ddprun.TimedOut as error:
                assert error.operation == "store_get", error.operation
            assert group.broadcast_bytes(b"x\\0y" if me == 1 else b"ignored", root=1) == b"x\\0y"
            assert group.all_gather_bytes(b"ab"[:me]) == [b"", b"a"]
            assert group.gather_bytes(bytearray([me] * (2 - me))) == ([bytes(2), bytes([1])] if me == 0 else [])
            assert group.broadcast_bytes() == b""
            assert group.average(me) == 0.5
            seeds = group.all_gather_bytes(str(group.shared_seed()).encode())
            assert seeds[0] == seeds[1], seeds
            group.set_phase("evaluate")
            group.expect_steps(10)
            metrics = ddprun.Metrics()
            metrics.add("loss", me, weight=1 + 2 * me)
            if me == 0:
                metrics.add("accuracy", 0.5)
            found = metrics.reduce(group)
            assert list(found) == ["accuracy", "loss"], found
            assert found["loss"] == ddprun.Metric(average=0.75, sum=3, weight=4, min=0, max=1), found
            assert metrics.reduce(group) == {}
            if me == 1:
                store.wait(["go on"])
            work = group.all_reduce_async(values := array.array("i", [1]))
            if me == 0:
                try:
                    work.wait(timeout=0.05)
                    print("ended")
                except ddprun.TimedOut as error:
                    assert "all_reduce has not ended within 0.05 s" in str(error)
                store.set("go on", b"")
            work.wait(timeout=60)
            assert values[0] == 2
            smaller = group.shrink(lost=[1]) if me == 0 else None
            assert me or (smaller.world_size, smaller.all_gather_bytes(b"me")) == (1, [b"me"])
            print("right", me)
        """)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("right"), 2, done.stdout)
        self.assertNotIn("found", done.stdout)
        self.assertNotIn("ended", done.stdout)


if __name__ == "__main__":
    ddprun_case.main()
