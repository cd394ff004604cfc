"""The backend ddprun under the libraries that train with PyTorch. Each trains a small model twice in one job's ranks, on gloo and on
ddprun, and compares. A library that this Python lacks is skipped with a sentence."""

import json
import textwrap

import torch_case
import ddprun_case  # pylint: disable=wrong-import-order

# Each script trains on the backend that BACKEND names, and rank 0 writes its results to RESULTS.
HEAD = """
import json, os, sys, warnings
warnings.filterwarnings("ignore")
import torch
import torch.distributed as dist
BACKEND = os.environ["BACKEND"]
import ddprun.torch
torch.manual_seed(3)

def report(numbers):
    assert dist.get_backend() == BACKEND, dist.get_backend()
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, [float(n) for n in numbers])
    assert all(one == everybody[0] for one in everybody), everybody
    if dist.get_rank() == 0:
        with open(os.environ["RESULTS"], "w", encoding="ascii") as file:
            json.dump(everybody[0], file)
    if BACKEND == "gloo":
        os._exit(0)  # A thread of its may still free a tensor, which aborts PyTorch 1.13 while the interpreter ends.

def sums(module):
    return [p.detach().double().sum() for p in module.parameters()]

def samples(count=32):
    torch.manual_seed(11)
    return torch.utils.data.TensorDataset(torch.randn(count, 8), torch.randn(count, 1))

def model():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
"""


