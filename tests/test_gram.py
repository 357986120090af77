"""Every route to the Gram matrix gives the same matrix, for shapes drawn at random, in any blocks."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from fngd.gram import BY_NAME, bias_gram, gram, plan_of
from fngd.operations import Convolution, Linear, Samples
from fngd.planner import FULL_BUDGET, LEAST, LITTLE, MOST, OWN, ROUTES, SLOW, Plan, Shape, at_most, plan, share_of
from fngd.processor import USUAL, ZEN, ZEN5
from fngd.scratch import Scratch
from fngd.uses import Use, shape_of
from reference import relative_error

ONE = torch.ones((), dtype=torch.float64)
sizes = st.integers(1, 5)


def materialise(uses):
    """U by its definition, a sample at a time: the reference of this file."""
    M = uses[0].operation.samples.M
    rows = [(use.outputs(), use.inputs(Scratch())) for use in uses]
    columns = [sum(torch.einsum("gtp,gtd->gpd", z[m], x[m]) for z, x in rows).flatten() for m in range(M)]
    return torch.stack(columns, 1)


def numbers(*shape):
    return 0.5 + torch.rand(*shape, dtype=torch.float64)


def signed(uses):
    """Each sample with a sign of its own: where a sample cancels within itself, no route can keep its digits."""
    signs = 1 - 2 * torch.randint(2, (len(uses[0].z),), dtype=torch.float64)
    return [use._replace(z=signs.view(-1, *[1] * (use.z.dim() - 1)) * use.z) for use in uses]


@st.composite
def linear_uses(draw):
    torch.manual_seed(0)  # the same shapes have the same numbers, and a failure can be brought back
    M, d_in, d_out = draw(sizes), draw(sizes), draw(sizes)
    weight = torch.randn(d_out, d_in, dtype=torch.float64)
    uses = []
    for _ in range(draw(st.integers(1, 2))):
        T = draw(sizes)
        uses.append(Use(Linear(Samples(0, M)), numbers(M, T, d_in), numbers(M, T, d_out), weight))
    return signed(uses)


@st.composite
def convolution_uses(draw):
    torch.manual_seed(0)
    dims = draw(st.integers(1, 3))
    M, groups, channels, features = draw(sizes), draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(sizes)
    kernel = [draw(st.integers(1, 3)) for _ in range(dims)]
    stride, dilation = (tuple(draw(st.integers(1, 2)) for _ in range(dims)) for _ in range(2))
    padding = tuple(draw(st.integers(0, 2)) for _ in range(dims))
    space = [dilation[i] * (kernel[i] - 1) + 1 + draw(st.integers(0, 3)) for i in range(dims)]
    operation = Convolution(Samples(0, M), stride, padding, dilation, groups=groups)
    weight = torch.randn(groups * features, channels, *kernel, dtype=torch.float64)
    uses = []
    for _ in range(draw(st.integers(1, 2))):
        x = numbers(M, groups * channels, *space)
        uses.append(Use(operation, x, numbers(*operation.forward(x, weight, None).shape), weight))
    return signed(uses)


def possible(uses):
    """The routes that a weight's uses can take."""
    shape = shape_of(uses)
    return {route for route in ROUTES if plan(shape, 8, FULL_BUDGET, route).route == route}


@settings(max_examples=150, deadline=None)
@given(st.one_of(linear_uses(), convolution_uses()), st.sampled_from([1, 300, 3000, 10**6]))
def test_every_route_equals_the_materialised_reference(uses, budget):
    U = materialise(uses)
    scratch = Scratch()
    for route in possible(uses):
        found = gram(uses, ONE, scratch, at_most(budget), route)
        assert relative_error(found.K, reference.gram(U)) <= 1e-12, route
        if found.weigh is not None:
            c = torch.randn(len(found.K), dtype=torch.float64)
            summed = (U @ c).view(uses[0].operation.groups, -1, uses[0].weight[0].numel())
            assert relative_error(found.weigh(c), uses[0].operation.as_weight(summed, uses[0].weight)) <= 1e-12, route
        if found.of_bias is not None:
            (use,) = uses
            assert relative_error(found.of_bias, bias_gram(use.operation.bias_rows(use.z), ONE)) <= 1e-12, route
    assert relative_error(gram(uses, ONE, scratch, at_most(budget)).K, reference.gram(U)) <= 1e-12


