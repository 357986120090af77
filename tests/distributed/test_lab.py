"""The lab's training on several ranks: the same batches as in one process, one decision for all, the same state."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fngd_bench import optimizers
from fngd_bench.errors import InputError
from fngd_bench.problems import Problem, Score
from fngd_bench.problems.base import Batch
from fngd_bench.runs.events import RunSettings
from fngd_bench.train import torchrun
from fngd_bench.train.meeting import meet
from fngd_bench.train.ranks import Alone, Several
from fngd_bench.train.run import Request, run_on
from fngd_bench.train.training import Training

BATCH, SAMPLES = 12, 48


class Toy(Problem):
    """Random numbers and their classes, in double precision; the first sample of one step may be NaN."""

    metric = "accuracy"

    def __init__(self, *, dropout=0.0, dtype=torch.float64, broken_step=None):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 50), nn.Tanh(), nn.Dropout(dropout), nn.Linear(50, 40), nn.Linear(40, 3))
        super().__init__(model.to(dtype), SAMPLES, BATCH, seed=1)
        self.x, self.y = torch.randn(SAMPLES, 6, dtype=dtype), torch.randint(3, (SAMPLES,))
        self.broken_step = broken_step

    def batch(self, epoch, step, part=slice(None)):
        batch = super().batch(epoch, step, part)
        if step == self.broken_step and epoch == 0 and part.start in {None, 0}:
            batch.inputs[0][0] = float("nan")
        return batch

    def prepare(self, chosen, random, part):
        return Batch((self.x[chosen[part]],), self.y[chosen[part]])

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(*batch.inputs), batch.targets)

    def evaluate(self):
        return Score(0.0, 0.0)


def training(ranks, method, **problem):
    settings = RunSettings(
        workload="toy",
        scale="smoke",
        method=method,
        seed=1,
        hyperparameters=optimizers.resolve(optimizers.method(method), "images", {}),
        epochs=3,
        batch=BATCH,
        steps_per_epoch=SAMPLES // BATCH,
        schedule="steps",
        metric="accuracy",
        target=None,
    )
    return Training(settings, Toy(**problem), torch.device("cpu"), ranks)


def weights_of(made):
    return torch.cat([parameter.detach().flatten() for parameter in made.model.parameters()])


def momentum_of(made):
    return torch.cat([made.optimizer.state[p]["momentum_buffer"].flatten() for p in made.model.parameters()])


def trained(rank, method, steps, problem):
    """Losses, weights and c̃ after some steps; in one process if `rank` is None."""
    made = training(Alone() if rank is None else Several("gloo"), method, **problem)
    results = [made.step() for _ in range(steps)]
    coefficients = made.optimizer.coefficients if method == "fngd" else {}
    return [result.loss for result in results], weights_of(made), coefficients, torch.get_rng_state()


def test_ranks_take_the_steps_that_one_process_takes(processes):
    expected_losses, expected, *_ = trained(None, "sgd-m", 10, {})
    for losses, weights, *_ in processes.run(3, trained, "sgd-m", 10, {}):
        assert torch.allclose(torch.tensor(losses), torch.tensor(expected_losses), rtol=1e-12)
        assert torch.allclose(weights, expected, rtol=1e-10, atol=1e-12)


def test_every_method_that_is_not_refused_keeps_the_ranks_weights_the_same(processes):
    able = [name for name, row in optimizers.METHODS.items() if row.one_process is None]
    assert {"sgd-m", "adamw", "fngd"} < set(able)
    for name in able:
        first, second = processes.run(2, trained, name, 6, {"dtype": torch.float32})
        assert torch.equal(first[1], second[1]), name
        assert torch.isfinite(first[1]).all(), name


def test_coefficients_are_each_ranks_own_until_deriving_ends_and_then_everybodys(processes):
    deriving = [answer[2] for answer in processes.run(2, trained, "fngd", 3, {})]
    assert not any(torch.equal(deriving[0][name], deriving[1][name]) for name in deriving[0])
    sharing = [answer[2] for answer in processes.run(2, trained, "fngd", 5, {})]
    assert sharing[0].keys() == sharing[1].keys() != set()
    for name, c in sharing[0].items():
        assert torch.equal(c, sharing[1][name])
        assert len(c) == BATCH // 2


def test_one_ranks_nan_is_a_step_that_nobody_takes(processes):
    before, at, after = (processes.run(2, trained, "fngd", steps, {"broken_step": 1}) for steps in (1, 2, 4))
    for rank in range(2):
        assert [loss == loss for loss in after[rank][0]] == [True, False, True, True]
        assert torch.equal(before[rank][1], at[rank][1])
        assert torch.isfinite(after[rank][1]).all()
    assert torch.equal(after[0][1], after[1][1])


def test_random_numbers_are_a_ranks_own_and_the_firsts_are_those_of_one_process(processes):
    alone, first, second = (a[3] for a in (trained(None, "sgd-m", 0, {}), *processes.run(2, trained, "sgd-m", 0, {})))
    assert torch.equal(first, alone)
    assert not torch.equal(second, alone)


def interrupted(rank, steps, more):
    """Weights after `steps + more` steps, with and without a new start from rank 0's state in between."""
    ranks, problem = Several("gloo"), {"dropout": 0.5, "dtype": torch.float32}
    whole = training(ranks, "fngd", **problem)
    for _ in range(steps + more):
        whole.step()
    broken = training(ranks, "fngd", **problem)
    for _ in range(steps):
        broken.step()
    state = ranks.share(broken.state())
    resumed = training(ranks, "fngd", **problem)
    resumed.load(state)
    for _ in range(more):
        resumed.step()
    return [(weights_of(made), momentum_of(made)) for made in (whole, resumed)]


