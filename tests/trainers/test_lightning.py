"""Lightning with FNGD: given the LightningModule or its network, a fit gives what a plain loop gives."""

import copy
import math
import pickle

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, StochasticWeightAveraging
from tiny_transformers import assert_same, pictures, vit, weights
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import fngd

pytestmark = [
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.:FutureWarning"),  # Lightning, of torch's trees
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
]

M, T, D, ROWS, EPOCHS = 4, 3, 5, 18, 3
"""The last batch of an epoch has two rows."""


class Net(nn.Module):
    """One layer is used twice, one sees (M·T, D)."""

    def __init__(self):
        super().__init__()
        self.twice, self.drop, self.flat = nn.Linear(D, D), nn.Dropout(0.2), nn.Linear(D, 2)

    def forward(self, x):
        x = self.drop(self.twice(self.twice(x).tanh()))
        return self.flat(x.flatten(0, 1).tanh()).view(*x.shape[:2], 2).mean(1)


def natural(model, steps):
    return fngd.FNGD(model, lr=0.2, momentum=0.9, weight_decay=0.01, alpha=0.05, derive_steps=steps)


class Module(lightning.LightningModule):
    """Trained by calling itself or its network; the optimizer is given one or the other."""

    def __init__(self, root="self", way="net"):
        super().__init__()
        torch.manual_seed(1)
        self.net, self.root, self.way = Net(), root, way

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        torch.manual_seed(self.trainer.fit_loop.total_batch_idx)  # Lightning saves no random state: dropout's is ours
        return cross_entropy({"self": self, "net": self.net}[self.way](x), y)

    def configure_optimizers(self):
        fngd.detach(self)
        steps = self.trainer.estimated_stepping_batches // self.trainer.max_epochs
        optimizer = natural({"self": self, "net": self.net}[self.root], steps)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)]


def rows():
    torch.manual_seed(2)
    return TensorDataset(torch.randn(ROWS, T, D), torch.randint(2, (ROWS,)))


def loader():
    return DataLoader(rows(), batch_size=M)


def trainer(folder, **kwargs):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    usual = {"accelerator": "cpu", "max_epochs": EPOCHS, "enable_checkpointing": False}
    return lightning.Trainer(default_root_dir=folder, **{**quiet, **usual, **kwargs})


def fitted(module, folder, ckpt_path=None, **kwargs):
    """The optimizer, after the module has been trained."""
    runner = trainer(folder, **kwargs)
    runner.fit(module, loader(), ckpt_path=ckpt_path)
    return runner.optimizers[0]


