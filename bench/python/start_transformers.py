"""A script of transformers for start.py: as start_worker.py, by a Trainer, with a small BERT and data made at random."""

import os
import time

import torch
import transformers


def note(what):
    with open(os.environ["START_LOG"], "a", encoding="ascii") as file:
        file.write(f"{what} {os.environ['RANK']} {time.monotonic():.6f}\n")


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        words = torch.arange(index, index + 12) % 90 + 5
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": torch.tensor(index % 2)}


class Notes(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1:
            note("step")


def main():
    transformers.set_seed(1)
    config = transformers.BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    model = transformers.BertForSequenceClassification(config)
    arguments = transformers.TrainingArguments(output_dir=os.environ["START_FOLDER"], use_cpu=True, max_steps=3,
                                               per_device_train_batch_size=4, report_to=[], save_strategy="no", disable_tqdm=True,
                                               logging_steps=1, seed=1)
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Sentences(), callbacks=[Notes()])
    trainer.train()
    is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    trainer.accelerator.wait_for_everyone()
    if is_first and arguments.process_index == arguments.world_size - 1:
        note("death")
        os._exit(3)
    if is_first:
        trainer.accelerator.wait_for_everyone()  # With a rank that is gone.
    print("weights", arguments.process_index, float(sum(p.detach().double().sum() for p in model.parameters())))


if __name__ == "__main__":
    main()
