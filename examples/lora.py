"""LoRA on a frozen GPT-2: the adapters are preconditioned, the frozen layers are left as they are.

Needs transformers and peft; the model is tiny and starts from random weights, so nothing is downloaded.
"""

import peft
import torch
import transformers

import fngd

torch.manual_seed(0)
config = transformers.GPT2Config(
    vocab_size=32, n_embd=32, n_layer=2, n_head=2, n_positions=16, use_cache=False, bos_token_id=0, eos_token_id=0
)
lora = peft.LoraConfig(r=4, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
model = peft.get_peft_model(transformers.GPT2LMHeadModel(config), lora)

# Each sentence counts upwards from a random number.
tokens = (torch.randint(32, (256, 1)) + torch.arange(12)) % 32
loader = torch.utils.data.DataLoader(tokens, batch_size=32, shuffle=True)

diagnosis = fngd.doctor(model, input_ids=tokens[:32], labels=tokens[:32])  # print it for the whole table
print(f"{diagnosis.coverage:.0%} of the trained parameters are preconditioned")

adapters = [p for p in model.parameters() if p.requires_grad]
optimizer = fngd.FNGD(model, adapters, lr=2.0, momentum=0.9, derive_steps=len(loader))
for epoch in range(5):
    phase, total = optimizer.phase, 0.0
    for batch in loader:
        optimizer.zero_grad()
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}, phase {phase!r}: loss {total / len(loader):.3f}")

print(f"{len(optimizer.coefficients)} layers have coefficients, the first is {next(iter(optimizer.coefficients))!r}")
optimizer.detach()
merged = model.merge_and_unload()
print("merged into", type(merged).__name__)
