"""DistributedDataParallel: each rank weights its own samples, then the usual all-reduce."""

import copy
import warnings

import pytest
import torch
import torch.distributed as dist
from oracle import ALPHA, LAYERS, MOMENTUM, RATE, batches, network, trained
from torch.distributed.algorithms import Join
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import fngd

STEPS, DERIVE = 5, 3
CLOSE = 1e-11


def make(model, **kwargs):
    kwargs = {"derive_steps": DERIVE, **kwargs}
    return fngd.FNGD(model, lr=RATE, momentum=MOMENTUM, alpha=ALPHA, **kwargs)


def wrapped(model, order, **options):
    """The wrapped model and its optimizer, attached before or after."""
    if order == "attached first":
        optimizer = make(model)
        return DistributedDataParallel(model, **options), optimizer
    ddp = DistributedDataParallel(model, **options)
    return ddp, make(ddp)


def train(ddp, optimizer, data, rank):
    for ranks in data:
        *first, (x, y) = ranks[rank]
        optimizer.zero_grad()
        for earlier, labels in first:
            with ddp.no_sync():
                cross_entropy(ddp(earlier), labels).backward()
        cross_entropy(ddp(x), y).backward()
        if all(p.grad is None or p.grad.isfinite().all() for p in ddp.parameters()):
            optimizer.step()


def ddp_training(rank, order, data, spare, options):
    model = network(spare=spare)
    ddp, optimizer = wrapped(model, order, **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="fngd: NaN or Inf")
        train(ddp, optimizer, data, rank)
    return [p.detach() for p in model.parameters()], optimizer.coefficients, optimizer.state_dict()


def check(processes, ranks, order="wrapped first", data=None, spare=False, **options):
    data = data or batches(STEPS, ranks)
    expected, shared = trained(network(spare=spare), data, DERIVE)
    answers = processes.run(ranks, ddp_training, order, data, spare, options)
    for parameters, coefficients, state in answers:
        for p, q in zip(parameters, expected.parameters(), strict=True):
            assert torch.allclose(p, q, rtol=0, atol=CLOSE)
        assert sorted(coefficients) == sorted(LAYERS)
        for name, c in coefficients.items():
            assert torch.allclose(c, shared[name], rtol=0, atol=CLOSE)
            assert torch.equal(c, answers[0][1][name])
            history, first = (s["natural_gradient"]["layers"][name] for s in (state, answers[0][2]))
            assert all(torch.equal(history[key], first[key]) for key in history)
    return answers


