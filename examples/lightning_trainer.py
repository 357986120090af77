"""Lightning: `configure_optimizers` returns FNGD, and everything else stays Lightning's.

The optimizer is given the LightningModule itself; gradients are accumulated and clipped by the Trainer. The fit stops
after four epochs and goes on from its checkpoint.
"""

import tempfile
import warnings

import lightning
import torch
from torch import nn

import fngd

warnings.filterwarnings("ignore", "The 'train_dataloader' does not have many workers")


class Classifier(lightning.LightningModule):
    """A small network on images of 8 × 8."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(288, 2))

    def training_step(self, batch):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.last_loss = loss.detach()
        return loss

    def configure_optimizers(self):
        fngd.detach(self)  # an earlier fit may have attached an optimizer to this module
        one_epoch = self.trainer.estimated_stepping_batches // self.trainer.max_epochs
        return fngd.FNGD(self, lr=0.1, momentum=0.9, weight_decay=5e-4, derive_steps=one_epoch)


torch.manual_seed(0)
x = torch.randn(512, 1, 8, 8)
y = (x[:, 0, :4].mean((1, 2)) > x[:, 0, 4:].mean((1, 2))).long()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32, shuffle=True)
settings = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}

with tempfile.TemporaryDirectory() as folder:
    for epochs, checkpoint in ((4, None), (8, f"{folder}/four.ckpt")):
        model = Classifier()
        trainer = lightning.Trainer(
            max_epochs=epochs,
            accumulate_grad_batches=2,
            gradient_clip_val=1.0,
            enable_checkpointing=False,
            default_root_dir=folder,
            **settings,
        )
        trainer.fit(model, loader, ckpt_path=checkpoint)
        trainer.save_checkpoint(f"{folder}/four.ckpt")
        optimizer = trainer.optimizers[0]
        steps = optimizer.preconditioner.step_count
        print(f"after {steps} steps: phase {optimizer.phase!r}, loss {model.last_loss:.3f}")
