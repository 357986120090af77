"""Hugging Face's Trainer: a small GPT-2, randomly initialised, learns to count, with FNGD as its optimizer.

Accumulation, clipping and the schedule are the Trainer's; learning rate, momentum and weight decay are the optimizer's.
"""

import math
import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import fngd

set_seed(0)
starts = torch.randint(16, (256, 1))
words = (starts + torch.arange(8)) % 16
data = [{"input_ids": row, "labels": row} for row in words]

model = GPT2LMHeadModel(
    GPT2Config(vocab_size=16, n_positions=8, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        max_grad_norm=1.0,
        lr_scheduler_type="cosine",
        num_train_epochs=10,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        use_cpu=True,
    )
    one_epoch = math.ceil(len(data) / (16 * 2))
    optimizer = fngd.FNGD(model, lr=0.5, momentum=0.9, derive_steps=one_epoch)
    # None: the schedule is the Trainer's.
    trainer = Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None))
    trainer.train()

with torch.no_grad():
    counted = model.eval()(words[:32, :-1]).logits.argmax(-1) == words[:32, 1:]
print(f"after {trainer.state.global_step} steps: phase {optimizer.phase!r}, {counted.float().mean():.0%} counted right")