@pytest.mark.parametrize("order", ["wrapped first", "attached first"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_training_on_several_ranks_is_the_mean_of_each_ranks_weighted_gradient(processes, ranks, order):
    check(processes, ranks, order)


OPTIONS = {
    "static graph": {"static_graph": True},
    "gradients as views of buckets": {"gradient_as_bucket_view": True},
    "one bucket a parameter": {"bucket_cap_mb": 1e-6},
    "no unused parameters, but looked for": {"find_unused_parameters": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_options_of_ddp_change_nothing(processes, name):
    check(processes, 2, **OPTIONS[name])


@pytest.mark.parametrize("option", ["find_unused_parameters", "static_graph"])
def test_a_layer_that_is_never_used_is_left_alone(processes, option):
    check(processes, 2, spare=True, **{option: True})


def test_micro_batches_without_synchronisation_are_weighted_each_by_its_own(processes):
    check(processes, 2, data=batches(STEPS, 2, micros=2))


@pytest.mark.parametrize("order", ["wrapped first", "attached first"])
def test_ranks_may_have_batches_of_different_sizes_and_the_longest_coefficients_win(processes, order):
    check(processes, 2, order, data=batches(STEPS, 2, sizes=[4, 3]))


def test_a_short_last_batch_on_some_ranks_is_measured_but_not_shared(processes):
    data = batches(STEPS, 2)
    data[DERIVE - 1] = batches(STEPS, 2, sizes=[2, 4])[DERIVE - 1]
    data[STEPS - 1] = batches(STEPS, 2, sizes=[4, 1])[STEPS - 1]
    check(processes, 2, data=data)


def test_a_batch_that_is_not_finite_on_one_rank_enters_no_rank_and_is_counted_on_all(processes):
    data = batches(STEPS + 1, 2)
    data[1][1][0][0][0] = float("nan")
    for _, _, state in check(processes, 2, data=data):
        assert state["natural_gradient"]["step"] == STEPS
        assert all(state["natural_gradient"]["layers"][name]["skipped"] == 0.5 for name in LAYERS)


def compiled(rank, order, data):
    warnings.simplefilter("default")  # torch's compiler has a few of its own
    model = network()
    if order == "compiled first":
        ddp = DistributedDataParallel(torch.compile(model, backend="aot_eager"))
    else:
        ddp = torch.compile(DistributedDataParallel(model), backend="aot_eager")
    optimizer = make(ddp)
    train(ddp, optimizer, data, rank)
    warnings.simplefilter("error")
    torch.compiler.reset()
    return [p.detach() for p in model.parameters()], list(optimizer.coefficients)


@pytest.mark.parametrize("order", ["compiled first", "wrapped first"])
def test_a_compiled_model_trains_in_ddp_as_an_eager_one(processes, order):
    data = batches(STEPS, 2)
    expected, _ = trained(network(), data, DERIVE)
    for parameters, names in processes.run(2, compiled, order, data):
        assert names == list(LAYERS)
        for p, q in zip(parameters, expected.parameters(), strict=True):
            assert torch.allclose(p, q, rtol=0, atol=CLOSE)


def pairs(rank):
    """Two models, each trained by two of four ranks."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group = groups[rank // 2]
    model = network()
    ddp = DistributedDataParallel(model, process_group=group)
    optimizer = make(ddp, process_group=group)
    train(ddp, optimizer, batches(STEPS, 4), rank)
    copied = copy.deepcopy(optimizer)
    return optimizer.coefficients, copied.coefficients


def test_a_process_group_says_who_trains_together(processes):
    data = batches(STEPS, 4)
    answers = processes.run(4, pairs)
    for pair in (0, 1):
        _, shared = trained(network(), [ranks[2 * pair : 2 * pair + 2] for ranks in data], DERIVE)
        for coefficients in [found for answer in answers[2 * pair : 2 * pair + 2] for found in answer]:
            assert all(torch.allclose(coefficients[name], shared[name], rtol=0, atol=CLOSE) for name in LAYERS)


def one_after_the_other(rank):
    """Names, and the doctor's word, for a model that is wrapped and one that is not."""
    model, x = network(), batches(1, 2)[0][rank][0][0]
    ddp = DistributedDataParallel(model)
    with make(model, exclude=["head"]) as bare:
        plain = list(bare.state_dict()["natural_gradient"]["layers"]), str(fngd.doctor(model, x))
    with make(ddp, exclude=["module.head"]) as around:
        return plain, (list(around.state_dict()["natural_gradient"]["layers"]), str(fngd.doctor(ddp, x)))


def test_a_wrapper_does_not_show_in_names_nor_to_the_doctor(processes):
    for plain, around in processes.run(2, one_after_the_other):
        assert plain == around
        assert plain[0] == ["conv", "twice"]


def uneven(rank, data):
    """Rank 0 runs out of batches while rank 1 goes on, after the switch."""
    model = network()
    ddp = DistributedDataParallel(model)
    optimizer = make(ddp)
    with Join([ddp]):
        train(ddp, optimizer, data if rank else data[:-1], rank)
    return optimizer.preconditioner.step_count, [p.detach() for p in model.parameters()]


def test_ranks_may_run_out_of_batches_at_different_times_once_coefficients_are_shared(processes):
    """DDP then averages over all ranks, of which one has a gradient of zero, and in the end all have the same model."""
    first, second = processes.run(2, uneven, batches(STEPS, 2))
    assert (first[0], second[0]) == (STEPS - 1, STEPS)
    assert all(torch.equal(p, q) for p, q in zip(first[1], second[1], strict=True))


def divided(rank, data):
    """Momentum buffers divided among the ranks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, while it is imported
        from torch.distributed.optim import ZeroRedundancyOptimizer
    model = network()
    ddp = DistributedDataParallel(model)
    zero = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, lr=RATE, momentum=MOMENTUM)
    with fngd.NaturalGradient(ddp, zero, derive_steps=DERIVE, alpha=ALPHA):
        train(ddp, zero, data, rank)
    return [p.detach() for p in model.parameters()]


def test_an_optimizer_whose_state_is_divided_among_ranks_takes_the_same_steps(processes):
    data = batches(STEPS, 2)
    expected, _ = trained(network(), data, DERIVE)
    for parameters in processes.run(2, divided, data):
        for p, q in zip(parameters, expected.parameters(), strict=True):
            assert torch.allclose(p, q, rtol=0, atol=CLOSE)
