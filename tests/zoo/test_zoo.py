"""Models as people train them: the doctor is right about each, and a step in each phase is the oracle's."""

from pathlib import Path

import pytest
import torch
import transformers
import zoo_oracle as oracle
from torch import nn

import fngd
import zoo

TOLERANCE = 1e-9
PHASES = ["derive", "share"]


def stepped(specimen, phase, **kwargs):
    """The optimizer after a backward pass in the phase."""
    optimizer = fngd.FNGD(specimen.model, lr=0.01, alpha=oracle.ALPHA, derive_steps=1, **kwargs)
    if phase == "share":
        specimen.loss(specimen.model, specimen.batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert optimizer.phase == phase
    specimen.loss(specimen.model, specimen.batch).backward()
    return optimizer


def error(specimen, optimizer):
    """How far the gradients are from the oracle's, which runs a copy: that is a plain model."""
    shared = optimizer.coefficients if optimizer.phase == "share" else None
    return oracle.worst_error(specimen, oracle.expected(specimen, shared))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", zoo.ZOO)
def test_every_gradient_is_the_oracles(name, phase):
    specimen = zoo.ZOO[name]()
    optimizer = stepped(specimen, phase)
    assert set(optimizer.coefficients) == set(oracle.shapes(specimen))
    assert error(specimen, optimizer) <= TOLERANCE


@pytest.mark.parametrize("name", zoo.ZOO)
def test_plain_gradients_are_not_the_oracles(name):
    """So that the law above can be false: the coefficients differ from one, and from each other."""
    specimen = zoo.ZOO[name]()
    specimen.loss(specimen.model, specimen.batch).backward()
    assert oracle.worst_error(specimen, oracle.expected(specimen)) >= 1e-3


@pytest.mark.parametrize("name", zoo.ZOO)
def test_the_doctor_is_right_about_every_module(name):
    specimen = zoo.ZOO[name]()
    rows = fngd.doctor(specimen.model, **specimen.batch).rows
    assert {row.name: row.shapes[0][:5] for row in rows if row.preconditioned} == oracle.shapes(specimen)
    modules = {name: m for name, m in specimen.model.named_modules() if list(m.parameters(recurse=False))}
    assert {row.name: row.kind for row in rows} == {name: type(module).__name__ for name, module in modules.items()}
    for row in rows:
        trained = any(p.requires_grad for p in modules[row.name].parameters(recurse=False))
        assert row.reason == ("" if row.preconditioned else f"no rule for {row.kind}" if trained else "frozen")
        assert row.gradient == ("weighted" if row.preconditioned else "plain" if trained else "none")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("build", [zoo.vit, zoo.bert])
def test_it_does_not_matter_who_computes_the_attention(build, phase):
    eager = build("eager")
    assert error(eager, stepped(eager, phase)) <= TOLERANCE


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", ["ViT", "Swin", "BERT", "GPT-2", "T5", "Whisper"])
def test_gradient_checkpointing_changes_nothing(name, phase):
    specimen = zoo.ZOO[name]()
    specimen.model.gradient_checkpointing_enable({"use_reentrant": False})
    assert error(specimen, stepped(specimen, phase)) <= TOLERANCE


def test_a_tied_head_and_its_embedding_are_warned_of():
    for name, head in {"BERT": "cls.predictions.decoder", "GPT-2": "lm_head", "T5": "lm_head"}.items():
        specimen = zoo.ZOO[name]()
        warnings = fngd.doctor(specimen.model, **specimen.batch).warnings
        assert any(f"{head!r} share a parameter" in w and "(Embedding)" in w for w in warnings)


def test_many_windows_are_warned_of_in_three_lines():
    specimen = zoo.swin()
    *two, more = fngd.doctor(specimen.model, **specimen.batch).warnings
    assert all("sees 16 rows for a batch of 4: read as 4 rows a sample" in warning for warning in two)
    assert len(two) == 2
    assert more == "rows are read as samples' in 6 more layers"


def pooled():
    """BERT with a pooler that runs, and whose output nobody uses."""
    specimen = zoo.bert()
    specimen.batch.pop("labels")
    model = zoo.drawn(transformers.BertModel(specimen.model.config))
    return Pooled(model, specimen.batch, zoo.equal())


class Pooled(zoo.Specimen):
    def loss(self, model, batch):
        return model(**batch).last_hidden_state.square().sum((1, 2)).mean()


def test_a_layer_without_a_gradient_keeps_none():
    specimen = pooled()
    optimizer = stepped(specimen, "derive")
    assert specimen.model.pooler.dense.weight.grad is None
    assert "pooler.dense" not in optimizer.coefficients
    assert error(specimen, optimizer) <= TOLERANCE


def test_a_layer_that_never_had_a_gradient_is_named_when_sharing():
    specimen = pooled()
    with pytest.warns(UserWarning, match=r"'pooler\.dense' had no finite gradient"):
        optimizer = stepped(specimen, "share")
    assert specimen.model.pooler.dense.weight.grad is None
    assert error(specimen, optimizer) <= TOLERANCE


def swin_v2():
    """Each of its blocks computes position biases by a perceptron that sees a table of offsets, and no samples."""
    config = transformers.Swinv2Config(
        image_size=16, patch_size=2, embed_dim=8, depths=[2, 1], num_heads=[2, 2], window_size=4, mlp_ratio=2.0,
        drop_path_rate=0.0, num_labels=5,
    )  # fmt: skip
    model = zoo.drawn(transformers.Swinv2ForImageClassification(config))
    return zoo.Specimen(model, {"pixel_values": zoo.images(16), "labels": zoo.classes()}, zoo.equal())


def test_a_layer_that_sees_no_samples_stops_training_with_its_name():
    specimen = swin_v2()
    stops = [w for w in fngd.doctor(specimen.model, **specimen.batch).warnings if "training will stop here" in w]
    assert "continuous_position_bias_mlp.0" in stops[0]
    with pytest.raises(RuntimeError, match=r"continuous_position_bias_mlp\.0' got an input of shape \(1, 7, 7, 2\)"):
        stepped(specimen, "derive")


@pytest.mark.parametrize("phase", PHASES)
def test_a_layer_that_sees_no_samples_can_be_excluded(phase):
    specimen = swin_v2()
    tables = [name for name, _ in specimen.model.named_modules() if name.endswith("continuous_position_bias_mlp")]
    assert "stop" not in str(fngd.doctor(specimen.model, exclude=tables, **specimen.batch))
    optimizer = stepped(specimen, phase, exclude=tables)
    shared = optimizer.coefficients if phase == "share" else None
    assert oracle.worst_error(specimen, oracle.expected(specimen, shared, tables)) <= TOLERANCE


@pytest.mark.parametrize("phase", PHASES)
def test_inputs_by_name_may_come_in_any_order(phase):
    """Positions that all samples share, (1, T), are not the batch, though they come first."""
    specimen = zoo.gpt2()
    whole = specimen.batch.copy()
    specimen.batch.clear()
    specimen.batch.update(position_ids=torch.arange(6).unsqueeze(0), **whole)
    optimizer = stepped(specimen, phase)
    specimen.batch.pop("position_ids")  # they are what the model would have taken
    assert all(len(c) == zoo.M for c in optimizer.coefficients.values())
    assert error(specimen, optimizer) <= TOLERANCE


class OfOneArgument(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch):
        return self.model(**batch)


@pytest.mark.parametrize("kind", [dict, transformers.BatchEncoding, transformers.BatchFeature])
def test_a_batch_may_be_one_argument(kind):
    specimen = zoo.swin()
    model = OfOneArgument(specimen.model)
    assert fngd.doctor(model, kind(specimen.batch)).rows[0].shapes[0].M == zoo.M
    fngd.FNGD(model, lr=0.01, alpha=oracle.ALPHA, derive_steps=1)
    model(kind(specimen.batch)).loss.backward()
    assert oracle.worst_error(specimen, oracle.expected(specimen)) <= TOLERANCE


def test_the_page_on_models_has_the_table_that_the_doctor_gives():
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    assert f"<!-- zoo -->\n{zoo.table()}\n<!-- end of zoo -->" in page
