"""The backend ddprun where something goes wrong: peers that are lost, late or different, bad input, forks, the end."""

import os
import subprocess

import torch_case
from torch_case import ddprun_case


class Failures(torch_case.TorchCase):
    """What ranks see of each other's failures."""

    def test_errors_are_typed_and_carry_rank_host_operation_and_peer(self):
        done = self.ranks("""
            me, n = start()
            error = None
            try:
                dist.all_reduce(torch.ones(4 + me))
            except ddprun.torch.DdprunError as caught:
                error = caught
            assert isinstance(error, ddprun.Mismatch) and isinstance(error, RuntimeError), error
            assert VERSION < (2, 1) or isinstance(error, dist.DistBackendError)
            assert "all_reduce" in str(error) and "all_reduce" in error.operation, error
            assert (error.kind, error.rank) == ("mismatch", me) and error.host == "here", vars(error)
            refused("aborted", "", dist.all_reduce, torch.ones(1))
            print("typed", me, error.peer)
        """, DDPRUN_HOST="here")
        self.assertIn("typed 0", done.stdout, done.stderr)
        self.assertIn("typed 1", done.stdout, done.stderr)

    def test_a_rank_that_exits_with_work_under_way_ends_soon_and_is_the_first_cause(self):
        done = self.ranks("""
            ddprun.torch._backend.EXIT_LIMIT_S = 0.5
            dist.init_process_group("ddprun", timeout=timedelta(seconds=20))
            while dist.get_rank() == 0:
                time.sleep(1)  # Until it is stopped.
            work = dist.all_reduce(torch.ones(1), async_op=True)
            sys.exit(3)
        """)
        self.assertRegex(done.stderr, "rank 1 .* failed first: .* exited with 3")
        self.assertIn("they are aborted", done.stdout + done.stderr)

    def test_errors_pass_between_processes(self):
        self.right("""
            import copy, pickle
            from ddprun.torch import _errors
            for status in (*_errors._KINDS, 100):
                error = _errors.error(status, "a text", missing=(1, 2), rank=3, host="here", operation="send", peer=1)
                for passed in (copy.copy(error), pickle.loads(pickle.dumps(error))):
                    assert type(passed) is type(error) and isinstance(passed, ddprun.torch.DdprunError), passed
                    assert (str(passed), vars(passed)) == ("a text", vars(error)), vars(passed)
        """, nproc=1)

    def test_ctrl_c_ends_the_meeting_as_what_it_is(self):
        """Nobody else comes; the signal is sent while the library waits, and calls the store again and again."""
        self.right("""
            import signal, threading
            store = dist.FileStore(os.environ["STORE"], 2)
            def send():
                main = threading.main_thread().ident
                while sys._current_frames()[main].f_code.co_name != "join":
                    pass
                os.kill(os.getpid(), signal.SIGINT)
            for turn in range(5):
                threading.Thread(target=send).start()
                try:
                    dist.init_process_group("ddprun", store=store, rank=0, world_size=2, timeout=LIMIT)
                except KeyboardInterrupt:
                    print("interrupted")
                assert not dist.is_initialized()
        """, nproc=1, STORE=self.path("store"))

    def test_a_deadline_names_who_is_missing(self):
        self.right("""
            me, n = start()
            group = dist.new_group([0, 1, 2], timeout=LIMIT)
            if me == 0:
                ddprun.torch._backend.backend_of(group).set_timeout(timedelta(milliseconds=300))  # Not for the meeting.
                error = refused("timed_out", "timeout", dist.barrier, group=group)
                assert isinstance(error, TimeoutError) and set(error.missing) == {1, 2}, vars(error)
                open(os.environ["MARK"], "w").close()
            while not os.path.exists(os.environ["MARK"]):
                time.sleep(0.01)
        """, nproc=3, MARK=self.path("mark"))

    def test_a_group_is_not_freed_while_another_thread_aborts_it(self):
        self.right("""
            import threading, unittest.mock
            from ddprun.torch import _engine
            order, inside, go_on = [], threading.Event(), threading.Event()
            library = unittest.mock.MagicMock()
            def abort(handle):
                inside.set()
                go_on.wait()
                order.append("aborted")
            library.ddprun_group_abort.side_effect = abort
            library.ddprun_group_destroy.side_effect = lambda handle: order.append("freed")
            with unittest.mock.patch.object(_engine, "library", lambda: library):
                engine = _engine.Engine(1, 0, 1, 1000, None)
                aborting = threading.Thread(target=engine.abort)
                aborting.start()
                inside.wait()
                closing = threading.Thread(target=engine.close)
                closing.start()
                closing.join(0.3)  # It cannot end now, but might without the lock.
                go_on.set()
                aborting.join(), closing.join()
                engine.abort()
            assert order == ["aborted", "freed"], order
        """, nproc=1)

    def test_a_blocking_call_of_a_daemon_thread_does_not_hold_up_the_exit(self):
        """Whoever waits in such a call has the engine's lock, until the call is aborted."""
        done = self.ranks("""
            import atexit, threading
            from ddprun import _c_api
            from ddprun.torch import _engine
            from ddprun.torch._arguments import Lending
            _engine.OTHERS_LIMIT_S = 0.2
            dist.init_process_group("ddprun", timeout=timedelta(seconds=20))
            engine = ddprun.torch._backend.backend_of()._engine
            if dist.get_rank() == 0:
                def receive():
                    lending = Lending("recv", 0)
                    try:
                        engine.run(_c_api.RECV, lending, outs=lending.arrays([torch.ones(1)], written=True), root=1, waits=True)
                    except ddprun.torch.DdprunError as error:
                        print("ended by", error.kind, flush=True)
                thread = threading.Thread(target=receive, daemon=True)
                thread.start()
                while not engine._lock.locked():
                    time.sleep(0.01)
                atexit._run_exitfuncs()
                thread.join()
                open(os.environ["MARK"], "w").close()
            while not os.path.exists(os.environ["MARK"]):
                time.sleep(0.01)
        """, MARK=self.path("mark"))
        self.assertIn("ended by aborted", done.stdout, done.stdout + done.stderr)

    def test_a_receive_that_cannot_be_posted_leaves_nothing_behind(self):
        self.right("""
            import unittest.mock
            from ddprun.torch import _any_source
            me, n = start()
            if me == 0:
                backend, box = ddprun.torch._backend.backend_of(), torch.zeros(1)
                posts, post, calls = _any_source.Posts, _any_source.Posts._post, []
                def once(self, source, tag):
                    calls.append(source)
                    if len(calls) == 2:
                        raise OSError("no descriptor left")
                    post(self, source, tag)
                with unittest.mock.patch.object(posts, "_post", once):
                    try:
                        backend.recv_anysource([box], 0)
                        raise AssertionError("it was posted")
                    except OSError:
                        pass
                open(os.environ["GO"], "w").close()
                assert sorted(dist.recv(box) for _ in range(2)) == [1, 2]
            else:
                while not os.path.exists(os.environ["GO"]):
                    time.sleep(0.01)
                dist.send(torch.full((1,), float(me)), 0)
            dist.barrier()
        """, nproc=3, GO=self.path("go"))

    def test_a_crash_says_where_in_python_it_was(self):
        done = self.ranks("""
            import ctypes
            def crashes():
                ctypes.string_at(16)
            start()
            crashes()
        """, nproc=1)
        self.assertRegex(done.stderr, r"failed first: [^\n]*\n(?:.*\n)*SIGSEGV at address 0x10\n(?:.*\n)*[^\n]*_ctypes")
        self.assertRegex(done.stdout + done.stderr, r"Fatal Python error: Segmentation fault\n(?:.*\n)*.* in crashes")

    def test_works_that_nobody_waits_for_are_freed_with_their_tensors(self):
        self.right("""
            import gc, weakref
            start()
            tensors = []
            kept = dist.all_reduce(torch.ones(3), async_op=True)
            for _ in range(300):
                tensor = torch.ones(3)
                tensors.append(weakref.ref(tensor))
                dist.all_reduce(tensor, async_op=True)
                del tensor
            dist.barrier()
            for _ in range(3):
                dist.all_reduce(torch.ones(1), async_op=True).wait()
                dist.all_reduce(torch.ones(1), async_op=True)
            gc.collect()
            alive = sum(tensor() is not None for tensor in tensors)
            assert alive < 5, alive
            assert len(ddprun.torch._works._held) < 100, len(ddprun.torch._works._held)
            assert kept.wait() and kept.result()[0][0] == 2
        """)

    def test_a_group_is_closed_once_though_two_threads_do_so(self):
        self.right("""
            import threading, unittest.mock
            from ddprun.torch import _engine
            order, inside, go_on = [], threading.Event(), threading.Event()
            library = unittest.mock.MagicMock()
            def shutdown(handle, limit):
                inside.set()
                go_on.wait()
                order.append("shut down")
            library.ddprun_group_shutdown.side_effect = shutdown
            library.ddprun_group_destroy.side_effect = lambda handle: order.append("freed")
            with unittest.mock.patch.object(_engine, "library", lambda: library):
                engine = _engine.Engine(1, 0, 1, 1000, None)
                threads = [threading.Thread(target=engine.close) for _ in range(2)]
                threads[0].start()
                inside.wait()
                threads[1].start()
                threads[1].join(0.3)  # It cannot end now, but would be inside too without the lock.
                go_on.set()
                for each in threads:
                    each.join()
            assert order == ["shut down", "freed"], order
        """, nproc=1)

    def test_a_tensor_that_cannot_take_its_result_is_an_error_and_other_futures_complete(self):
        self.right("""
            me, n = start()
            gone = torch.ones(4, 6)[:, ::2]
            works = [dist.all_reduce(gone, async_op=True)]
            gone.set_()  # Before anything finishes the work, as the next call may.
            works.append(dist.all_reduce(torch.ones(3), async_op=True))
            futures = [each.get_future() for each in works]
            try:
                futures[0].wait()
                raise AssertionError("a result went into a tensor that is gone")
            except RuntimeError as error:
                assert "went" not in str(error), error
            same(futures[1].wait()[0], torch.full((3,), 2.0))
            assert works[0].exception() is not None and works[1].exception() is None
        """)

    def test_the_ends_of_a_group_that_has_the_number_of_another_one_are_its_own(self):
        self.right("""
            import threading
            from ddprun.torch._works import Waiter
            waiter, ends = Waiter(), [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2)]
            inside, go_on, told = threading.Event(), threading.Event(), []
            class Group:
                def __init__(self, name, body=lambda: None):
                    self.name, self.body = name, body
                def finish_ended(self):
                    told.append(self.name)
                    self.body()
            def stay():
                inside.set()
                go_on.wait()
            def replace():  # While the waiter has still to look at the other descriptor.
                waiter.drop(ends[1])
                waiter.watch(Group("new", done.set), ends[1])
                os.eventfd_write(ends[1], 1)
            done = threading.Event()
            first, old = Group("first", stay), Group("old")
            waiter.watch(first, ends[0]), waiter.watch(old, ends[1])
            os.eventfd_write(ends[0], 1)
            inside.wait()
            first.body = replace
            os.eventfd_write(ends[0], 1), os.eventfd_write(ends[1], 1)
            go_on.set()
            assert done.wait(60), told
            assert "old" not in told, told
            waiter.stop()
        """, nproc=1)

    def test_a_monitored_barrier_names_the_ranks_that_did_not_come(self):
        self.needs(2, 14)
        self.right("""
            me, n = start()
            if me == 0:
                error = refused("timed_out", "Ranks 1, 2 failed to pass monitoredBarrier", dist.monitored_barrier,
                                timeout=timedelta(milliseconds=300), wait_all_ranks=True)
                assert error.missing == (1, 2), error.missing
                open(os.environ["MARK"], "w").close()
            while not os.path.exists(os.environ["MARK"]):
                time.sleep(0.01)
        """, nproc=3, MARK=self.path("mark"))

    def test_an_error_reaches_futures_and_their_callbacks(self):
        done = self.ranks("""
            me, n = start()
            work = dist.all_reduce(torch.ones(4 + me), async_op=True)
            future = work.get_future().then(lambda f: f.value()[0])
            try:
                future.wait()
                raise AssertionError("the future has a value")
            except RuntimeError as error:
                assert "all_reduce" in str(error), error
            try:
                work.wait()
            except ddprun.Mismatch:
                print("both", me)
        """)
        self.assertEqual(done.stdout.count("both"), 2, done.stderr)

    def test_ddp_ends_with_the_sentence(self):
        done = self.ranks("""
            me, n = start()
            net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
            if me == 1:
                os._exit(7)
            net(torch.ones(1, 3)).sum().backward()
        """)
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertIn("rank 1", done.stderr)

    def test_abort_ends_what_waits(self):
        self.right("""
            import threading
            me, n = start()
            group = dist.new_group([0, 1])
            if me == 0:
                late = dist.all_reduce(torch.ones(1), group=group, async_op=True)
                from ddprun.torch._backend import backend_of
                threading.Timer(0.1, backend_of(group).abort).start()
                refused("aborted", "", late.wait)
                refused("aborted", "", dist.all_reduce, torch.ones(1), group=group)
            dist.all_reduce(torch.ones(1))  # Other groups go on.
        """)


