"""DistributedDataParallel: each rank weights its own samples, and the loop stays as it was.

Run with: torchrun --standalone --nproc-per-node 2 examples/ddp.py
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import fngd

dist.init_process_group("gloo")  # "nccl" where there are GPUs
rank = dist.get_rank()

torch.manual_seed(0)
x = torch.randn(512, 1, 8, 8)
y = (x[:, 0, :4].mean((1, 2)) > x[:, 0, 4:].mean((1, 2))).long()
data = TensorDataset(x, y)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=32, sampler=sampler)

model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(288, 2))
ddp = DistributedDataParallel(model)
optimizer = fngd.FNGD(ddp, lr=0.3, momentum=0.9, derive_steps=len(loader))

for epoch in range(4):
    sampler.set_epoch(epoch)
    phase, total = optimizer.phase, torch.zeros(())
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.detach() / len(loader)
    dist.all_reduce(total)
    if rank == 0:
        print(f"epoch {epoch}, phase {phase!r}: loss {total.item() / dist.get_world_size():.3f}")

if rank == 0:  # from the end of deriving on, one rank's state is every rank's
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "checkpoint.pt")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        print(f"one checkpoint for all {dist.get_world_size()} ranks: {path.stat().st_size:,} bytes")
dist.destroy_process_group()
