"""ddprun.torch.DistributedSampler beside torch's, and within an epoch."""

import torch_case


class Sampler(torch_case.TorchCase):
    def test_the_indices_are_torchs(self):
        self.right("""
            from torch.utils.data.distributed import DistributedSampler as Theirs
            for length in (0, 1, 7, 24, 1000):
                for size in (1, 2, 3, 8):
                    for options in ({}, {"shuffle": False}, {"drop_last": True, "seed": 5}):
                        if options.get("drop_last") and length < size:
                            continue  # torch's has a negative number of samples.
                        for rank in range(size):
                            ours = ddprun.torch.DistributedSampler(range(length), size, rank, **options)
                            theirs = Theirs(range(length), size, rank, **options)
                            for epoch in (0, 3):
                                ours.set_epoch(epoch), theirs.set_epoch(epoch)
                                assert list(ours) == list(theirs) and len(ours) == len(theirs), (length, size, options, rank)
            refused = None
            try:
                ddprun.torch.DistributedSampler(range(5))
            except ddprun.BadArgument as error:
                refused = str(error)
            assert refused == "without a process group, num_replicas and rank must be given", refused
        """, nproc=1)

    def test_a_loader_with_workers_goes_on_within_an_epoch_on_more_ranks(self):
        code = """
            from torch.utils.data import DataLoader
            rank, size = start()
            data = list(range(96))
            sampler = ddprun.torch.DistributedSampler(data, seed=7)
            assert isinstance(sampler, torch.utils.data.Sampler)
            if os.path.exists(os.environ["STATE"]):
                sampler.load_state_dict(torch.load(os.environ["STATE"]))
            loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=2)
            read = []
            for epoch in range(sampler.epoch, 2):
                sampler.set_epoch(epoch)
                batches = len(loader)
                for number, x in enumerate(loader):
                    read.append((epoch, x.tolist()))
                    sampler.advance(len(x))
                    if os.environ["STOP"] == str((epoch, number)):
                        break
                else:
                    assert number + 1 == batches
                    continue
                break
            everybodys = [None] * size
            dist.all_gather_object(everybodys, read)
            dist.barrier()
            if rank == 0:
                torch.save(sampler.state_dict(), os.environ["STATE"])
                print("read", sorted((epoch, i) for each in everybodys for epoch, batch in each for i in batch))
            dist.destroy_process_group()
        """
        read = []
        for size, stop in ((2, "(0, 2)"), (3, "")):
            done = self.right(code, size, STATE=self.path("state"), STOP=stop)
            line = next(line for line in done.stdout.splitlines() if "read [" in line)
            read += eval(line.split("read ")[1])  # pylint: disable=eval-used
            self.assertEqual(len(read), 3 * 4 * 2 if stop else 2 * 96, read)
        self.assertEqual(sorted(read)[:96], [(0, i) for i in range(96)])
        self.assertEqual(sorted(read)[96:], [(1, i) for i in range(96)])


if __name__ == "__main__":
    torch_case.main()