def test_each_route_is_taken_by_some_convolution():
    operation = Convolution(Samples(0, 2), (1, 1), (1, 1), (1, 1))
    weight = torch.randn(3, 2, 3, 3, dtype=torch.float64)
    x = torch.randn(2, 2, 4, 4, dtype=torch.float64)
    use = Use(operation, x, torch.randn(2, 3, 4, 4, dtype=torch.float64), weight)
    assert possible([use]) == set(ROUTES) == set(BY_NAME)


def test_blocks_of_samples_and_features_add_up():
    operation = Convolution(Samples(0, 7), (1, 1), (1, 1), (1, 1))
    weight, x, z = (torch.randn(*s, dtype=torch.float64) for s in ((5, 6, 3, 3), (7, 6, 4, 4), (7, 5, 4, 4)))
    uses = [Use(operation, x, z, weight)]
    K, shape = reference.gram(materialise(uses)), shape_of(uses)
    for route, block in product(ROUTES, (1, 2, 3, 7, 12)):
        chosen = replace(plan(shape, 8, FULL_BUDGET, route), block=block)
        assert relative_error(BY_NAME[route](uses, ONE, shape, chosen, Scratch()).K, K) <= 1e-12
    for block, outputs, samples in product((1, 4, 6, 18), (1, 2, 3, 5), (1, 2, 7)):
        chosen = Plan("materialised", block, 0, 0, 0.0, outputs=outputs, samples=samples)
        assert relative_error(BY_NAME["materialised"](uses, ONE, shape, chosen, Scratch()).K, K) <= 1e-12


@settings(max_examples=150, deadline=None)
@given(convolution_uses(), st.integers(1, 30), sizes, st.integers(1, 5), st.booleans())
def test_whatever_the_tiles_they_make_one_weighted_gradient_if_they_are_kept(uses, block, outputs, samples, kept):
    shape, U = shape_of(uses), materialise(uses)
    chosen = Plan("materialised", block, 0, 0, 0.0, kept=kept, outputs=outputs, samples=samples)
    found = BY_NAME["materialised"](uses, ONE, shape, chosen, Scratch())
    assert relative_error(found.K, reference.gram(U)) <= 1e-12
    assert (found.weigh is None) != kept
    if found.weigh is not None:
        c = numbers(shape.M)
        summed = (U @ c).view(shape.G, -1, shape.d_in)
        assert relative_error(found.weigh(c), uses[0].operation.as_weight(summed, uses[0].weight)) <= 1e-12


def test_a_layer_keeps_its_gradients_where_the_budget_allows_it():
    """256 → 256 channels on 8 × 8 pixels, batch 128: 302 MB in all."""
    shape = Shape(128, 1, 64, 2304, 256, 9, 64, 100, shifted=True, native=True)
    budgets = [megabytes * 2**20 for megabytes in (32, 64, 128, 256, 512)]
    plans = [plan(shape, 4, at_most(budget), "materialised") for budget in budgets]
    assert [chosen.kept for chosen in plans] == [False, False, False, False, True]
    assert all(chosen.bytes <= budget for chosen, budget in zip(plans, budgets, strict=True))
    assert plans[0].seconds > plans[-1].seconds


@settings(max_examples=60, deadline=None)
@given(convolution_uses())
def test_the_rows_of_a_convolution_are_those_torch_differentiates(uses):
    use = uses[0]
    summed = materialise([use]).sum(1).view(use.operation.groups, -1, use.weight[0].numel())
    _, expected, bias = use.operation.backward(use.z, use.x, use.weight, (False, True, True))
    assert relative_error(use.operation.as_weight(summed, use.weight), expected) <= 1e-12
    assert relative_error(use.operation.bias_rows(use.z).sum(0), bias) <= 1e-12


@settings(max_examples=60, deadline=None)
@given(linear_uses(), st.integers(-300, 300))
def test_scaling_by_a_power_of_two_is_exact(uses, exponent):
    scale = torch.ldexp(ONE, torch.tensor(exponent))
    scaled = [use._replace(z=use.z * scale) for use in uses]
    assert torch.equal(gram(scaled, scale, Scratch()).K, gram(uses, ONE, Scratch()).K)


