"""A checkpoint of one rank is one of all: any number of ranks goes on from it, bit for bit where it is the same."""

import io

import pytest
import torch
import torch.distributed.checkpoint as dcp
from oracle import ALPHA, LAYERS, MOMENTUM, RATE, batch, network
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import fngd

STEPS, DERIVE = 6, 3


def build(how, momentum=MOMENTUM, policy=None):
    """A model on this rank, wrapped or not, with its optimizer."""
    model = network()
    if how == "ddp":
        model = DistributedDataParallel(model)
    if how == "fsdp2":
        for module in (model.conv, model.twice, model):
            fully_shard(module)
    policy = policy or fngd.Shared(DERIVE)
    return model, fngd.FNGD(model, lr=RATE, momentum=momentum, alpha=ALPHA, policy=policy)


def train(model, optimizer, rank, first, last, average_before=None):
    for step in range(first, last):
        if step == average_before:
            optimizer.preconditioner.average()
        x, y = batch(step, rank)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def whole(t):
    return (t.full_tensor() if isinstance(t, DTensor) else t).detach().clone()


def result(model, optimizer):
    """All that training leaves behind."""
    momenta = [whole(optimizer.state[p]["momentum_buffer"]) for p in model.parameters() if optimizer.state[p]]
    layers = optimizer.preconditioner.state_dict()["layers"]
    histories = [number for name in LAYERS for number in layers[name].values() if number is not None]
    return [
        *(whole(p) for p in model.parameters()),
        *momenta,
        *histories,
        torch.tensor(optimizer.preconditioner.step_count),
    ]


def same(first, second):
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def saved(model, optimizer):
    buffer = io.BytesIO()
    torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
    return buffer.getvalue()


def uninterrupted(rank, at, policy):
    model, optimizer = build("ddp", policy=policy)
    train(model, optimizer, rank, 0, at)
    if optimizer.phase == "derive":
        optimizer.preconditioner.average()
    checkpoint = saved(model, optimizer)
    coefficients = optimizer.coefficients
    train(model, optimizer, rank, at, STEPS)
    return checkpoint, coefficients, result(model, optimizer)


def resumed(rank, checkpoint, at, policy):
    state = torch.load(io.BytesIO(checkpoint), weights_only=True)
    model, optimizer = build("ddp", policy=policy)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    coefficients = optimizer.coefficients
    train(model, optimizer, rank, at, STEPS)
    return coefficients, result(model, optimizer)


@pytest.mark.parametrize("policy", [fngd.Shared(DERIVE), fngd.Refreshed(2, 0.5)], ids=repr)
@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_a_checkpoint_of_rank_0_goes_on_bit_for_bit_and_restores_any_number_of_ranks(processes, at, policy):
    """While coefficients are derived, once the ranks have averaged them."""
    answers = processes.run(2, uninterrupted, at, policy)
    checkpoint, coefficients, _ = answers[0]
    for ranks in (1, 2, 4):
        for rank, (found, end) in enumerate(processes.run(ranks, resumed, checkpoint, at, policy)):
            assert found.keys() == coefficients.keys() == set(LAYERS)
            assert all(torch.equal(found[name], coefficients[name]) for name in LAYERS)
            if ranks == 2:
                assert same(end, answers[rank][2])


def dcp_saved(rank, how, folder, at):
    model, optimizer = build(how)
    train(model, optimizer, rank, 0, at, average_before=at)
    if optimizer.phase == "derive":
        optimizer.preconditioner.average()
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)
    there = result(model, optimizer)
    train(model, optimizer, rank, at, STEPS)
    return there, result(model, optimizer)


def dcp_loaded(rank, how, folder, at):
    """As torch's own tutorial has it, without a word about fngd."""
    model, optimizer = build(how)
    weights, state = get_state_dict(model, optimizer)
    everything = {"model": weights, "optimizer": state}
    dcp.load(everything, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=everything["model"], optim_state_dict=everything["optimizer"])
    there = result(model, optimizer)
    train(model, optimizer, rank, at, STEPS)
    return there, result(model, optimizer)


@pytest.mark.parametrize("at", [2, 4], ids=["while deriving", "while sharing"])
@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_torchs_distributed_checkpoints_carry_the_coefficients(processes, tmp_path, how, at):
    before = processes.run(2, dcp_saved, how, str(tmp_path), at)
    after = processes.run(2, dcp_loaded, how, str(tmp_path), at)
    assert all(same(a, b) for one, other in zip(before, after, strict=True) for a, b in zip(one, other, strict=True))
    for alone in ("plain", "fsdp2"):
        ((there, _),) = processes.run(1, dcp_loaded, alone, str(tmp_path), at)
        assert same(there, before[0][0])


def untouched(rank, how, momentum, folder):
    """A checkpoint of an optimizer that has no state yet, or never will."""
    model, optimizer = build(how, momentum=momentum)
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)
    first = optimizer.preconditioner.step_count
    train(model, optimizer, rank, 0, DERIVE - 1)
    optimizer.zero_grad()
    get_state_dict(model, optimizer)
    return first, optimizer.preconditioner.step_count, optimizer.phase


@pytest.mark.parametrize("momentum", [0.0, MOMENTUM])
@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_the_step_that_torch_takes_to_set_up_an_optimizers_state_is_not_counted(processes, tmp_path, how, momentum):
    for answer in processes.run(2, untouched, how, momentum, str(tmp_path)):
        assert answer == (0, DERIVE - 1, "derive")


def flattened(rank):
    """Torch's other layout of an optimizer's state keeps only what its groups hold by themselves."""
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    model, optimizer = build("ddp")
    train(model, optimizer, rank, 0, 1)
    weights, state = get_state_dict(model, optimizer, options=options)
    with pytest.raises(ValueError, match="flatten_optimizer_state_dict") as caught:
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state, options=options)
    return str(caught.value)


def test_a_state_that_has_lost_the_coefficients_is_refused(processes):
    assert all("natural_gradient" in message for message in processes.run(2, flattened))


def under_adamw(rank, folder):
    """A preconditioner of its own in a checkpoint: a tuple is one piece, whatever has been derived by then."""

    def fresh():
        model = DistributedDataParallel(network())
        adamw = torch.optim.AdamW(model.parameters(), lr=0.01)
        return model, adamw, fngd.NaturalGradient(model, adamw, derive_steps=DERIVE)

    model, adamw, natural = fresh()
    train(model, adamw, rank, 0, STEPS)
    dcp.save({"natural": (natural.state_dict(),)}, checkpoint_id=folder)
    _, _, again = fresh()
    state = {"natural": (again.state_dict(),)}
    dcp.load(state, checkpoint_id=folder)
    again.load_state_dict(state["natural"][0])
    return natural.coefficients, again.coefficients, again.phase


def test_a_preconditioner_under_another_optimizer_is_saved_beside_it(processes, tmp_path):
    for before, after, phase in processes.run(2, under_adamw, str(tmp_path)):
        assert phase == "share"
        assert all(torch.equal(before[name], after[name]) for name in LAYERS)
