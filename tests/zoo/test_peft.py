"""Adapters on frozen models: adapters are preconditioned, and what is frozen costs nothing."""

import peft
import pytest
import torch
import zoo_oracle as oracle
from torch import nn
from transformers.pytorch_utils import Conv1D

import fngd
import fngd.gram
import fngd.layers.derivation
import zoo
from fngd.layers import sharing
from fngd.saved import reads_scaled

TOLERANCE = 1e-9
PHASES = ["derive", "share"]
NODES = ("DerivingBackward", "JoinBackward", "WeightedBackward")


def adapted(build, **kwargs):
    """A specimen with adapters, everything at drawn values: B is not zero as it is at the start of a fine-tuning."""
    specimen = build()
    model = peft.get_peft_model(specimen.model, peft.LoraConfig(r=2, lora_alpha=4, **kwargs))
    return zoo.Specimen(zoo.drawn(model, seed=2), specimen.batch, specimen.shares)


ADAPTED = {
    "BERT": lambda **kwargs: adapted(zoo.bert, target_modules=["query", "value"], **kwargs),
    "GPT-2, whose base is transposed": lambda **kwargs: adapted(
        zoo.gpt2, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, **kwargs
    ),
    "ViT and a new classifier": lambda **kwargs: adapted(
        zoo.vit, target_modules="all-linear", modules_to_save=["classifier"], **kwargs
    ),
    "ConvNeXt": lambda **kwargs: adapted(zoo.convnext, target_modules=["patch_embeddings", "pwconv1"], **kwargs),
}


def trained(specimen):
    return [p for p in specimen.model.parameters() if p.requires_grad]


