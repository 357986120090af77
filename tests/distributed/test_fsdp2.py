"""fully_shard: parameters are DTensors outside of a forward pass and plain tensors inside of one."""

import copy

import pytest
import torch
from oracle import ALPHA, LAYERS, MOMENTUM, RATE, Network, batches, network, trained
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint

import fngd

STEPS, DERIVE = 5, 3
CLOSE = 1e-11


class Checkpointed(Network):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


def shard(model, **options):
    fully_shard(model.conv, **options)
    fully_shard(model.twice, **options)
    return fully_shard(model, **options)


def make(model, **kwargs):
    kwargs = {"derive_steps": DERIVE, **kwargs}
    return fngd.FNGD(model, lr=RATE, momentum=MOMENTUM, alpha=ALPHA, **kwargs)


def train(model, optimizer, data, rank, largest=None):
    for ranks in data:
        *first, (x, y) = ranks[rank]
        optimizer.zero_grad()
        for earlier, labels in first:
            model.set_requires_gradient_sync(False)
            cross_entropy(model(earlier), labels).backward()
            model.set_requires_gradient_sync(True)
        cross_entropy(model(x), y).backward()
        if largest is not None:
            clip_grad_norm_(model.parameters(), largest)
        optimizer.step()


def whole(model):
    return [p.full_tensor().detach() for p in model.parameters()]


def sharded_training(rank, data, kind, options):
    torch.manual_seed(0)
    model = shard(kind().double(), **options)
    optimizer = make(model)
    train(model, optimizer, data, rank)
    assert optimizer.phase == "share"
    return whole(model), optimizer.coefficients


def attached_first(rank, data):
    model = network()
    natural = fngd.NaturalGradient(model, derive_steps=DERIVE, alpha=ALPHA)
    model = shard(model)
    sgd = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    train(model, sgd, data, rank)
    found = whole(model), natural.coefficients
    natural.detach()
    assert isinstance(model, FSDPModule)
    assert "_fngd" not in vars(model)
    train(model, sgd, data, rank)
    return found


def check(answers, data):
    expected, shared = trained(network(), data, DERIVE)
    for parameters, coefficients in answers:
        assert all(
            torch.allclose(p, q, rtol=0, atol=CLOSE) for p, q in zip(parameters, expected.parameters(), strict=True)
        )
        assert all(torch.allclose(coefficients[name], shared[name], rtol=0, atol=CLOSE) for name in LAYERS)


@pytest.mark.parametrize("reshard", [True, False], ids=["resharded after forward", "not resharded"])
@pytest.mark.parametrize("kind", [Network, Checkpointed], ids=["usual", "activations checkpointed"])
def test_sharded_training_is_the_mean_of_each_ranks_weighted_gradient(processes, kind, reshard):
    data = batches(STEPS, 2)
    check(processes.run(2, sharded_training, data, kind, {"reshard_after_forward": reshard}), data)


def test_a_model_that_is_attached_first_may_be_sharded_afterwards(processes):
    data = batches(STEPS, 2)
    check(processes.run(2, attached_first, data), data)


def test_micro_batches_without_synchronisation_are_weighted_each_by_its_own(processes):
    data = batches(STEPS, 2, micros=2)
    check(processes.run(2, sharded_training, data, Network, {}), data)