def test_ranks_go_on_from_rank_0s_state_bit_for_bit(processes):
    for steps in (2, 6):
        for whole, resumed in processes.run(3, interrupted, steps, 5):
            assert torch.equal(whole[0], resumed[0])
            assert torch.equal(whole[1], resumed[1])


def state_after(rank, steps):
    made = training(Several("gloo"), "fngd")
    for _ in range(steps):
        made.step()
    return made.state()


def loaded(rank, state):
    made = training(Alone() if rank is None else Several("gloo"), "fngd")
    made.load(state)
    return made.step().loss


def test_a_state_goes_to_other_numbers_of_ranks_where_coefficients_suffice(processes):
    deriving, sharing = (processes.run(2, state_after, steps)[0] for steps in (2, 6))
    assert loaded(None, deriving) > 0
    assert all(loss > 0 for loss in processes.run(3, loaded, sharing))
    with pytest.raises(InputError, match="for 6 samples a rank on 2 ranks, and a rank would now have 12"):
        loaded(None, sharing)


def refused(rank, out, settings):
    """What a rank says of a request: its error, or its exit code if it leaves without a word."""
    request = Request(workload="digits-cnn", scale="smoke", out=out / str(rank), **settings)
    torchrun.HEAD_START = 0.0  # no torchrun ends this rank
    try:
        run_on(Several("gloo"), request, lambda progress: None)
    except InputError as error:
        return str(error)
    except SystemExit as left:
        return left.code


def test_what_is_refused_is_said_by_rank_0_alone(processes, tmp_path):
    for settings, text in (
        *(
            ({"method": name}, f"method='{name}' cannot be done by 2 ranks: {row.one_process}")
            for name, row in optimizers.METHODS.items()
            if row.one_process is not None
        ),
        ({"method": "sgd-m", "batch": 15}, "batch=15 must be a multiple of the 2 ranks"),
        ({"method": "sgd-m", "batch": 2}, "with two samples or more for each: pass --batch 4"),
        ({"method": "sgd-m", "device": "cuda:0"}, "device='cuda:0' is one device for 2 ranks: pass --device cuda"),
        ({"method": "sgd"}, "method='sgd' is not known"),
    ):
        first, second = processes.run(2, refused, tmp_path, settings)
        assert text in first
        assert second == 2


@pytest.mark.parametrize("late", [0, 1, 2])
def test_ranks_of_one_attempt_meet_where_nobody_of_an_earlier_one_was(late):
    store, arrivals = dist.HashStore(), []

    def come(rank):
        time.sleep(0.05 * (rank == late))
        part = meet(store, rank, 3)
        part.set(str(rank), "here")
        part.wait([str(other) for other in range(3)], timedelta(seconds=10))
        return part.add("arrivals", 1)

    for _ in range(3):
        with ThreadPoolExecutor(3) as pool:
            arrivals.append(sorted(pool.map(come, range(3))))
    assert arrivals == [[1, 2, 3]] * 3


def unseen(rank, out):
    os.environ.update(TORCHELASTIC_RUN_ID="none", TORCHELASTIC_MAX_RESTARTS="1", TORCHELASTIC_RESTART_COUNT="0")
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    try:
        return refused(rank, out, {"method": "sgd-m"})
    finally:
        del os.environ["TORCHELASTIC_RUN_ID"]


def test_a_folder_that_only_rank_0_sees_is_refused_if_there_may_be_restarts(processes, tmp_path):
    first, second = processes.run(2, unseen, tmp_path)
    assert first.startswith("rank 1 on ")
    assert "let --out be a folder that all nodes share" in first
    assert second == 2
