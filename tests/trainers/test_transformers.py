"""Hugging Face's Trainer with FNGD: a plain loop's weights, resumed to the bit, and the oracle's gradients."""

import copy
import math

import pytest
import torch
from tiny_transformers import assert_same, bert, gpt2, pictures, sentences, vit, weights
from torch.nn.functional import cross_entropy
from transformers import GPT2LMHeadModel, Trainer, TrainingArguments, get_scheduler

import fngd
import reference
from reference import relative_error

M, ROWS, EPOCHS = 4, 18, 3
"""The last batch of an epoch has two rows."""
TASKS = {"gpt2": (gpt2, sentences), "bert": (bert, sentences), "vit": (vit, pictures)}


def arguments(folder, **kwargs):
    quiet = {"report_to": "none", "disable_tqdm": True, "logging_strategy": "no", "save_strategy": "no"}
    wanted = {"per_device_train_batch_size": M, "num_train_epochs": EPOCHS, "train_sampling_strategy": "sequential"}
    return TrainingArguments(folder, use_cpu=True, **{**quiet, **wanted, **kwargs})


def natural(model, accumulate=1, **kwargs):
    steps = math.ceil(ROWS / (M * accumulate))
    return fngd.FNGD(model, lr=0.2, momentum=0.9, weight_decay=0.01, alpha=0.05, derive_steps=steps, **kwargs)


def by_hand(model, rows, optimizer, accumulate, clip, schedule, half):
    """The loop that Trainer stands for."""
    batches = [{k: v[i : i + M] for k, v in rows.columns.items()} for i in range(0, len(rows), M)]
    groups = [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]
    scheduler = get_scheduler(schedule, optimizer, 0, EPOCHS * len(groups))
    model.train()
    for group in groups * EPOCHS:
        items = sum(batch["labels"].ne(-100).sum() for batch in group)
        for batch in group:
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = model(**batch, num_items_in_batch=items).loss
            loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("accumulate", "clip", "schedule", "half"),
    [(1, 0.0, "constant", False), (2, 0.05, "linear", False), (1, 1.0, "cosine", True)],
    ids=["plain", "accumulated-clipped-linear", "bfloat16-cosine"],
)
def test_trainer_gives_what_a_plain_loop_gives(task, accumulate, clip, schedule, half, tmp_path):
    build, data = TASKS[task]
    rows, model, mine = data(ROWS), build(dropout=0.0), build(dropout=0.0)
    wanted = {"gradient_accumulation_steps": accumulate, "max_grad_norm": clip, "lr_scheduler_type": schedule}
    optimizer = natural(model, accumulate)
    arguments_ = arguments(tmp_path, bf16=half, **wanted)
    Trainer(model, arguments_, train_dataset=rows, optimizers=(optimizer, None)).train()
    other = natural(mine, accumulate)
    by_hand(mine, rows, other, accumulate, clip, schedule, half)
    assert optimizer.phase == "share"
    assert_same(optimizer.coefficients, other.coefficients)
    assert_same(weights(model), weights(mine))


@pytest.mark.parametrize("task", TASKS)
def test_a_resumed_run_ends_with_the_same_weights(task, tmp_path):
    """Dropout is on: Trainer restores the random numbers, and the optimizer its phase, its c̃ and its momentum."""
    build, data = TASKS[task]
    rows = data(ROWS)

    def run(model, **kwargs):
        optimizer = natural(model)
        wanted = arguments(tmp_path, save_strategy="steps", save_steps=3, train_sampling_strategy="random")
        Trainer(model, wanted, train_dataset=rows, optimizers=(optimizer, None)).train(**kwargs)
        return weights(model), optimizer

    whole, optimizer = run(build())
    for step, phase in ((3, "derive"), (6, "share")):
        checkpoint = tmp_path / f"checkpoint-{step}"
        state = torch.load(checkpoint / "optimizer.pt", weights_only=True)
        assert (state["natural_gradient"]["step"] < 5) == (phase == "derive")
        # Trainer saves a ViT under other names than it looks for, whatever the optimizer: from_pretrained knows both.
        model = type(build()).from_pretrained(checkpoint)
        resumed, other = run(model, resume_from_checkpoint=checkpoint)
        assert_same(other.coefficients, optimizer.coefficients)
        assert_same(resumed, whole)


class NaturalTrainer(Trainer):
    """For those who let Trainer's arguments say the learning rate."""

    def create_optimizer(self, model=None):
        if self.optimizer is None:
            steps = math.ceil(len(self.get_train_dataloader()) / self.args.gradient_accumulation_steps)
            rates = {"lr": self.args.learning_rate, "weight_decay": self.args.weight_decay}
            self.optimizer = fngd.FNGD(self.model, momentum=0.9, alpha=0.05, derive_steps=steps, **rates)
        return self.optimizer