class BadInput(torch_case.TorchCase):
    """What one rank does wrong is refused before anything is sent."""

    def test_tensors(self):
        self.right("""
            me, n = start()
            refused("bad_argument", "this group is for CPU tensors", dist.distributed_c10d._get_default_group().allreduce
                    if VERSION < (2, 14) else ddprun.torch._backend.backend_of().allreduce, [torch.ones(2, device="meta")])
            for bad in (torch.ones(2, dtype=torch.bool),):
                refused("bad_argument", "avg", dist.all_reduce, bad, op=dist.ReduceOp.AVG)
            if hasattr(torch, "float8_e5m2"):
                eight = torch.ones(4).to(torch.float8_e5m2)
                dist.broadcast(eight, src=0)
                refused("bad_argument", "float8_e5m2", dist.all_reduce, eight)
            from ddprun.torch._backend import backend_of
            backend = backend_of()
            refused("bad_argument", "2 tensors are needed", backend.allgather, [[torch.ones(1)]], [torch.ones(1)])
            refused("bad_argument", "do not add up", backend.all_to_all_single, torch.ones(4), torch.ones(4), [1, 1], [2, 2])
            refused("bad_argument", "one tensor is needed", backend.allreduce, [torch.ones(1), torch.ones(1)])
            refused("bad_argument", "is negative", backend.send, [torch.ones(1)], 1 - me, -1)
            refused("bad_argument", "is negative", backend.recv_anysource, [torch.ones(1)], -1)
            refused("bad_argument", "share memory", backend.recv_anysource, [torch.ones(1).expand(3)], 0)
            alone = [dist.new_group([rank]) for rank in range(n)][me]
            refused("bad_argument", "no other rank", ddprun.torch._backend.backend_of(alone).recv_anysource, [torch.ones(1)], 0)
            refused("bad_argument", "a tensor is needed", backend.allgather, [["a", "b"]], [torch.ones(1)])
            dist.all_reduce(values := torch.ones(1))
            same(values, torch.tensor([2.0]))
        """)

    def test_a_child_is_refused_though_a_thread_of_its_parent_is_in_a_call(self):
        self.right("""
            import signal, threading
            me, n = start()
            total = torch.ones(1)
            if me == 0:
                thread = threading.Thread(target=dist.all_reduce, args=(total,))
                thread.start()
                inside = ("_issue", "wait_for")  # torch 1.13 waits for a work.
                while not any(frame.f_code.co_name in inside for frame in sys._current_frames().values()):
                    time.sleep(0.01)
                child = os.fork()
                if child == 0:
                    signal.signal(signal.SIGALRM, signal.SIG_DFL)
                    signal.alarm(20)
                    code = 1
                    try:
                        dist.all_reduce(torch.ones(1))
                    except ddprun.BadArgument as error:
                        code = 0 if "fork" in str(error) else 2
                    os._exit(code)
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                open(os.environ["MARK"], "w").close()
                assert code == 0, code
                thread.join()
            else:
                while not os.path.exists(os.environ["MARK"]):
                    time.sleep(0.01)
                dist.all_reduce(total)
            same(total, torch.full((1,), 2.0))
        """, MARK=self.path("mark"))

    def test_a_child_is_refused_though_another_thread_held_every_lock_at_the_fork(self):
        self.right("""
            import signal, threading
            from ddprun.torch._backend import backend_of
            start()
            backend = backend_of()
            engine = backend._engine
            held, forked = threading.Event(), threading.Event()
            def hold():
                with engine._lock, engine._closes, engine._change:
                    held.set()
                    forked.wait()
            thread = threading.Thread(target=hold)
            thread.start()
            held.wait()
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(20)
                code = 1
                try:
                    backend.allreduce([torch.ones(1)])
                except ddprun.BadArgument as error:
                    code = 0 if "fork" in str(error) else 2
                backend.shutdown()
                os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            forked.set()
            thread.join()
            assert code == 0, code
            dist.all_reduce(torch.ones(1))
        """)

    def test_groups_that_are_gone(self):
        self.right("""
            from ddprun.torch._backend import backend_of
            me, n = start()
            backend = backend_of()
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    backend.allreduce([torch.ones(1)])
                except ddprun.BadArgument as error:
                    code = 0 if "fork" in str(error) else 2
                os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            dist.all_reduce(torch.ones(1))
            backend.shutdown()
            refused("aborted", "was destroyed", backend.allreduce, [torch.ones(1)])
            dist.destroy_process_group()
        """)

    def test_threads_that_use_groups_of_their_own_at_once(self):
        self.right("""
            import threading
            me, n = start()
            groups, errors = [dist.new_group([0, 1]) for _ in range(4)], []
            def sums(place):
                try:
                    for turn in range(50):
                        dist.all_reduce(values := torch.full((1000,), float(turn + place)), group=groups[place])
                        same(values, torch.full((1000,), 2.0 * (turn + place)))
                except BaseException as error:
                    errors.append(error)
            threads = [threading.Thread(target=sums, args=(place,)) for place in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not errors, errors
        """)

    def test_groups_of_other_backends(self):
        self.right("""
            me, n = start("gloo")
            refused("bad_argument", "not of the backend", ddprun.torch.DistributedDataParallel, torch.nn.Linear(1, 1))
            refused("bad_argument", "not of the backend", ddprun.torch.shared_zeros, [1])
        """)

    def test_libraries(self):
        code = f"""import torch.distributed as d, ddprun.torch
d.init_process_group('ddprun', init_method='file://{self.path("meeting")}', rank=0, world_size=1)"""
        done = subprocess.run([torch_case.PYTHON, "-c", code], env=torch_case.environment(DDPRUN_LIB="/no/such.so"),
                              capture_output=True, text=True, timeout=2 * ddprun_case.PATIENCE, check=False)
        self.assertIn("/no/such.so does not exist: install ddprun's wheel", done.stderr)


