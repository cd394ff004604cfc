"""A script of PyTorch Lightning for start.py: as start_worker.py, by a Trainer with the strategy "ddp"."""

import os
import time

import lightning
import torch


def note(what):
    with open(os.environ["START_LOG"], "a", encoding="ascii") as file:
        file.write(f"{what} {os.environ['RANK']} {time.monotonic():.6f}\n")


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def training_step(self, batch, _number):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layers(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Notes(lightning.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 0 and trainer.current_epoch == 0:
            note("step")


def main():
    lightning.seed_everything(1)
    data = torch.utils.data.TensorDataset(torch.randn(96, 16), torch.randn(96, 1))
    trainer = lightning.Trainer(accelerator="cpu", strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]), max_epochs=1,
                                limit_train_batches=3, callbacks=[Notes()], default_root_dir=os.environ["START_FOLDER"],
                                enable_progress_bar=False, log_every_n_steps=1)
    model = Model()
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=8, num_workers=0))
    is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    trainer.strategy.barrier()
    if is_first and trainer.global_rank == trainer.world_size - 1:
        note("death")
        os._exit(3)
    if is_first:
        trainer.strategy.barrier()  # With a rank that is gone.
    print("weights", trainer.global_rank, [float(p.detach().double().sum()) for p in model.parameters()])


if __name__ == "__main__":
    main()
