"""The backend ddprun: what each operation of torch.distributed moves, asynchronously and in groups."""

import unittest

import torch_case


class Collectives(torch_case.TorchCase):
    """Two or three ranks."""

    def test_reductions_of_every_type(self):
        self.right("""
            me, n = start()
            assert dist.get_backend() == "ddprun"
            types = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32,
                     torch.int64, torch.uint8]
            for dtype in types:
                for op, wanted in ((dist.ReduceOp.SUM, 6), (dist.ReduceOp.MIN, 1), (dist.ReduceOp.MAX, 3),
                                   (dist.ReduceOp.PRODUCT, 6)):
                    values = torch.full((5, 3), me + 1, dtype=dtype)
                    dist.all_reduce(values, op=op)
                    same(values, torch.full((5, 3), wanted, dtype=dtype))
            for op, wanted in ((dist.ReduceOp.BAND, 4 & 5 & 6), (dist.ReduceOp.BOR, 7), (dist.ReduceOp.BXOR, 4 ^ 5 ^ 6)):
                values = torch.tensor([4 + me])
                dist.all_reduce(values, op=op)
                same(values, torch.tensor([wanted]))
            flags = torch.tensor([me == 0, True, False])
            dist.all_reduce(flags, op=dist.ReduceOp.MAX)
            same(flags, torch.tensor([True, True, False]))
            dist.all_reduce(flags, op=dist.ReduceOp.MIN)
            same(flags, torch.tensor([True, True, False]))
            mean = torch.tensor([float(me), 3.0])
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            same(mean, torch.tensor([1.0, 3.0]))
            for whole in (torch.tensor([[me, -me], [8, -8]]), torch.tensor([[me, 8], [-me, -8]]).T):  # As NCCL: towards zero.
                dist.all_reduce(whole, op=dist.ReduceOp.AVG)
                same(whole, torch.tensor([[1, -1], [8, -8]]))
                whole += me
                dist.all_reduce(whole, op=dist.ReduceOp.AVG, async_op=True).wait()
                same(whole, torch.tensor([[2, 0], [9, -7]]))
            odd = torch.tensor([me, -me], dtype=torch.int32).mul_(me)
            dist.all_reduce(odd, op=dist.ReduceOp.AVG)
            same(odd, torch.tensor([1, -1], dtype=torch.int32))
            complex_ = torch.tensor([1 + 1j * me])
            dist.all_reduce(complex_)
            same(complex_, torch.tensor([3 + 3j]))
            scalar, nothing = torch.tensor(2.0), torch.empty(0)
            dist.all_reduce(scalar), dist.all_reduce(nothing)
            assert scalar.item() == 6.0
            for root in range(n):
                values = torch.tensor([me + 1.0])
                dist.reduce(values, dst=root)
                same(values, torch.tensor([6.0 if me == root else me + 1.0]))
        """, nproc=3)

    def test_moves(self):
        self.right("""
            me, n = start()
            for dtype in (torch.float32, torch.bool, torch.complex64, torch.int16):
                values = torch.arange(6).reshape(2, 3).to(dtype) if me == 1 else torch.zeros(2, 3, dtype=dtype)
                dist.broadcast(values, src=1)
                same(values, torch.arange(6).reshape(2, 3).to(dtype))
            parts = [torch.zeros(2, 2) for _ in range(n)]
            dist.all_gather(parts, torch.full((2, 2), float(me)))
            for rank, part in enumerate(parts):
                same(part, torch.full((2, 2), float(rank)))
            dist.gather(torch.tensor([me]), parts := [torch.zeros(1, dtype=torch.int64) for _ in range(n)] if me == 2 else None, dst=2)
            assert me != 2 or [int(part) for part in parts] == [0, 1, 2]
            out = torch.zeros(2)
            dist.scatter(out, [torch.full((2,), float(r)) for r in range(n)] if me == 0 else None, src=0)
            same(out, torch.full((2,), float(me)))
            out = torch.zeros(2)
            dist.reduce_scatter(out, [torch.full((2,), float(r + me)) for r in range(n)])
            same(out, torch.full((2,), 3.0 * me + 3))
            outs = [torch.zeros(1, dtype=torch.int32) for _ in range(n)]
            dist.all_to_all(outs, [torch.tensor([10 * me + r], dtype=torch.int32) for r in range(n)])
            assert [int(out) for out in outs] == [me, 10 + me, 20 + me]
            # Rank r sends r + 1 rows to rank 0, none to rank 1, one to rank 2.
            sends, receives = [me + 1, 0, 1], ([1, 2, 3], [0, 0, 0], [1, 1, 1])[me]
            mine = torch.full((sum(sends), 2), float(me))
            theirs = torch.full((sum(receives), 2), -1.0)
            dist.all_to_all_single(theirs, mine, receives, sends)
            same(theirs, torch.cat([torch.full((count, 2), float(r)) for r, count in enumerate(receives)]))
            even = torch.zeros(6)
            dist.all_to_all_single(even, torch.arange(6.0) + 10 * me)
            same(even, torch.cat([torch.arange(2.0) + 2 * me + 10 * r for r in range(n)]))
            name = "all_gather_into_tensor" if VERSION >= (1, 13) else "_all_gather_base"
            flat = torch.zeros(3 * n)
            getattr(dist, name)(flat, torch.full((3,), float(me)))
            same(flat, torch.arange(n).repeat_interleave(3).float())
            part = torch.zeros(2)
            dist.reduce_scatter_tensor(part, torch.arange(6.0))
            same(part, (torch.arange(2.0) + 2 * me) * n)
            dist.barrier()
        """, nproc=3)

    def test_tensors_that_are_not_contiguous(self):
        self.right("""
            me, n = start()
            grid = torch.zeros(4, 6)
            dist.all_reduce(grid[:, ::2].add_(1))
            same(grid, torch.tensor([2.0, 0.0] * 3).expand(4, 6))
            turned = torch.arange(6.0).reshape(2, 3).t()
            work = dist.all_reduce(turned, async_op=True)
            work.wait()
            same(turned, 2 * torch.arange(6.0).reshape(2, 3).t())
            images = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
            dist.broadcast(images, src=0)
            outs = [torch.zeros(3, 2).t() for _ in range(n)]
            dist.all_gather(outs, torch.arange(6.0).reshape(3, 2).t())
            for out in outs:
                same(out, torch.arange(6.0).reshape(3, 2).t())
            leaf = torch.ones(3, requires_grad=True)
            dist.all_reduce(leaf.detach())
            refused("bad_argument", "elements of the tensor share memory", dist.all_reduce, torch.ones(1).expand(4))
            dist.all_reduce(torch.ones(1))  # The group is as good as before.
        """)

    def test_works_and_futures(self):
        self.right("""
            me, n = start()
            works = [dist.all_reduce(torch.full((k + 1,), 1.0), async_op=True) for k in range(20)]
            values = torch.full((100,), float(me))
            work = dist.all_reduce(values, async_op=True)
            future = work.get_future()
            doubled = future.then(lambda f: f.value()[0] * 2)
            same(doubled.wait(), torch.full((100,), 2.0))
            for each in works:
                assert each.wait() in (True, None)
            # One without its peer: it has not ended.
            if me == 0:
                late = dist.all_reduce(torch.ones(1), async_op=True)
                assert not late.is_completed()
                try:
                    late.wait(timedelta(milliseconds=20))
                    raise AssertionError("it waited for nobody")
                except ddprun.TimedOut as error:
                    assert "it continues" in str(error), error
                dist.distributed_c10d._get_default_group()
                open(os.environ["MARK"], "w").close()
                late.wait()
            else:
                while not os.path.exists(os.environ["MARK"]):
                    time.sleep(0.01)
                late = dist.all_reduce(torch.ones(1), async_op=True)
                late.get_future().wait()
            assert late.is_completed() and late.is_success() and late.exception() is None
            many = torch.futures.collect_all([dist.all_reduce(torch.ones(k + 1), async_op=True).get_future()
                                              for k in range(50)])
            assert [float(f.value()[0][0]) for f in many.wait()] == [2.0] * 50
        """, MARK=self.path("mark"))

    def test_messages(self):
        self.right("""
            me, n = start()
            other = 1 - me
            # Both receive first.
            box = torch.zeros(4)
            work = dist.irecv(box, src=other, tag=5)
            dist.isend(torch.full((4,), float(me)), dst=other, tag=5).wait()
            work.wait()
            same(box, torch.full((4,), float(other)))
            # Tags tell messages apart, whatever their order.
            one, two = torch.zeros(1), torch.zeros(2)
            if me == 0:
                sends = [dist.isend(torch.ones(1), 1, tag=1), dist.isend(torch.full((2,), 2.0), 1, tag=2)]
                [each.wait() for each in sends]
                assert all(each.is_completed() for each in sends)
            else:
                dist.recv(two, 0, tag=2), dist.recv(one, 0, tag=1)
                same(torch.cat([one, two]), torch.tensor([1.0, 2.0, 2.0]))
            # A queue of collectives is not held up by a message that is late.
            late = dist.irecv(box, src=other, tag=9)
            dist.all_reduce(torch.ones(1000))
            dist.send(torch.ones(4), other, tag=9) if me == 0 else None
            late.wait() if me == 1 else dist.isend(torch.ones(4), other, tag=11)
            dist.recv(box, 0, tag=11) if me == 1 else dist.isend(torch.ones(4), other, tag=12)
            if me == 1:
                dist.recv(box, 0, tag=12)
                dist.send(torch.ones(4), 0, tag=9)
            else:
                late.wait()
            ops = [dist.P2POp(dist.isend, torch.full((3,), float(me)), other),
                   dist.P2POp(dist.irecv, three := torch.zeros(3), other)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            same(three, torch.full((3,), float(other)))
        """)

    def test_messages_from_any_source(self):
        self.right("""
            me, n = start()
            if me == 0:
                seen = []
                for _ in range(4):
                    box = torch.zeros(3)
                    seen.append(dist.recv(box))
                    same(box, torch.full((3,), float(seen[-1])))
                assert sorted(seen) == [1, 1, 2, 2], seen
            else:
                for _ in range(2):
                    dist.send(torch.full((3,), float(me)), 0)
            dist.barrier()
        """, nproc=3)

    def test_a_rank_that_sends_nothing_ends_no_receive_from_any_source(self):
        self.right("""
            me, n = start()
            group = dist.new_group([0, 1, 2])
            if me == 0:
                backend, box = ddprun.torch._backend.backend_of(group), torch.zeros(1)
                backend.set_timeout(timedelta(milliseconds=100))
                work = backend.recv_anysource([box], 0)
                refused("timed_out", "given to wait()", work.wait, timedelta(seconds=3))  # Not of rank 2's part of it.
                open(os.environ["GO"], "w").close()
                assert work.wait(LIMIT) and work.source_rank() == 1 and box.item() == 2
                text = "no message came within the timeout of 100 ms"
                refused("timed_out", text, dist.recv, box, group=group)
                late = backend.recv_anysource([box], 0)
                try:
                    late.get_future().wait()
                    raise AssertionError("a message came")
                except RuntimeError as error:
                    assert text in str(error), error
                open(os.environ["MARK"], "w").close()
            elif me == 1:
                while not os.path.exists(os.environ["GO"]):
                    time.sleep(0.01)
                dist.send(torch.full((1,), 2.0), 0, group=group)
            while not os.path.exists(os.environ["MARK"]):
                time.sleep(0.01)
        """, nproc=3, GO=self.path("go"), MARK=self.path("mark"))

    def test_groups_and_objects(self):
        self.right("""
            me, n = start()
            ends = dist.new_group([0, 2])
            pairs = [dist.new_group([0, 1]), dist.new_group([1, 2], timeout=LIMIT)]
            if me != 1:
                values = torch.tensor([float(me)])
                dist.all_reduce(values, group=ends)
                assert values.item() == 2.0
            for low, pair in enumerate(pairs):
                if me in (low, low + 1):
                    out = [None, None]
                    dist.all_gather_object(out, {"rank": me}, group=pair)
                    assert out == [{"rank": low}, {"rank": low + 1}]
            box = [("from", me), None]
            dist.broadcast_object_list(box, src=2)
            assert box == [("from", 2), None]
            out = [None] * n if me == 1 else None
            dist.gather_object(me * "x", out, dst=1)
            assert me != 1 or out == ["", "x", "xx"]
            got = [None]
            dist.scatter_object_list(got, ["a", "b", "c"] if me == 0 else None, src=0)
            assert got == ["abc"[me]]
            if VERSION >= (2, 1):
                dist.monitored_barrier(timeout=LIMIT) if VERSION >= (2, 14) else None
            if VERSION >= (2, 14):
                part = dist.split_group(split_ranks=[[0, 2], [1]])
                values = torch.ones(1)
                dist.all_reduce(values, group=part)
                assert values.item() == (1.0 if me == 1 else 2.0)
            if VERSION >= (2, 0):  # Before, torch itself cannot use a store twice.
                dist.destroy_process_group()
                dist.init_process_group("ddprun", timeout=LIMIT)
            dist.all_reduce(values := torch.ones(1))
            assert values.item() == 3.0
        """, nproc=3)

    def test_coalesced_and_sparse(self):
        self.right("""
            me, n = start()
            group = dist.distributed_c10d._get_default_group()
            many = [torch.full((k + 1,), 1.0) for k in range(4)]
            options = torch._C._distributed_c10d.AllreduceCoalescedOptions()
            group.allreduce_coalesced(many, options).wait()
            for each in many:
                same(each, torch.full_like(each, 2.0))
            options.reduceOp = dist.ReduceOp.AVG
            group.allreduce_coalesced(many := [torch.full((3,), 3 + 4 * me), torch.full((2,), me + 1.0)], options).wait()
            same(many[0], torch.full((3,), 5)), same(many[1], torch.full((2,), 1.5))
            if VERSION >= (2, 0):
                options.reduceOp = torch._C._distributed_c10d._make_nccl_premul_sum(3.0)
                group.allreduce_coalesced(many := [torch.ones(3)], options).wait()
                same(many[0], torch.full((3,), 6.0))
            if VERSION >= (2, 1):
                values = [torch.ones(2), torch.ones(3)]
                with dist._coalescing_manager(group=group) if VERSION >= (2, 14) else dist._coalescing_manager():
                    for each in values:
                        dist.all_reduce(each)
                same(torch.cat(values), torch.full((5,), 2.0))
            if VERSION >= (2, 14):
                sparse = torch.sparse_coo_tensor([[me, 2]], [1.0, 5.0], (4,))
                dist.all_reduce(sparse)
                same(sparse.to_dense(), torch.tensor([1.0, 1.0, 10.0, 0.0]))
        """)


if __name__ == "__main__":
    torch_case.main()