@settings(max_examples=100, deadline=None)
@given(st.one_of(linear_uses(), convolution_uses()), st.integers(-40, 40))
def test_whether_gradients_are_divided_does_not_show(uses, exponent):
    scale, c = torch.ldexp(ONE, torch.tensor(exponent)), numbers(uses[0].operation.samples.M)
    for route in possible(uses):
        divided, scratch = gram(uses, scale, Scratch(), route=route), Scratch()
        as_they_are = gram(uses, None, scratch, route=route)
        assert torch.equal(as_they_are.K, divided.K * scale**2)
        assert (as_they_are.weigh is None) == (divided.weigh is None)
        if as_they_are.weigh is not None and divided.weigh is not None:
            assert torch.equal(as_they_are.weigh(c), divided.weigh(c * scale))


def test_tiny_gradients_of_huge_inputs_are_multiplied_with_each_other_in_range():
    """z · z alone would be out of float32's range, though K is an ordinary number."""
    operation, huge, tiny = Linear(Samples(0, 8)), 2.0**55, 2.0**-75
    x, z, weight = torch.randn(8, 6), torch.randn(8, 3), torch.randn(3, 6)
    for route in ("pairwise", "materialised"):
        found = gram([Use(operation, x * huge, z * tiny, weight)], None, Scratch(), route=route).K
        usual = gram([Use(operation, x, z, weight)], None, Scratch(), route=route).K
        assert torch.equal(found, usual * (huge * tiny) ** 2)


def test_the_bias_adds_its_own_inner_products():
    z = torch.randn(4, 3, 2, dtype=torch.float64)
    rows = Linear(Samples(0, 4)).bias_rows(z)
    assert relative_error(bias_gram(rows, ONE), z.sum(1) @ z.sum(1).T) <= 1e-14


EARLY = Shape(128, 1, 1024, 144, 16, 9, 1024, 1156, shifted=True, native=True)
STEM = Shape(128, 1, 1024, 27, 16, 9, 1024, 1156, shifted=True, native=True)


@pytest.mark.parametrize("speed", [USUAL, ZEN, ZEN5])
@pytest.mark.parametrize(
    ("shape", "route"),
    [
        (Shape(128, 1, 1, 512, 10), "pairwise"),
        (Shape(64, 1, 16, 512, 2048), "pairwise"),
        (EARLY, "kernel"),
        (STEM, "materialised"),
        (Shape(128, 1, 4, 4608, 512, 9, 4, 16, shifted=True, native=True), "pixels"),
        (Shape(128, 1, 16, 4608, 512, 9, 16, 36, shifted=True, native=True), "pixels"),
    ],
)
def test_the_plan_takes_the_route_that_is_expected_to_be_quickest(shape, route, speed):
    assert plan(shape, speed=speed).route == route


@pytest.mark.parametrize("speed", [USUAL, ZEN, ZEN5])
@pytest.mark.parametrize(("M", "T", "budget"), [(8192, 1, MOST), (2048, 1, 2**24), (2048, 8, MOST)])
def test_large_batches_of_few_positions_are_still_multiplied_pairwise(M, T, budget, speed):
    """The other routes take a hundred times as long there."""
    chosen = plan(Shape(M, 1, T, 512, 512), 4, at_most(budget), speed=speed)
    assert (chosen.route, chosen.block) == ("pairwise", 128)


def test_what_float32_is_good_at_says_nothing_of_float64():
    operation = Convolution(Samples(0, 128), (1, 1), (1, 1), (1, 1))
    x, weight = torch.empty(128, 64, 8, 8, device="meta"), torch.empty(64, 64, 3, 3, device="meta")
    use = Use(operation, x, x, weight)
    double = Use(operation, x.double(), x.double(), weight.double())
    assert plan_of([use]) == plan(shape_of([use]), 4)
    assert plan_of([double]) == plan(shape_of([double]), 8, speed=USUAL)


def test_where_a_product_for_each_sample_is_slow_torchs_kernel_is_taken():
    shape = Shape(128, 1, 64, 576, 64, 9, 64, 100, shifted=True, native=True)
    slow = USUAL._replace(batched=USUAL.batched / 4)
    assert [plan(shape, speed=speed).route for speed in (USUAL, slow)] == ["materialised", "kernel"]


