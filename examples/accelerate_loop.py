"""accelerate: FNGD goes through `prepare` as every optimizer does, here on two processes.

Each process derives coefficients from its own part of the batch; when deriving ends they are averaged, so that all
processes share the same. `python examples/accelerate_loop.py` runs it on one process.

Run with: torchrun --standalone --nproc-per-node 2 examples/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from torch import nn

import fngd

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(0)
x = torch.randn(512, 1, 8, 8)
y = (x[:, 0, :4].mean((1, 2)) > x[:, 0, 4:].mean((1, 2))).long()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(288, 2))

steps = len(loader) // (accelerator.num_processes * accelerator.gradient_accumulation_steps)  # of one epoch
optimizer = fngd.FNGD(model, lr=0.3, momentum=0.9, weight_decay=5e-4, derive_steps=steps)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5 * len(loader) // 2)
natural = optimizer  # prepare() wraps it: this is the way to its phase and its statistics
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

for epoch in range(5):
    phase, total = natural.phase, 0.0
    for images, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        total += accelerator.reduce(loss.detach(), "mean").item()
    accelerator.print(f"epoch {epoch}, phase {phase!r}: loss {total / len(loader):.3f}")

state = torch.cat([*(p.detach().flatten() for p in model.parameters()), *natural.coefficients.values()])
equal = all(torch.equal(state, other) for other in accelerator.gather(state[None]))
accelerator.print(f"{accelerator.num_processes} processes, weights and coefficients equal: {equal}")
accelerator.end_training()