class Libraries(torch_case.TorchCase):
    """Two ranks each."""

    def has(self, module):
        found = self.launched([torch_case.PYTHON, "-c", f"import {module}; print({module}.__version__)"])
        if found.returncode != 0:
            self.skipTest(f"this Python has no {module}")
        return found.stdout.strip()

    def results(self, code, backend):
        path = self.path("train.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(HEAD + textwrap.dedent(code))
        results = self.path("results-" + backend)
        done = self.launched([ddprun_case.DDPRUN, "--nproc-per-node", "2", path], BACKEND=backend, RESULTS=results,
                             FOLDER=self.path("folder-" + backend), HF_HUB_OFFLINE="1")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(results, encoding="ascii") as file:
            return json.load(file)

    def same_on_both(self, code):
        wanted, found = (self.results(code, backend) for backend in ("gloo", "ddprun"))
        self.assertGreater(len(found), 0)
        self.assertEqual(len(found), len(wanted))
        for one, other in zip(found, wanted):
            self.assertAlmostEqual(one, other, delta=1e-4 * max(1, abs(other)))

    def test_ddp_accumulates_gradients(self):
        self.same_on_both("""
            import contextlib
            dist.init_process_group(BACKEND)
            ddp = torch.nn.parallel.DistributedDataParallel(model())
            sgd = torch.optim.SGD(ddp.parameters(), 0.05, momentum=0.9)
            sampler = torch.utils.data.DistributedSampler(samples())
            losses = []
            for epoch in range(2):
                sampler.set_epoch(epoch)
                for step, (x, y) in enumerate(torch.utils.data.DataLoader(samples(), 2, sampler=sampler)):
                    last = step % 4 == 3
                    with contextlib.nullcontext() if last else ddp.no_sync():
                        loss = torch.nn.functional.mse_loss(ddp(x), y) / 4
                        loss.backward()
                    if last:
                        sgd.step()
                        sgd.zero_grad()
            report(sums(ddp))
        """)

    def test_fsdp2_and_distributed_checkpoints(self):
        self.needs(2, 6)
        self.same_on_both("""
            import torch.distributed.checkpoint as dcp
            from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard
            dist.init_process_group(BACKEND)
            mesh = init_device_mesh("cpu", (2,))
            def sharded():
                net = model()
                for part in net:
                    if isinstance(part, torch.nn.Linear):
                        fully_shard(part, mesh=mesh)
                fully_shard(net, mesh=mesh)
                return net, torch.optim.AdamW(net.parameters(), 0.01)
            def train(net, adam, steps):
                torch.manual_seed(20 + dist.get_rank())
                for _ in range(steps):
                    adam.zero_grad()
                    net(torch.randn(4, 8)).square().mean().backward()
                    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                    adam.step()
            net, adam = sharded()
            train(net, adam, 4)
            state = dict(zip(("net", "adam"), get_state_dict(net, adam)))
            dcp.save(state, checkpoint_id=os.environ["FOLDER"])
            train(net, adam, 3)
            wanted = [p.full_tensor().double().sum() for p in net.parameters()]
            again, adam = sharded()
            state = dict(zip(("net", "adam"), get_state_dict(again, adam)))
            dcp.load(state, checkpoint_id=os.environ["FOLDER"])
            set_state_dict(again, adam, model_state_dict=state["net"], optim_state_dict=state["adam"])
            train(again, adam, 3)
            found = [p.full_tensor().double().sum() for p in again.parameters()]
            assert all(torch.allclose(a, b) for a, b in zip(found, wanted)), (found, wanted)
            report(found)
        """)

    def test_dtensor_splits_a_model(self):
        self.needs(2, 6)
        self.same_on_both("""
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.tensor import distribute_tensor, Replicate
            from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
            dist.init_process_group(BACKEND)
            mesh = init_device_mesh("cpu", (2,))
            net = parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
            sgd = torch.optim.SGD(net.parameters(), 0.05)
            torch.manual_seed(9)
            for _ in range(4):
                sgd.zero_grad()
                net(torch.randn(4, 8)).square().mean().backward()
                sgd.step()
            report([p.full_tensor().double().sum() for p in net.parameters()])
        """)

    def test_zero_redundancy_optimizer(self):
        self.same_on_both("""
            from torch.distributed.optim import ZeroRedundancyOptimizer
            dist.init_process_group(BACKEND)
            ddp = torch.nn.parallel.DistributedDataParallel(model())
            adam = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.AdamW, lr=0.02)
            torch.manual_seed(20 + dist.get_rank())
            for _ in range(6):
                adam.zero_grad()
                ddp(torch.randn(4, 8)).square().mean().backward()
                adam.step()
            adam.consolidate_state_dict(0)
            report(sums(ddp))
        """)

    def test_lightning(self):
        self.has("lightning")
        self.same_on_both("""
            import lightning
            from lightning.pytorch.strategies import DDPStrategy
            class Module(lightning.LightningModule):
                def __init__(self):
                    super().__init__()
                    self.net = model()
                def training_step(self, batch, number):
                    loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
                    self.log("loss", loss, sync_dist=True)
                    return loss
                def validation_step(self, batch, number):
                    self.log("valid", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]), sync_dist=True)
                def configure_optimizers(self):
                    return torch.optim.SGD(self.parameters(), 0.05)
            trainer = lightning.Trainer(
                accelerator="cpu", devices=2, max_epochs=2, strategy=DDPStrategy(process_group_backend=BACKEND),
                default_root_dir=os.environ["FOLDER"], logger=False, enable_progress_bar=False, enable_model_summary=False,
                accumulate_grad_batches=2, gradient_clip_val=1.0)
            module = Module()
            load = torch.utils.data.DataLoader
            trainer.fit(module, load(samples(), 4), load(samples(8), 4))
            report([*sums(module), trainer.callback_metrics["loss"], trainer.callback_metrics["valid"]])
        """)

    def test_accelerate(self):
        self.has("accelerate")
        self.same_on_both("""
            import accelerate
            dist.init_process_group(BACKEND)
            accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
            net = model()
            sgd = torch.optim.SGD(net.parameters(), 0.05)
            net, sgd, data = accelerator.prepare(net, sgd, torch.utils.data.DataLoader(samples(), 4))
            assert accelerator.num_processes == 2
            for _ in range(2):
                for x, y in data:
                    with accelerator.accumulate(net):
                        loss = torch.nn.functional.mse_loss(net(x), y)
                        accelerator.backward(loss)
                        accelerator.clip_grad_norm_(net.parameters(), 1.0)
                        sgd.step()
                        sgd.zero_grad()
            accelerator.save_state(os.environ["FOLDER"])
            gathered = accelerator.gather_for_metrics(loss.detach().reshape(1))
            assert gathered.numel() == 2
            report([*sums(net), gathered.sum()])
        """)

    def test_transformers_trainer(self):
        self.has("transformers")
        self.has("accelerate")
        self.same_on_both("""
            import transformers
            dist.init_process_group(BACKEND)
            class Data(torch.utils.data.Dataset):
                def __len__(self):
                    return 16
                def __getitem__(self, i):
                    ids = torch.arange(i, i + 12) % 50
                    return {"input_ids": ids, "labels": ids}
            torch.manual_seed(5)
            net = transformers.GPT2LMHeadModel(transformers.GPT2Config(
                vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0))
            trainer = transformers.Trainer(net, transformers.TrainingArguments(
                os.environ["FOLDER"], use_cpu=True, per_device_train_batch_size=2, per_device_eval_batch_size=2, num_train_epochs=2,
                gradient_accumulation_steps=2, learning_rate=1e-2, report_to=[], disable_tqdm=True, save_steps=4, seed=1),
                train_dataset=Data(), eval_dataset=Data())
            trainer.train()
            report([*sums(net), trainer.evaluate()["eval_loss"]])
        """)


if __name__ == "__main__":
    torch_case.main()
