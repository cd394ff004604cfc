"""Lightning: a callback that saves all of a fit in memory, and goes on from it after a restart.

    trainer = lightning.Trainer(callbacks=[MemoryCheckpoint(every=10)], ...)
"""
import lightning

import ddprun.checkpoint


class MemoryCheckpoint(lightning.Callback):
    def __init__(self, **options):
        self.options = options

    def on_fit_start(self, trainer, pl_module):
        self.memory = ddprun.checkpoint.Memory(**self.options)
        parts = [*trainer.optimizers, *(each.scheduler for each in trainer.lr_scheduler_configs)]
        self.state = {"module": pl_module, "loop": trainer.fit_loop, **{f"part {n}": each for n, each in enumerate(parts)}}
        self.memory.load(self.state)

    def on_train_batch_end(self, trainer, *_):
        self.memory.save(self.state, trainer.global_step)
