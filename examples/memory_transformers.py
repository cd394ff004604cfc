"""transformers: a callback that saves a Trainer's state in memory, and goes on from it after a restart.

    trainer = Trainer(callbacks=[MemoryCheckpoint(every=10)], ...)

Trainer chooses its data before it calls a callback: after a restart the epoch's data begins anew, for the steps that are left.
"""
import transformers

import ddprun.checkpoint


class MemoryCheckpoint(transformers.TrainerCallback):
    def __init__(self, **options):
        self.options = options

    def on_train_begin(self, args, state, control, model=None, optimizer=None, lr_scheduler=None, **_):
        self.memory = ddprun.checkpoint.Memory(**self.options)
        self.state = {"model": model, "optimizer": optimizer, "schedule": lr_scheduler}
        state.global_step = self.memory.load(self.state)

    def on_step_end(self, args, state, control, **_):
        self.memory.save(self.state, state.global_step)
