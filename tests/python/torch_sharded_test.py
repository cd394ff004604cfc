"""ddprun.elastic.torch.ShardedOptimizer: AdamW whose moments are divided among the ranks has the bits of AdamW, also when ranks
that have a part of them, or its copy, are killed."""

import torch_case
from elastic_case import ElasticCase
from torch_elastic_test import HASH

TRAIN = """
import torch
from ddprun.elastic.torch import Gradients, ShardedOptimizer
torch.manual_seed(1), torch.set_num_threads(1)
x = torch.randn(240, 19)
y = x.sum(1, keepdim=True)
net = torch.nn.Sequential(torch.nn.Linear(19, 33), torch.nn.ReLU(), torch.nn.Linear(33, 7), torch.nn.ReLU(), torch.nn.Linear(7, 1))
batches = elastic.GlobalBatches(len(x), 24, shards=8, seed=4)
AMSGRAD = os.environ.get("AMSGRAD") == "yes"
make = lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, amsgrad=AMSGRAD)
job = Job()
job.keep(net=net)
if os.environ.get("OPTIMIZER") == "plain":
    adamw = make(net.parameters())
    job.keep(adamw=adamw)
    update, apply, local = lambda step: None, adamw.step, adamw
else:
    adamw = ShardedOptimizer(job, net, make)
    update, apply, local = adamw.update, adamw.apply, adamw.local
gradients = Gradients(job, net, batches)
"""

RUN = """
def loss(shard):
    return torch.nn.functional.mse_loss(net(x[shard.indices]), y[shard.indices])
def train(step):
    pace(step)
    gradients.backward(step, loss)
    die("reduced", step)
    update(step)
    die("updated", step)
    def all_of_it():
        apply()
        local.param_groups[0]["lr"] *= 0.99
    gradients.commit(step, all_of_it)
    die("committed", step)
job.run(STEPS, train)
print("digest", hash_of(list(net.parameters())), flush=True)
"""


class Sharded(ElasticCase):
    python = torch_case.PYTHON

    def bits(self, train=TRAIN, run=RUN, steps=24, **options):
        """The run, and the digest of the weights that all its ranks have printed."""
        job = self.ended(HASH, train, f"STEPS = {steps}\n", run, **options)
        [found] = set(self.said(job, "digest .*"))
        return job, found

    def test_the_number_of_ranks_changes_no_bit_of_adamw(self):
        for amsgrad in ("no", "yes"):
            _, plain = self.bits(nproc=1, env={"OPTIMIZER": "plain", "AMSGRAD": amsgrad})
            for ranks in (1, 2, 3, 4):
                _, sharded = self.bits(nproc=ranks, env={"AMSGRAD": amsgrad})
                self.assertEqual(sharded, plain, f"{ranks} ranks, amsgrad {amsgrad}")

    def test_who_has_a_part_of_the_moments_or_its_copy_may_die(self):
        """Rank r has a part, and the copy of that of another rank: each dies, at each point of a step."""
        _, plain = self.bits(nproc=1, env={"OPTIMIZER": "plain"})
        for deaths in ("reduced:3:0 updated:9:1 committed:15:2", "updated:3:2 committed:9:0 reduced:15:1"):
            job, killed = self.bits(env={"DIE": deaths})
            self.assertEqual(killed, plain, job.text())
            self.assertIn("(restart 3 of 9)", job.err())

    def test_a_checkpoint_goes_on_with_another_number_of_ranks(self):
        _, plain = self.bits(nproc=1, env={"OPTIMIZER": "plain"})
        saves = """
def write(group):
    state = adamw.state(group)
    if group.rank == 0 and job.committed == 12:
        torch.save((net.state_dict(), state, gradients.state(), job.committed), os.environ["SAVED"])
job.between(4, write)
"""
        loads = """
saved = torch.load(os.environ["SAVED"])
net.load_state_dict(saved[0]), adamw.restore(saved[1]), gradients.restore(saved[2]), job.resume(saved[3])
"""
        env = {"SAVED": self.path("saved.pt")}
        self.bits(TRAIN + saves, nproc=3, env=env)
        _, found = self.bits(TRAIN + loads, nproc=2, env=env)
        self.assertEqual(found, plain)

    def test_what_cannot_be_sharded_is_refused(self):
        job = self.alone("""
import torch
from ddprun.elastic.torch import ShardedOptimizer
job, net = Job(), torch.nn.Linear(3, 2)
for make in (lambda p: torch.optim.SGD(p, 0.1), lambda p: torch.optim.AdamW([{"params": p}, {"params": [torch.nn.Parameter(torch.ones(1))]}])):
    try:
        ShardedOptimizer(job, net, make)
    except ddprun.Unsupported as error:
        print(error)
try:
    job.keep_sharded("x", 3, dtype="text")
except ddprun.BadArgument as error:
    print(error)
""")
        for words in ("only Adam and AdamW can be sharded", "only one group", "elements of type 'text'"):
            self.assertIn(words, job.out())


if __name__ == "__main__":
    torch_case.main()