def test_a_few_samples_are_no_reason_for_many_small_calls():
    shape = Shape(2, 1, 64, 576, 64, 9, 64, 100, shifted=True, native=True)
    assert {plan(shape, speed=speed).route for speed in (USUAL, ZEN, ZEN5)} == {"kernel"}


@settings(max_examples=100, deadline=None)
@given(st.tuples(*[st.integers(1, 600)] * 5), st.integers(0, 9), st.integers(2**10, 2**30), st.booleans())
def test_the_plan_keeps_to_its_budget_or_near_the_least_that_is_possible(sizes, kernel, budget, widened):
    M, G, T, channels, d_out = sizes
    pixels = (T, 2 * T) if kernel else (0, 0)
    shape = Shape(M, G, T, channels * max(1, kernel), d_out, max(1, kernel), *pixels, widened=widened)
    least = min(plan(shape, 4, at_most(1), route).bytes for route in ("pairwise", "materialised"))
    assert plan(shape, 4, at_most(budget)).bytes <= max(budget, LITTLE * least)


@given(held=st.integers(1, 2**40), more=st.integers(0, 2**30))
def test_the_usual_budget_is_a_share_of_what_is_held_and_grows_with_it(held, more):
    budget = share_of(held).bytes
    assert LEAST <= budget <= MOST
    assert budget == LEAST or budget <= held / 4
    assert budget == MOST or budget > held / 4 - LEAST
    assert budget <= share_of(held + more).bytes


def test_nothing_known_to_be_held_is_no_reason_for_small_blocks():
    assert share_of(0) == at_most(MOST)


@settings(max_examples=100, deadline=None)
@given(st.tuples(*[st.integers(1, 256)] * 3), st.integers(1, 16), st.sampled_from([1, 3]), st.integers(1, 2**28))
def test_the_usual_budget_is_exceeded_only_where_less_memory_would_be_slow(sizes, side, kernel, held):
    M, channels, features = sizes
    sides = (side**2, (side + kernel - 1) ** 2)
    shape = Shape(M, 1, side**2, channels * kernel**2, features, kernel**2, *sides, shifted=True, native=True)
    budget = share_of(held)
    usual, least, quickest = (plan(shape, 4, allowed) for allowed in (budget, at_most(budget.bytes), at_most(MOST)))
    assert usual.bytes <= max(MOST, quickest.bytes)
    assert usual.seconds <= SLOW * quickest.seconds
    assert usual == least or least.seconds > SLOW * quickest.seconds


@pytest.mark.parametrize("budget", [2**24, MOST])
@pytest.mark.parametrize("widened", [False, True])
@pytest.mark.parametrize(
    "sizes", [(64, 1, 512, 768, 768), (32, 1, 512, 3072, 768), (128, 1, 3136, 576, 64, 9, 3136, 3364)]
)
def test_an_input_larger_than_the_budget_is_no_reason_for_tiny_blocks(sizes, widened, budget):
    """A transformer's long sequences, or large images in half precision: a tile an entry would take minutes."""
    shape = Shape(*sizes, widened=widened)
    assert plan(shape, 4, at_most(budget)).seconds <= 2 * plan(shape, 4, at_most(2**40)).seconds + 1.0


@settings(max_examples=60, deadline=None)
@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.bfloat16]), budget=st.integers(2**12, 2**18))
def test_a_route_holds_no_more_scratch_memory_than_was_planned(data, dtype, budget):
    M, G, size, d_in, d_out = (data.draw(st.integers(1, 12)) for _ in range(5))
    if data.draw(st.booleans()):
        kernel, stride, padding = (data.draw(st.integers(*ends)) for ends in ((1, 3), (1, 2), (0, 2)))
        operation = Convolution(Samples(0, M), (stride,) * 2, (padding,) * 2, (1, 1), groups=G)
        x, weight = torch.randn(M, G * d_in, *[size + kernel - 1] * 2), torch.zeros(G * d_out, d_in, kernel, kernel)
    else:
        operation, x, weight = Linear(Samples(0, M)), torch.randn(M, size, d_in), torch.zeros(d_out, d_in)
    z = torch.randn_like(operation.forward(x, weight, None))
    use = Use(operation, x.to(dtype), z.to(dtype), weight.to(dtype))
    for route in ROUTES:
        scratch = Scratch()
        found = gram([use], torch.ones(()), scratch, at_most(budget), route)
        if found.weigh is not None:
            found.weigh(torch.ones(M))
        held = sum(buffer.nbytes for buffer in scratch.memory.buffers.values())
        assert held <= plan_of([use], at_most(budget), route).bytes


