"""Products are the same whoever multiplies, on whichever processor."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fngd.processor
from fngd import products
from fngd.processor import USUAL, ZEN5
from fngd.products import add_square, mirrored, product, summed_outer, varied_product, weighted_sum
from reference import relative_error

FLOAT32 = 2e-6
"""Of sums of a few hundred products, relative to their largest."""


@pytest.fixture(params=[USUAL, ZEN5], ids=["usual", "zen5"])
def on_any_processor(request, monkeypatch):
    """Small products are as good as large ones for oneDNN."""
    monkeypatch.setattr(products, "processor", lambda: request.param)
    monkeypatch.setattr(products, "LARGE", 1)
    monkeypatch.setattr(products, "SMALL", 1000)


def drawn(**more):
    numbers = {name: st.integers(1, most) for name, most in more.items()}
    any_number = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    return lambda test: any_number(given(**numbers)(test))


@drawn(n=70, half=12, d=300, groups=2)
def test_rows_are_multiplied_with_rows(on_any_processor, n, half, d, groups):
    torch.manual_seed(0)
    a, b = torch.randn(groups, n, d), torch.randn(groups, 8 * half, d)
    exact = torch.einsum("gnd,gmd->gnm", a.double(), b.double())
    assert relative_error(product(a, b).double(), exact) <= FLOAT32
    assert relative_error(varied_product(a, b).double(), exact) <= FLOAT32
    turned = (t.mT.contiguous().mT for t in (a, b))
    assert relative_error(product(*turned).double(), exact) <= FLOAT32
    apart = (torch.cat((t, t), -1)[..., :d] for t in (a, b))
    assert relative_error(product(*apart).double(), exact) <= FLOAT32


@drawn(n=300, p=40, eighth=5, turned=2000)
def test_outer_products_add_up(on_any_processor, monkeypatch, n, p, eighth, turned):
    torch.manual_seed(0)
    monkeypatch.setattr(products, "TURNED", 20 * turned)
    z, x = torch.randn(n, p), torch.randn(n, 8 * eighth)
    assert relative_error(summed_outer(z, x).double(), z.double().T @ x.double()) <= FLOAT32


@drawn(M=140, entries=200)
def test_a_square_is_a_product_with_itself(on_any_processor, M, entries):
    torch.manual_seed(0)
    U, K = torch.randn(M, entries), torch.ones(M, M)
    add_square(K, U)
    assert relative_error(mirrored(K).double(), U.double() @ U.double().T + 1) <= FLOAT32


@drawn(M=20, parts=7, entries=50)
def test_a_weighted_sum_is_that_of_all_parts(M, parts, entries):
    torch.manual_seed(0)
    c, U = torch.randn(M, dtype=torch.float64), torch.randn(M, parts, entries, dtype=torch.float64)
    assert relative_error(weighted_sum(c, U), torch.einsum("m,mpe->pe", c, U)) <= 1e-12


def test_sequences_of_any_length_are_few_shapes_to_onednn(monkeypatch):
    """It keeps code for each: in a training on sentences there would be hundreds of megabytes of it."""
    met = set()

    def multiply(a, b):
        met.add((a.shape, b.shape))
        return a @ b.mT

    monkeypatch.setattr(products, "processor", lambda: ZEN5)
    monkeypatch.setattr(products, "LARGE", 1)
    monkeypatch.setattr(products, "product", multiply)
    for n in range(1, 1000):
        varied_product(torch.empty(1, n, 16), torch.empty(1, 128, 16))
        summed_outer(torch.empty(n, 16), torch.empty(n, 32))
    assert len(met) == 10 + 4  # of summed rows 64 to 512
    met.clear()
    for M in range(1, 200):
        add_square(torch.zeros(M, M), torch.zeros(M, 10**4))
    assert {a[0] for a, b in met if len(a) == 2} == {1, 2, 4, 8, 16, 32, 64, 128}


def test_rows_with_gaps_between_them_are_not_for_onednn(monkeypatch):
    """For the columns of a wider matrix, turned, it has no code but its slowest: seconds in place of milliseconds."""
    monkeypatch.setattr(products, "processor", lambda: ZEN5)
    a, b = torch.randn(256, 64), torch.randn(64, 512)[:, :256].T
    assert not products._suits_onednn(a, b)
    assert products._suits_onednn(a, b.clone()) == products._suits_onednn(b.clone(), a) == torch.backends.mkldnn.enabled


CAPABILITIES = {"cpu_name": "AMD EPYC", "avx512_f": True, "avx_vnni": True}


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        (CAPABILITIES, ZEN5),
        ({**CAPABILITIES, "avx_vnni": False}, USUAL),
        ({**CAPABILITIES, "cpu_name": "Intel(R) Xeon(R)"}, USUAL),
        ({}, USUAL),
    ],
)
def test_a_processor_is_known_by_its_features(monkeypatch, capabilities, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert fngd.processor.processor.__wrapped__() == expected


def test_without_onednn_nothing_is_expected_of_it(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: CAPABILITIES, raising=False)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert fngd.processor.processor.__wrapped__() == USUAL


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # torch says so of its own switch
def test_who_turns_onednn_off_has_it_off(monkeypatch):
    monkeypatch.setattr(products, "processor", lambda: ZEN5)
    a = torch.randn(256, 256)
    with torch.backends.mkldnn.flags(enabled=False):
        assert torch.equal(product(a, a), a @ a.T)