def test_three_ways_to_hand_the_optimizer_over_are_one(tmp_path):
    rows, results = sentences(ROWS), []
    for way in ("optimizers", "create_optimizer", "optimizer_cls_and_kwargs"):
        model, kind, kwargs = gpt2(), Trainer, {}
        if way == "optimizers":
            kwargs = {"optimizers": (natural(model), None)}
        elif way == "create_optimizer":
            kind = NaturalTrainer
        else:
            rates = {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.01, "alpha": 0.05, "derive_steps": 5}
            kwargs = {"optimizer_cls_and_kwargs": (fngd.FNGD, {"model": model, **rates})}
        kind(model, arguments(tmp_path, learning_rate=0.2, weight_decay=0.01), train_dataset=rows, **kwargs).train()
        results.append(weights(model))
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])


def test_what_an_attached_model_saves_is_a_plain_model(tmp_path):
    model = gpt2()
    trainer = Trainer(model, arguments(tmp_path), train_dataset=sentences(M), optimizers=(natural(model), None))
    trainer.train()
    trainer.save_model(tmp_path / "saved")
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path / "saved")
    assert type(loaded) is GPT2LMHeadModel
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    assert_same(weights(loaded), weights(model))


def untied(model):
    """A plain twin in float64 whose output layer has a weight of its own, with the same numbers."""
    twin = copy.deepcopy(model).double()
    head = twin.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())
    return twin


def own_loss(model, batch, items):
    """The loss that the model computes."""
    return model(**batch, num_items_in_batch=items).loss


def from_logits(model, batch, items):
    """A loss that every model has, added up over all words."""
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum") / items


def per_sample(model, loss, batch, items, parameters):
    """U: each sentence alone, its words divided by the number of words of the whole batch."""
    columns = []
    for m in range(len(batch["labels"])):
        one = {name: value[m : m + 1] for name, value in batch.items()}
        columns.append(reference.flat(torch.autograd.grad(loss(model, one, items), parameters)))
    return torch.stack(columns, 1)


@pytest.mark.parametrize(("build", "loss"), [(gpt2, own_loss), (bert, from_logits)])
def test_a_tied_weight_takes_the_heads_weighted_gradient_and_the_embeddings_plain_one(build, loss):
    model, batch = build(dropout=0.0).double(), sentences(M).columns
    twin, items = untied(model), torch.tensor(40)
    natural(model)
    loss(model, batch, items).backward()
    head, embedding = twin.get_output_embeddings(), twin.get_input_embeddings()
    U = per_sample(twin, loss, batch, items, list(head.parameters()))
    expected = U @ reference.coefficients(U, reference.damping(U, 0.05))
    plain = per_sample(twin, loss, batch, items, [embedding.weight]).sum(1)
    expected[: plain.numel()] += plain
    gradient = reference.flat([p.grad for p in model.get_output_embeddings().parameters()])
    assert relative_error(gradient, expected) <= 1e-10


def test_gradients_of_conv1d_are_those_of_each_sentence_alone():
    model, batch = gpt2(dropout=0.0).double(), sentences(M).columns
    twin, items = untied(model), torch.tensor(40)
    optimizer = natural(model)
    own_loss(model, batch, items).backward()
    layers = [layer for layer in optimizer.preconditioner.layers if layer.name != "lm_head"]
    assert len(layers) == 4
    for layer in layers:
        U = per_sample(twin, own_loss, batch, items, list(twin.get_submodule(layer.name).parameters()))
        gradient = reference.flat([p.grad for p in model.get_submodule(layer.name).parameters()])
        assert relative_error(gradient, U @ reference.coefficients(U, reference.damping(U, 0.05))) <= 1e-10


def test_the_order_of_named_inputs_does_not_matter():
    batch = {**sentences(M).columns, "position_ids": torch.arange(7)[None], "num_items_in_batch": torch.tensor(40)}
    gradients = []
    for first, value in batch.items():
        model = gpt2(dropout=0.0)
        optimizer = natural(model)
        model(**{first: value, **batch}).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
        assert {len(c) for c in optimizer.coefficients.values()} == {M}
    for other in gradients[1:]:
        assert_same(other, gradients[0])


def test_coefficients_do_not_see_the_number_of_words_that_the_loss_is_divided_by():
    batch, found = sentences(M).columns, []
    for items in (1, 32):
        model = gpt2(dropout=0.0)
        optimizer = natural(model)
        model(**batch, num_items_in_batch=torch.tensor(items)).loss.backward()
        found.append(optimizer.coefficients)
    assert_same(*found)