@settings(max_examples=60, deadline=None)
@given(st.tuples(*[st.integers(1, 24)] * 3), st.integers(1, 3), st.integers(2**10, 2**18))
def test_torchs_kernel_returns_no_more_at_once_than_a_small_part_of_the_budget(sizes, kernel, budget):
    """Its results are fresh memory, which it holds twice: for a small network that would be more than all else."""
    M, channels, features = sizes
    operation = Convolution(Samples(0, M), (1, 1), (0, 0), (1, 1))
    weight = torch.zeros(features, channels, kernel, kernel)
    x, z = torch.randn(M, channels, kernel + 3, kernel + 3), torch.randn(M, features, 4, 4)
    returned = list[torch.Tensor]()

    def noted(*args):
        returned.append(per_sample(*args))
        return returned[-1]

    per_sample = operation.sample_gradients
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Convolution, "sample_gradients", lambda _, *args: noted(*args))
        chosen = plan_of([Use(operation, x, z, weight)], at_most(budget), "kernel")
        gram([Use(operation, x, z, weight)], None, Scratch(), at_most(budget), "kernel")
    assert (chosen.route == "kernel") == (len(returned) > 0)
    assert all(len(some) == 1 or some.nbytes <= budget // OWN for some in returned)


def test_pairs_of_pixels_are_made_only_where_one_sample_s_fit():
    shape = Shape(128, 1, 1024, 144, 16, 9, 1024, 1156, shifted=True, native=True)
    assert plan(shape, 4, FULL_BUDGET, "pixels").route != "pixels"
    assert plan(shape, 4, at_most(2**40), "pixels").route == "pixels"


def test_fewer_pairs_of_pixels_are_held_where_the_budget_is_small():
    shape = Shape(256, 1, 4, 2304, 256, 9, 4, 16, shifted=True, native=True)
    whole, part = (plan(shape, 4, at_most(limit), "pixels") for limit in (MOST, LEAST))
    assert (whole.block, part.block) == (256, 64)
    assert part.bytes <= LEAST < whole.bytes


def test_a_large_prime_number_of_outputs_is_cut_into_few_blocks():
    """A vocabulary's: 50 blocks of at most 1,006 words, not 50,261 of one."""
    chosen = plan(Shape(8, 1, 1024, 768, 50261), 4, FULL_BUDGET, "materialised")
    assert 900 < chosen.outputs < 1100
    assert chosen.bytes <= MOST


def test_a_route_that_is_asked_for_is_taken_where_it_is_possible():
    shape = Shape(8, 1, 4, 9, 4, 9, 4, 16, shifted=True, native=True)
    assert [plan(shape, 4, FULL_BUDGET, route).route for route in ROUTES] == list(ROUTES)
    assert plan(Shape(8, 1, 4, 9, 4), 4, FULL_BUDGET, "pixels").route in {"pairwise", "materialised"}


def test_a_wide_layer_never_holds_its_per_sample_gradients():
    """512 → 512 channels, 3 × 3, batch 128: U would be 1.2 GB."""
    shape = Shape(128, 1, 16, 512 * 9, 512, 9, 16, 36, shifted=True, native=True)
    assert plan(shape).bytes <= MOST
    assert 4 * shape.M * shape.d_in * shape.d_out > 2**30


@pytest.mark.parametrize("channels", [48, 7])
@pytest.mark.parametrize("route", ["kernel", "materialised"])
@pytest.mark.parametrize("speed", [USUAL, ZEN])
def test_large_products_are_as_exact_as_float32_allows(speed, route, channels, monkeypatch):
    """In several blocks of columns, the last of them short; U in parts, and of a width that cannot be cut."""
    monkeypatch.setattr("fngd.products.processor", lambda: speed._replace(columns=64, whole=0))
    torch.manual_seed(0)
    M, features, operation = 140, 4 * channels // 3, Convolution(Samples(0, 140), (1, 1), (1, 1), (1, 1))
    x, z = torch.randn(M, channels, 5, 5) + 0.3, torch.randn(M, features, 5, 5)
    use = Use(operation, x, z, torch.empty(features, channels, 3, 3))
    exact = Use(operation, x.double(), z.double(), use.weight.double())
    assert bool(use.weight[0].numel() * features % ZEN.parts) == (channels == 7)
    found = gram([use], torch.ones(()), Scratch(), at_most(2**30), route).K
    assert relative_error(found.double(), gram([exact], ONE, Scratch(), at_most(2**30), route).K) <= 2e-6


def test_half_precision_is_summed_in_float32():
    x, z = torch.randn(4, 3, 8).bfloat16(), torch.randn(4, 3, 2).bfloat16()
    use = Use(Linear(Samples(0, 4)), x, z, torch.randn(2, 8).bfloat16())
    exact = use._replace(x=x.double(), z=z.double())
    assert gram([use], torch.ones(()), Scratch()).K.dtype == torch.float32
    assert relative_error(gram([use], torch.ones(()), Scratch()).K.double(), gram([exact], ONE, Scratch()).K) <= 1e-6


def of_one_input(x, *widths):
    """Layers of these widths that read x, each with an output gradient of its own."""
    operation = Linear(Samples(0, len(x)))
    return [
        Use(operation, x, torch.randn(*x.shape[:-1], p, dtype=x.dtype), torch.empty(p, x.shape[-1], dtype=x.dtype))
        for p in widths
    ]


def test_layers_that_read_the_same_input_multiply_it_with_itself_twice_at_most(monkeypatch):
    """An input is met, met again, and known from then on."""
    x, scratch, kept = torch.randn(5, 3, 4, dtype=torch.float64), Scratch(), []
    products = Scratch.products

    def watched(*args):
        kept.append(products(*args))
        return kept[-1]

    monkeypatch.setattr(Scratch, "products", watched)
    for use in of_one_input(x, 2, 6, 3, 2):
        K = gram([use], ONE, scratch, route="pairwise").K
        assert relative_error(K, reference.gram(materialise([use]))) <= 1e-12
    assert [known is None for known in kept] == [True, False, False, False]
    assert kept[1] is kept[2] is kept[3]
    assert len(kept[3]) > 0


def test_an_input_that_has_changed_is_multiplied_anew():
    x, scratch = torch.randn(5, 3, 4, dtype=torch.float64), Scratch()
    for use in of_one_input(x, 2, 2, 2, 2):
        assert (
            relative_error(gram([use], ONE, scratch, route="pairwise").K, reference.gram(materialise([use]))) <= 1e-12
        )
        x.mul_(1.5)


def test_another_choice_of_samples_has_other_products():
    x, scratch = torch.randn(4, 4, 3, dtype=torch.float64), Scratch()
    for axis in (0, 1, 0, 1, 0, 1):
        use = of_one_input(x, 2)[0]._replace(operation=Linear(Samples(axis, 4)))
        assert (
            relative_error(gram([use], ONE, scratch, route="pairwise").K, reference.gram(materialise([use]))) <= 1e-12
        )


def test_products_go_when_their_input_goes():
    scratch, x = Scratch(), torch.randn(5, 3, 4)
    for use in of_one_input(x, 2, 2, 2):
        gram([use], torch.ones(()), scratch, route="pairwise")
    assert len(scratch.memory.inputs) == 1
    del use, x
    assert len(scratch.memory.inputs) == 0


def test_products_of_long_inputs_are_not_kept(monkeypatch):
    monkeypatch.setattr("fngd.routes.pairwise.KEPT_PRODUCTS", 15 * 15 * 8 - 1)
    x, scratch = torch.randn(5, 3, 4, dtype=torch.float64), Scratch()
    for use in of_one_input(x, 2, 2, 2):
        gram([use], ONE, scratch, route="pairwise")
    assert len(scratch.memory.inputs) == 0
