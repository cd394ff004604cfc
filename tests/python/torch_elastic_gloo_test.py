"""ddprun.elastic.torch.Distributed: torch.distributed on torch's own Gloo in a job whose ranks are killed."""

import os
import signal

import torch_case
from ddprun_case import wait_until
from elastic_case import PATIENCE, ElasticCase

# Gradients are rounded to multiples of 2**-20, whose sums in float64 have the same bits in any order.
TRAIN = """
import zlib
import torch, torch.distributed as dist
from ddprun.elastic.torch import Distributed
torch.manual_seed(1), torch.set_num_threads(1)
x = torch.randn(200, 8)
y = x.sum(1, keepdim=True)
net = torch.nn.Linear(8, 1)
batches = elastic.GlobalBatches(len(x), 30, shards=6, seed=4)
STEPS = 40
job = Job().keep(net=net)
world = Distributed("gloo", timeout=1000)

def gradient_of(step):
    total = torch.zeros(9, dtype=torch.float64)
    for shard in step.shards(batches):
        note_shard(step, shard)
        die("shard", step)
        net.zero_grad()
        torch.nn.functional.mse_loss(net(x[shard.indices]), y[shard.indices], reduction="sum").backward()
        total += torch.round(torch.cat([p.grad.flatten() for p in net.parameters()]).double() * 2.0**20)
    return total

def finish(step, total):
    def apply():
        flat = (0.01 * total / 2.0**20 / batches.batch_size(step.number)).float()
        with torch.no_grad():
            net.weight -= flat[:8].view(1, 8)
            net.bias -= flat[8:]
        die("apply", step)
    step.commit(apply)
    note_commit(step)

def run(train):
    job.run(STEPS, train)
    print("digest", zlib.crc32(torch.cat([p.detach().flatten() for p in net.parameters()]).numpy().tobytes()), flush=True)
"""

SUMS = """
opened, inner_init = [], dist.init_process_group
def train(step):
    def init(*arguments, **options):
        die("open", step)
        opened.append(step.round)
        inner_init(*arguments, **options)
    dist.init_process_group = init
    pace(step)
    die("begin", step)
    with world.over(step):
        assert (dist.get_rank(), dist.get_world_size()) == (step.rank, step.world_size)
        total = gradient_of(step)
        dist.all_reduce(total)
        die("summed", step)
    finish(step, total)
run(train)
assert len(opened) == len(set(opened)), "a group a round"
"""


class Gloo(ElasticCase):
    python = torch_case.PYTHON

    def digest(self, *parts, **options):
        job = self.ended(TRAIN, *parts, **options)
        found = set(self.said(job, "digest .*"))
        self.assertEqual(len(found), 1, job.text())
        return job, found.pop()

    def test_the_bits_of_a_quiet_run_whoever_dies_where(self):
        _, quiet = self.digest(SUMS, nproc=1)
        job, killed = self.digest(SUMS, nproc=3, env={"DIE": "open:0:1 shard:9:0 summed:15:2"})
        self.assertEqual(killed, quiet, job.text())
        self.assert_each_sample_once(200, 6, 40)
        self.assertEqual(job.err().count("the other workers continue"), 3, job.text())

    def test_a_rank_that_dies_while_the_others_wait_for_it_in_a_collective(self):
        """It computes, and is killed from outside; all others are in all_reduce, and two of them are no neighbours of it."""
        job = self.job(TRAIN, """
            def train(step):
                pace(step)
                with world.over(step):
                    total = gradient_of(step)
                    if step.number == 5 and step.rank == 2 and once("computes"):
                        open(f"{D}/victim.{os.getpid()}", "w").close()
                        time.sleep(100000)
                    open(f"{D}/inside.{step.number}.{step.rank}", "w").close()
                    dist.all_reduce(total)
                finish(step, total)
            run(train)
        """, nproc=4)

        def are_inside():
            names = os.listdir(self.folder)
            return {f"inside.5.{rank}" for rank in (0, 1, 3)} <= set(names) and any(n.startswith("victim.") for n in names)

        wait_until(lambda: are_inside() or job.ended(), job.text, PATIENCE)
        victim = next(int(name.split(".")[1]) for name in os.listdir(self.folder) if name.startswith("victim."))
        os.kill(victim, signal.SIGKILL)
        self.finish(job, 0, PATIENCE)
        self.assertEqual(len(set(self.said(job, "digest .*"))), 1, job.text())
        self.assert_each_sample_once(200, 6, 40)
        self.assertEqual(len(self.logs()), 5, job.text())  # Three that stay, the victim, and who replaces it.

    def test_ddp_is_made_anew_in_each_round(self):
        job, _ = self.digest("""
            made = {}
            def train(step):
                pace(step)
                die("begin", step)
                with world.over(step):
                    if step.round not in made:
                        made.clear()
                        made[step.round] = torch.nn.parallel.DistributedDataParallel(net)
                    ddp = made[step.round]
                    losses = []
                    for shard in step.shards(batches):
                        note_shard(step, shard)
                        losses.append(torch.nn.functional.mse_loss(ddp(x[shard.indices]), y[shard.indices]))
                    net.zero_grad()
                    torch.stack(losses).sum().backward()
                    die("summed", step)
                def apply():
                    with torch.no_grad():
                        for parameter in net.parameters():
                            parameter -= 0.001 * parameter.grad
                step.commit(apply)
                note_commit(step)
            run(train)
        """, nproc=2, env={"DIE": "summed:10:0"})
        self.assert_each_sample_once(200, 6, 40)
        self.assertEqual(job.err().count("the other workers continue"), 1, job.text())

    def test_an_error_of_the_program_ends_that_rank_alone(self):
        job, _ = self.digest("""
            def train(step):
                pace(step)
                with world.over(step):
                    total = gradient_of(step)
                    if step.number == 5 and step.rank == 1 and step.world_size == FULL and once("raised"):
                        raise ValueError("no such sample")
                    dist.all_reduce(total)
                finish(step, total)
            run(train)
        """, nproc=3)
        self.assertIn("ValueError: no such sample", job.err())
        self.assertEqual(job.err().count("the other workers continue"), 1, job.text())
        self.assert_each_sample_once(200, 6, 40)

    def test_a_child_of_fork_leaves_the_group_to_its_parent(self):
        self.digest("""
            def train(step):
                with world.over(step):
                    child = os.fork()
                    if child == 0:
                        world.close()
                        os._exit(0)
                    os.waitpid(child, 0)
                    total = gradient_of(step)
                    dist.all_reduce(total)
                finish(step, total)
            STEPS = 2
            run(train)
        """, nproc=2, options=())

    def test_a_group_that_is_there_is_refused(self):
        self.ended(TRAIN, """
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            try:
                Distributed("gloo")
            except ddprun.BadArgument as error:
                assert "knows nothing of rounds" in str(error)
            else:
                raise AssertionError("not refused")
            dist.destroy_process_group()
        """, nproc=1)


if __name__ == "__main__":
    torch_case.main()
