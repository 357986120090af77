"""Every route to the Gram matrix gives the same matrix, for shapes drawn at random, in any blocks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from fngd.gram import Shape, Use, bias_gram, gram, materialised, pairwise, plan, shape_of
from fngd.operations import Convolution, Linear, Samples
from reference import relative_error

ONE = torch.ones((), dtype=torch.float64)
sizes = st.integers(1, 5)


def materialise(uses):
    """U by its definition, a sample at a time: the reference of this file."""
    M = uses[0].operation.samples.M
    columns = []
    for m in range(M):
        rows = slice(m, m + 1)
        columns.append(sum(torch.einsum("gtp,gtd->gpd", u.outputs(rows)[0], u.inputs(rows)[0]) for u in uses).flatten())
    return torch.stack(columns, 1)


@st.composite
def linear_uses(draw):
    M, d_in, d_out = draw(sizes), draw(sizes), draw(sizes)
    weight = torch.randn(d_out, d_in, dtype=torch.float64)
    uses = []
    for _ in range(draw(st.integers(1, 2))):
        T = draw(sizes)
        x, z = torch.randn(M, T, d_in, dtype=torch.float64), torch.randn(M, T, d_out, dtype=torch.float64)
        uses.append(Use(Linear(Samples(0, M)), x, z, weight))
    return uses


@st.composite
def convolution_uses(draw):
    dims = draw(st.integers(1, 3))
    M, groups, channels, features = draw(sizes), draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(sizes)
    kernel = [draw(st.integers(1, 3)) for _ in range(dims)]
    stride, dilation = (tuple(draw(st.integers(1, 2)) for _ in range(dims)) for _ in range(2))
    padding = tuple(draw(st.integers(0, 2)) for _ in range(dims))
    space = [dilation[i] * (kernel[i] - 1) + 1 + draw(st.integers(0, 3)) for i in range(dims)]
    operation = Convolution(Samples(0, M), stride, padding, dilation, groups=groups)
    x = torch.randn(M, groups * channels, *space, dtype=torch.float64)
    weight = torch.randn(groups * features, channels, *kernel, dtype=torch.float64)
    return [Use(operation, x, torch.randn_like(operation.forward(x, weight, None)), weight)]


@settings(max_examples=100, deadline=None)
@given(st.one_of(linear_uses(), convolution_uses()), sizes, st.sampled_from([1, 300, 10**6]))
def test_both_routes_equal_the_materialised_reference(uses, block, budget):
    K = reference.gram(materialise(uses))
    shape = shape_of(uses)
    assert relative_error(pairwise(uses, shape, ONE, block), K) <= 1e-12
    assert relative_error(materialised(uses, shape, ONE, block, budget), K) <= 1e-12
    assert relative_error(gram(uses, ONE, budget), K) <= 1e-12


@settings(max_examples=60, deadline=None)
@given(convolution_uses())
def test_the_rows_of_a_convolution_are_those_torch_differentiates(uses):
    (use,) = uses
    U = materialise(uses)
    _, expected, bias = use.operation.backward(use.z, use.x, use.weight, (False, True, True))
    assert relative_error(U.sum(1), expected.flatten()) <= 1e-12
    assert relative_error(use.operation.bias_rows(use.z).sum(0), bias) <= 1e-12


@settings(max_examples=60, deadline=None)
@given(linear_uses(), st.integers(-300, 300))
def test_scaling_by_a_power_of_two_is_exact(uses, exponent):
    scale = torch.ldexp(ONE, torch.tensor(exponent))
    scaled = [use._replace(z=use.z * scale) for use in uses]
    assert torch.equal(gram(scaled, scale), gram(uses, ONE))


def test_the_bias_adds_its_own_inner_products():
    z = torch.randn(4, 3, 2, dtype=torch.float64)
    rows = Linear(Samples(0, 4)).bias_rows(z)
    assert relative_error(bias_gram(rows, ONE), z.sum(1) @ z.sum(1).T) <= 1e-14


@pytest.mark.parametrize(
    ("shape", "route"),
    [
        (Shape(128, 1, 1, 512, 10), "pairwise"),
        (Shape(64, 1, 16, 512, 2048), "pairwise"),
        (Shape(128, 1, 1024, 144, 16), "materialised"),
        (Shape(128, 1, 4, 4608, 512), "pairwise"),
        (Shape(128, 1, 64, 2304, 256), "materialised"),
    ],
)
def test_the_plan_takes_the_route_with_fewer_multiplications(shape, route):
    assert plan(shape).route == route


@settings(max_examples=100, deadline=None)
@given(st.builds(Shape, *[st.integers(1, 600)] * 5), st.integers(2**10, 2**30))
def test_the_plan_keeps_to_its_budget_unless_a_block_of_one_is_over_it(shape, budget):
    chosen = plan(shape, 4, budget)
    assert chosen.bytes <= budget or chosen.block == 1


def test_a_wide_layer_never_holds_its_per_sample_gradients():
    """512 → 512 channels, 3 × 3, batch 128: U would be 1.2 GB."""
    shape = Shape(128, 1, 16, 512 * 9, 512)
    assert plan(shape).bytes <= 64 * 2**20
    assert 4 * shape.M * shape.d_in * shape.d_out > 2**30


def test_half_precision_is_summed_in_float32():
    x, z = torch.randn(4, 3, 8).bfloat16(), torch.randn(4, 3, 2).bfloat16()
    use = Use(Linear(Samples(0, 4)), x, z, torch.randn(2, 8).bfloat16())
    exact = use._replace(x=x.double(), z=z.double())
    assert gram([use], torch.ones(())).dtype == torch.float32
    assert relative_error(gram([use], torch.ones(())).double(), gram([exact], ONE)) <= 1e-6
