"""FSDP2: the model's parameters and the momentum are divided among the ranks; so is the checkpoint.

Run with: torchrun --standalone --nproc-per-node 2 examples/fsdp2.py
"""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import fngd

DERIVE = 8


def build() -> tuple[nn.Module, fngd.FNGD]:
    """A sharded model and its optimizer, in this order."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    return model, fngd.FNGD(model, lr=0.1, momentum=0.9, derive_steps=DERIVE)


dist.init_process_group("gloo")  # "nccl" where there are GPUs
rank = dist.get_rank()
model, optimizer = build()
batches = torch.Generator().manual_seed(rank)

for step in range(40):
    x = torch.randn(32, 64, generator=batches)
    y = (x[:, :32].mean(1) > x[:, 32:].mean(1)).long()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if rank == 0 and step in (0, DERIVE, 39):
        print(f"step {step}: loss {loss.item():.3f}, next phase {optimizer.phase!r}")

folder = [tempfile.mkdtemp()]  # a directory that all ranks see
dist.broadcast_object_list(folder)
weights, state = get_state_dict(model, optimizer)
dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder[0])

restored, resumed = build()
weights, state = get_state_dict(restored, resumed)
saved = {"model": weights, "optimizer": state}
dcp.load(saved, checkpoint_id=folder[0])
set_state_dict(restored, resumed, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
same = all(torch.equal(c, resumed.coefficients[name]) for name, c in optimizer.coefficients.items())
if rank == 0:
    print(f"restored: phase {resumed.phase!r}, the same coefficients: {same}")
dist.destroy_process_group()