def by_hand(accumulate=1, clip=None, half=False):
    """The loop that Lightning's Trainer stands for."""
    torch.manual_seed(1)
    net, batches, number = Net(), list(loader()), 0
    optimizer = natural(net, math.ceil(len(batches) / accumulate))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    for _ in range(EPOCHS):
        for index, (x, y) in enumerate(batches):
            torch.manual_seed(number)
            number += 1
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = cross_entropy(net(x), y) / accumulate
            loss.backward()
            if (index + 1) % accumulate == 0 or index + 1 == len(batches):
                if clip is not None:
                    nn.utils.clip_grad_norm_(net.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
        scheduler.step()
    return net, optimizer


@pytest.mark.parametrize(("root", "way"), [("self", "self"), ("self", "net"), ("net", "self"), ("net", "net")])
def test_both_the_module_and_its_network_may_be_given(root, way, tmp_path):
    module = Module(root, way)
    mine = fitted(module, tmp_path)
    net, optimizer = by_hand()
    assert mine.phase == optimizer.phase == "share"
    coefficients = {name.removeprefix("net."): c for name, c in mine.coefficients.items()}
    assert_same(coefficients, optimizer.coefficients)
    assert {len(c) for c in coefficients.values()} == {M}
    assert_same(weights(module.net), weights(net))


@pytest.mark.parametrize("root", ["self", "net"])
@pytest.mark.parametrize(
    ("accumulate", "clip", "half"),
    [(2, None, False), (1, 0.05, False), (2, 0.05, True)],
    ids=["accumulated", "clipped", "half"],
)
def test_accumulation_clipping_and_half_precision_are_those_of_a_plain_loop(accumulate, clip, half, root, tmp_path):
    precision = "bf16-mixed" if half else "32-true"
    wanted = {"accumulate_grad_batches": accumulate, "gradient_clip_val": clip, "precision": precision}
    module = Module(root)
    mine = fitted(module, tmp_path, **wanted)
    net, optimizer = by_hand(accumulate, clip, half)
    assert mine.preconditioner.step_count == optimizer.preconditioner.step_count
    assert_same(weights(module.net), weights(net))


class Slow(Module):
    """Derives for an epoch and a half, so that the first checkpoint is of the derive phase."""

    def configure_optimizers(self):
        return natural(self, 7)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")  # the callback that wrote it is not needed
def test_a_resumed_fit_ends_with_the_same_weights(tmp_path):
    """Lightning resumes to the bit at the end of an epoch; it does not skip what a plain loader has given already."""
    keeper = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    module = Slow()
    whole = fitted(module, tmp_path, enable_checkpointing=True, callbacks=[keeper])
    for epoch, deriving in ((0, True), (1, False)):
        path, twin = tmp_path / f"epoch={epoch}.ckpt", Slow()
        (state,) = torch.load(path, weights_only=True)["optimizer_states"]
        assert (state["natural_gradient"]["step"] < 7) == deriving
        resumed = fitted(twin, tmp_path, ckpt_path=path)
        assert resumed.preconditioner.step_count == 15
        assert_same(resumed.coefficients, whole.coefficients)
        assert_same(weights(twin), weights(module))


class Manual(Module):
    """Optimization by hand, in the module's own words."""

    def __init__(self, root):
        super().__init__(root)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()

    def on_train_epoch_end(self):
        self.lr_schedulers().step()


@pytest.mark.parametrize("root", ["self", "net"])
def test_manual_optimization_is_a_plain_loop(root, tmp_path):
    module = Manual(root)
    fitted(module, tmp_path)
    net, _ = by_hand()
    assert_same(weights(module.net), weights(net))


def test_copies_and_pickles_of_a_module_in_training_are_plain(tmp_path):
    module = Module()
    fitted(module, tmp_path)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert type(twin) is Module
        assert type(twin.net.flat) is nn.Linear
        assert "_fngd" not in vars(twin)
        assert_same(weights(twin), weights(module))


def test_a_module_that_holds_its_own_optimizer_says_why_it_cannot_be_copied(tmp_path):
    module = Module()
    module.optimizer = fitted(module, tmp_path)
    with pytest.raises(TypeError, match="holds its own optimizer"):
        copy.deepcopy(module)


def test_a_module_can_be_fitted_twice(tmp_path):
    module = Module()
    assert fitted(module, tmp_path).preconditioner.step_count == 15
    assert fitted(module, tmp_path).preconditioner.step_count == 15


class Witness(Callback):
    """Notes the weights down at the end of each epoch."""

    def __init__(self):
        self.seen = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.seen.append(nn.utils.parameters_to_vector(pl_module.parameters()).detach().clone())


def test_averaged_weights_are_the_mean_over_epochs(tmp_path):
    witness, module = Witness(), Module()
    fitted(module, tmp_path, callbacks=[witness, StochasticWeightAveraging(0.2, swa_epoch_start=2)])
    mean = torch.stack(witness.seen[:2]).mean(0)  # Lightning averages when an epoch starts
    assert torch.allclose(nn.utils.parameters_to_vector(module.parameters()), mean, atol=1e-6)


class Pictures(lightning.LightningModule):
    """Hugging Face's ViT in Lightning: the batch is a dictionary."""

    def __init__(self):
        super().__init__()
        self.vit = vit(dropout=0.0)

    def training_step(self, batch, batch_idx):
        return self.vit(**batch).loss

    def configure_optimizers(self):
        return natural(self, 5)


def test_a_vit_in_lightning_is_the_vit_in_a_plain_loop(tmp_path):
    module, plain, loader = Pictures(), vit(dropout=0.0), DataLoader(pictures(ROWS), batch_size=M)
    trainer(tmp_path).fit(module, loader)
    optimizer = natural(plain, 5)
    for _ in range(EPOCHS):
        for batch in loader:
            plain(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_same(weights(module.vit), weights(plain))
