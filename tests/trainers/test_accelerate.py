"""accelerate with FNGD: `prepare` keeps the model attached, and its loop gives what a plain loop gives."""

import math

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from tiny_transformers import assert_same, bert, gpt2, pictures, sentences, vit, weights
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader

import fngd

M, ROWS, EPOCHS = 4, 18, 3
"""The last batch of an epoch has two rows."""
TASKS = {"bert": (bert, sentences), "gpt2": (gpt2, sentences), "vit": (vit, pictures)}


@pytest.fixture(autouse=True)
def _forgotten():
    """An Accelerator's settings are the process's: the next test has others."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def natural(model, accumulate=1):
    steps = math.ceil(math.ceil(ROWS / M) / accumulate)
    return fngd.FNGD(model, lr=0.2, momentum=0.9, weight_decay=0.01, alpha=0.05, derive_steps=steps)


def trained(accelerator, model, optimizer, loader, epochs, clip=None, scheduler=None):
    """The loop of accelerate's documentation."""
    model.train()
    for epoch in epochs:
        for index, batch in enumerate(loader):
            torch.manual_seed(100 * epoch + index)
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                if clip is not None and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                if scheduler is not None:
                    scheduler.step()
                optimizer.zero_grad()


def by_hand(model, rows, accumulate=1, clip=None, half=False):
    """The loop that it stands for."""
    optimizer = natural(model, accumulate)
    scheduler = ExponentialLR(optimizer, 0.9)
    batches = list(DataLoader(rows, batch_size=M))
    model.train()
    for epoch in range(EPOCHS):
        for index, batch in enumerate(batches):
            torch.manual_seed(100 * epoch + index)
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = model(**batch).loss
            (loss / accumulate).backward()
            if (index + 1) % accumulate == 0 or index + 1 == len(batches):
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    return optimizer


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("accumulate", "clip", "half"),
    [(1, None, False), (2, 0.05, False), (2, 0.05, True)],
    ids=["plain", "accumulated-clipped", "bfloat16"],
)
def test_an_accelerated_loop_gives_what_a_plain_loop_gives(task, accumulate, clip, half):
    build, data = TASKS[task]
    model, mine, rows = build(), build(), data(ROWS)
    accelerator = Accelerator(
        cpu=True, mixed_precision="bf16" if half else "no", gradient_accumulation_steps=accumulate
    )
    optimizer = natural(model, accumulate)
    loader, scheduler = DataLoader(rows, batch_size=M), ExponentialLR(optimizer, 0.9)
    prepared = accelerator.prepare(model, optimizer, loader, scheduler)
    trained(accelerator, *prepared[:3], range(EPOCHS), clip, prepared[3])
    other = by_hand(mine, rows, accumulate, clip, half)
    assert optimizer.phase == "share"
    assert_same(optimizer.coefficients, other.coefficients)
    assert_same(weights(model), weights(mine))


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_the_optimizer_may_be_made_before_or_after_the_model_is_prepared(precision):
    results = []
    for prepared_first in (False, True):
        model = gpt2()
        accelerator = Accelerator(cpu=True, mixed_precision=precision)
        if prepared_first:
            model = accelerator.prepare(model)
            optimizer = natural(model)
        else:
            optimizer = natural(model)
            model = accelerator.prepare(model)
        stepper, loader = accelerator.prepare(optimizer, DataLoader(sentences(ROWS), batch_size=M))
        trained(accelerator, model, stepper, loader, range(2))
        assert {len(c) for c in optimizer.coefficients.values()} == {M}
        results.append((weights(model), optimizer.coefficients))
        accelerator.free_memory()
    assert_same(results[0][1], results[1][1])
    assert_same(results[0][0], results[1][0])


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("saved", [1, 2])
def test_a_loaded_state_goes_on_to_the_same_weights(saved, precision, tmp_path):
    """Derived for seven steps of five an epoch: the first state is of the derive phase, the second of the other."""
    results = []
    for resumed in (False, True):
        model = bert()
        optimizer = fngd.FNGD(model, lr=0.2, momentum=0.9, alpha=0.05, derive_steps=7)
        accelerator = Accelerator(cpu=True, mixed_precision=precision)
        parts = accelerator.prepare(model, optimizer, DataLoader(sentences(ROWS), batch_size=M))
        if resumed:
            accelerator.load_state(tmp_path)
            assert optimizer.phase == {1: "derive", 2: "share"}[saved]
        else:
            trained(accelerator, *parts, range(saved))
            accelerator.save_state(tmp_path)
        trained(accelerator, *parts, range(saved, EPOCHS))
        results.append((weights(model), optimizer.coefficients))
    assert_same(results[0][1], results[1][1])
    assert_same(results[0][0], results[1][0])


def test_an_unwrapped_model_is_attached_until_detach():
    model = vit()
    before = type(model)
    optimizer = natural(model)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    prepared, stepper = accelerator.prepare(model, optimizer)
    assert accelerator.unwrap_model(prepared) is model
    stepper.optimizer.detach()
    assert type(model) is before
    assert "_fngd" not in vars(model)
    model.train()(**pictures(M).columns).loss.backward()