class Ends(torch_case.TorchCase):
    """How processes end."""

    def test_the_interpreter_ends_with_work_under_way(self):
        done = self.ranks("""
            me, n = start()
            futures = [dist.all_reduce(torch.ones(1 << 16), async_op=True).get_future() for _ in range(20)]
            follow = [f.then(lambda f: f.value()) for f in futures]
            print("end", me, flush=True)
        """)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("end"), 2)

    def test_a_rank_that_raises_is_the_first_cause(self):
        done = self.ranks("""
            me, n = start()
            work = dist.all_reduce(torch.ones(1), async_op=True) if me == 1 else None
            future = work.get_future() if work else None
            while me == 0:
                time.sleep(1)  # Until it is stopped.
            raise ValueError("no such data")
        """)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("no such data", done.stderr)
        self.assertIn("rank 1", done.stderr)

    def test_a_killed_rank_is_named_by_the_others(self):
        done = self.ranks("""
            me, n = start()
            dist.all_reduce(torch.ones(1))
            if me == 1:
                os.kill(os.getpid(), 9)
            dist.all_reduce(torch.ones(1))
        """)
        self.assertEqual(done.returncode, 137, done.stderr)
        self.assertIn("rank 1", done.stderr)

    def test_under_torchrun(self):
        script = self.script("""
            me, n = start()
            dist.all_reduce(values := torch.ones(1))
            print(f"sum {me} {values.item()}\\n", end="")  # torchrun's -u writes each argument by itself.
            dist.destroy_process_group()
        """)
        done = self.launched([torch_case.PYTHON, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port",
                              str(ddprun_case.free_port()), script], PYTHON_EXEC=torch_case.PYTHON)
        if "AttributeError" in done.stderr and torch_case.torch_version() < (2, 0):
            self.skipTest("Debian's torchrun does not run under Python 3.11")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("sum 0 2.0", done.stdout)
        self.assertIn("sum 1 2.0", done.stdout)


if __name__ == "__main__":
    assert os.path.exists(ddprun_case.DDPRUN), "DDPRUN_BIN names no folder with ddprun"
    torch_case.main()
