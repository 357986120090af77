"""Mixed precision: autocast around the forward pass, and a GradScaler where the format is float16.

Coefficients do not see the scaler's factor, and a step that overflows does not count.
"""

import os

# Only for processors that name AMX while the system forbids it: there bfloat16 would die with an illegal instruction.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
from torch import nn

import fngd

torch.manual_seed(0)
x = torch.randn(512, 1, 8, 8)
y = (x[:, 0, :4].mean((1, 2)) > x[:, 0, 4:].mean((1, 2))).long()
data = torch.utils.data.TensorDataset(x, y)
loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)

for dtype in (torch.bfloat16, torch.float16):
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(288, 2))
    optimizer = fngd.FNGD(model, lr=0.3, momentum=0.9, weight_decay=5e-4, derive_steps=len(loader))
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)  # bfloat16 has float32's range: no scaler
    for _ in range(5):
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype):
                loss = nn.functional.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            total += loss.item()
    kept = {str(c.dtype) for c in optimizer.coefficients.values()}
    print(f"{dtype}: loss {total / len(loader):.3f} in the last epoch, coefficients kept in {', '.join(kept)}")