class Attention(nn.Module):
    """Packed and cross attention, and a weight that two modules share."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.cross = nn.MultiheadAttention(8, 2, batch_first=True)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        x = self.encoder(x.flatten(1)[:, :8].view(len(x), 1, 8).expand(-1, 3, -1))
        x, _ = self.cross(x, x.flip(1), x.flip(1))
        return self.second(torch.tanh(self.first(x))).mean(1)


def both(rank, kind, policy, largest):
    """How far a sharded model is from a replicated one after the same training."""
    torch.manual_seed(0)
    model = kind().double()
    ddp = DistributedDataParallel(copy.deepcopy(model))
    model = shard(model) if kind is Network else fully_shard(model)
    for trained_model in (model, ddp):
        optimizer = make(trained_model, derive_steps=None, policy=policy)
        train(trained_model, optimizer, batches(STEPS, 2), rank, largest)
    return max((p - q.detach()).abs().max().item() for p, q in zip(whole(model), ddp.parameters(), strict=True))


@pytest.mark.parametrize(
    ("kind", "policy", "largest"),
    [
        (Network, fngd.Shared(DERIVE), 0.05),
        (Network, fngd.Constant(DERIVE), None),
        (Network, fngd.Refreshed(2, 0.5), None),
        (Network, fngd.FromHead(ALPHA), None),
        (Attention, fngd.Shared(DERIVE), None),
    ],
    ids=["clipped", "constant", "refreshed", "from the head", "attention and tied weights"],
)
def test_a_sharded_model_trains_as_a_replicated_one(processes, kind, policy, largest):
    assert max(processes.run(2, both, kind, policy, largest)) < CLOSE


def mixed(rank):
    """Sharded gradients in both phases beside the mean of those of two bfloat16 models, each with a rank's batch."""
    halves = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = shard(network().float(), mp_policy=halves)
    optimizer = make(model)
    differences = []
    for ranks in batches(STEPS, 2):
        expected = [torch.zeros(p.shape) for p in model.parameters()]
        for [(x, y)] in ranks:
            alone = network().bfloat16()
            alone.load_state_dict(dict(zip(alone.state_dict(), whole(model), strict=True)))
            with fngd.NaturalGradient(alone, derive_steps=DERIVE, alpha=ALPHA) as natural:
                natural.load_state_dict(optimizer.preconditioner.state_dict())
                cross_entropy(alone(x.bfloat16()), y).backward()
            for total, p in zip(expected, alone.parameters(), strict=True):
                total.add_(p.grad.float() / 2)
        [(x, y)] = ranks[rank]
        optimizer.zero_grad()
        cross_entropy(model(x.float()), y).backward()
        found = [p.grad.full_tensor() for p in model.parameters()]
        assert all(g.dtype == torch.float32 for g in found)
        differences.append(max((g - e).abs().max().item() for g, e in zip(found, expected, strict=True)))
        optimizer.step()
    return differences, optimizer.coefficients


def test_mixed_precision_gathers_halves_and_adds_up_singles(processes):
    for differences, coefficients in processes.run(2, mixed):
        assert max(differences) < 1e-7
        assert all(c.dtype == torch.float32 for c in coefficients.values())


def message_of(function):
    with pytest.raises((RuntimeError, ValueError)) as caught:
        function()
    return str(caught.value)


def made_too_early(rank):
    model = network()
    optimizer = make(model)
    fully_shard(model)
    model(batches(1, 2)[0][rank][0][0]).sum().backward()
    return message_of(optimizer.step)


def test_an_optimizer_that_was_made_before_sharding_is_told_so(processes):
    assert all("fully_shard" in message for message in processes.run(2, made_too_early))


def asked(rank):
    model = fully_shard(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    messages = [message_of(lambda: fngd.doctor(model)), message_of(lambda: fngd.gram_matrices(model, torch.sum))]
    with make(model):
        return messages, type(model[:1])


def test_doctor_says_that_a_sharded_model_cannot_be_copied_and_slices_of_one_are_plain(processes):
    for messages, kind in processes.run(2, asked):
        assert all("before fully_shard" in message for message in messages)
        assert kind is nn.Sequential


def spread(rank):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 2))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
    x = torch.randn(3, 4)
    with make(model):
        message = message_of(lambda: model(x))
    optimizer = make(model, exclude=["0", "2"])
    for _ in range(DERIVE):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return message, optimizer.phase, list(optimizer.coefficients)


def test_tensor_parallelism_is_refused_by_name_and_what_is_excluded_trains(processes):
    for message, phase, names in processes.run(2, spread):
        assert "layer '0'" in message
        assert "Shard(dim=0)" in message
        assert "exclude=['0']" in message
        assert (phase, names) == ("share", ["4"])