def stepped(specimen, phase, parameters=None):
    """The optimizer after a backward pass in the phase, and the loss it came from."""
    optimizer = fngd.FNGD(specimen.model, parameters, lr=0.01, alpha=oracle.ALPHA, derive_steps=1)
    if phase == "share":
        specimen.loss(specimen.model, specimen.batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    loss = specimen.loss(specimen.model, specimen.batch)
    loss.backward()
    return optimizer, loss


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", ADAPTED)
def test_adapters_take_the_oracles_gradients(name, phase):
    specimen = ADAPTED[name]()
    optimizer, _ = stepped(specimen, phase)
    layers = set(optimizer.coefficients)
    assert layers == set(oracle.shapes(specimen))
    assert all("lora_A" in layer or "lora_B" in layer or "modules_to_save" in layer for layer in layers)
    shared = optimizer.coefficients if phase == "share" else None
    assert oracle.worst_error(specimen, oracle.expected(specimen, shared)) <= TOLERANCE


@pytest.mark.parametrize("name", ADAPTED)
def test_the_doctor_tells_adapters_from_frozen_layers(name):
    specimen = ADAPTED[name]()
    diagnosis = fngd.doctor(specimen.model, **specimen.batch)
    layers = oracle.shapes(specimen)
    assert {row.name: row.shapes[0][:5] for row in diagnosis.rows if row.preconditioned} == layers
    assert {row.gradient for row in diagnosis.rows if row.name not in layers} == {"none"}
    assert diagnosis.coverage == 1.0


def nodes(loss):
    """How often each of the library's nodes is in the graph of a loss."""
    counts, seen, waiting = dict.fromkeys(NODES, 0), set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            counts.update({name: n + 1 for name, n in counts.items() if type(node).__name__ == name})
            waiting += [following for following, _ in node.next_functions]
    return tuple(counts.values())


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", ADAPTED)
def test_the_graph_has_a_node_for_each_adapter_and_none_for_a_frozen_layer(name, phase, monkeypatch):
    """A node of the library's, or, for a convolution that shares, one of torch's that reads a scaled input."""
    torchs = []

    def watched(*args):
        torchs.append(args)
        return reads_scaled(*args)

    monkeypatch.setattr(sharing, "reads_scaled", watched)
    specimen = ADAPTED[name]()
    _, loss = stepped(specimen, phase)
    adapters = len(oracle.shapes(specimen))
    assert len(torchs) == (name == "ConvNeXt" and phase == "share")
    assert nodes(loss) == ((adapters, adapters, 0) if phase == "derive" else (0, 0, adapters - len(torchs)))


@pytest.mark.parametrize("name", ADAPTED)
def test_no_gram_matrix_is_computed_for_a_frozen_layer(name, monkeypatch):
    computed = []

    def counted(uses, *args):
        computed.append(uses[0].weight.shape)
        return fngd.gram.gram(uses, *args)

    monkeypatch.setattr(fngd.layers.derivation, "gram", counted)
    specimen = ADAPTED[name]()
    stepped(specimen, "derive")
    assert len(computed) == len(oracle.shapes(specimen))


@pytest.mark.parametrize("name", ADAPTED)
def test_an_optimizer_of_the_adapters_does_not_touch_the_frozen_modules(name):
    specimen = ADAPTED[name]()
    before = {key: type(module) for key, module in specimen.model.named_modules()}
    optimizer, _ = stepped(specimen, "derive", trained(specimen))
    swapped = {key for key, module in specimen.model.named_modules() if type(module) is not before[key]}
    assert swapped == {"", *optimizer.coefficients}


@pytest.mark.parametrize("name", ADAPTED)
def test_what_is_saved_has_the_same_keys_and_can_be_loaded(name, tmp_path):
    specimen = ADAPTED[name]()
    before = peft.get_peft_model_state_dict(specimen.model)
    stepped(specimen, "share")
    after = peft.get_peft_model_state_dict(specimen.model)
    assert list(after) == list(before)
    specimen.model.save_pretrained(tmp_path)
    other = ADAPTED[name]()
    loaded = peft.load_peft_weights(tmp_path)
    assert not peft.set_peft_model_state_dict(other.model, loaded).unexpected_keys
    for key, value in peft.get_peft_model_state_dict(other.model).items():
        assert torch.equal(value, after[key])


@pytest.mark.parametrize("name", ADAPTED)
def test_adapters_merge_after_detach(name):
    specimen = ADAPTED[name]()
    optimizer, _ = stepped(specimen, "share")
    optimizer.detach()
    expected = specimen.loss(specimen.model, specimen.batch)
    merged = specimen.model.merge_and_unload()
    assert torch.allclose(specimen.loss(merged, specimen.batch), expected, rtol=1e-12)
    assert all(type(m) in (nn.Linear, Conv1D, nn.Conv2d) for m in merged.modules() if isinstance(m, oracle.KINDS))


def shortened(specimen, samples):
    """The specimen with its first samples only, which count equally."""
    batch = {key: value[:samples] for key, value in specimen.batch.items()}
    return zoo.Specimen(specimen.model, batch, torch.full((samples,), 1 / samples, dtype=torch.float64))


@pytest.mark.parametrize("phase", PHASES)
def test_dora_takes_the_oracles_gradients_where_the_batch_divides_the_width(phase):
    """DoRA calls A with an identity matrix, to look at its weight: 16 rows, read as four for each of four samples."""
    specimen = ADAPTED["ViT and a new classifier"](use_dora=True)
    optimizer, _ = stepped(specimen, phase)
    assert all("lora" in layer or "modules_to_save" in layer for layer in optimizer.coefficients)
    shared = optimizer.coefficients if phase == "share" else None
    assert oracle.worst_error(specimen, oracle.expected(specimen, shared)) <= TOLERANCE


def test_dora_is_refused_by_name_where_the_batch_does_not_divide_the_width():
    specimen = shortened(ADAPTED["ViT and a new classifier"](use_dora=True), 3)
    with pytest.raises(
        RuntimeError, match=r"lora_A\.default' got an input of shape \(16, 16\): 16 entries .* batch of 3"
    ):
        stepped(specimen, "derive")


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return zoo.Returned(self.head(self.attention(x, x, x, need_weights=False)[0]).square().sum((1, 2)).mean())


@pytest.mark.parametrize("phase", PHASES)
def test_adapters_that_are_merged_before_they_are_used_take_their_plain_gradients(phase):
    """PEFT adds B·A to the weight of torch's attention in each forward pass: no adapter sees a sample."""
    config = peft.LoraConfig(r=2, target_modules=["attention"], modules_to_save=["head"])
    model = zoo.drawn(peft.get_peft_model(Attending(), config))
    specimen = zoo.Specimen(model, {"x": torch.randn(zoo.M, 5, 8, dtype=torch.float64)}, zoo.equal())
    diagnosis = fngd.doctor(model, **specimen.batch)
    assert {row.gradient for row in diagnosis.rows if "lora" in row.name} == {"plain"}
    optimizer, _ = stepped(specimen, phase)
    (head,) = optimizer.coefficients
    assert head == "base_model.model.head.modules_to_save.default"
    shared = optimizer.coefficients if phase == "share" else None
    assert oracle.worst_error(specimen, oracle.expected(specimen, shared)) <= TOLERANCE
