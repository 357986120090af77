"""NaturalGradient under AdamW: the optimizer need not know that its gradients are natural ones.

Here with a running mean of the coefficients that is refreshed every ten steps, clipping and a schedule.
"""

import torch
from torch import nn

import fngd

torch.manual_seed(0)
x = torch.randn(512, 16)
y = (x[:, :8].square().sum(1) > x[:, 8:].square().sum(1)).long()
data = torch.utils.data.TensorDataset(x, y)
loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)

model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 2))
adamw = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
schedule = torch.optim.lr_scheduler.OneCycleLR(adamw, 1e-2, total_steps=20 * len(loader))

with fngd.NaturalGradient(model, adamw, policy=fngd.Refreshed(every=10, decay=0.9)) as natural:
    for epoch in range(20):
        total = 0.0
        for rows, labels in loader:
            adamw.zero_grad()
            loss = nn.functional.cross_entropy(model(rows), labels)
            loss.backward()  # p.grad now holds the natural gradient
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adamw.step()
            schedule.step()
            total += loss.item()
        if epoch % 5 == 4:
            print(f"epoch {epoch}: loss {total / len(loader):.3f}")
    derived = max(s.batches for s in natural.statistics().values())
    print(f"{natural.step_count} steps, {derived} of them derived their own coefficients")

print("plain again:", type(model[0]).__name__)  # leaving the `with` has given the model back as it was
