"""Products are the same whoever multiplies, on whichever processor."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import fngd.processor
from fngd import products
from fngd.onednn import ALLOWED, NONE, is_exact
from fngd.operations import Linear, Samples
from fngd.processor import USUAL, ZEN, ZEN5
from fngd.products import (
    add_product,
    multiply,
    product,
    square,
    summed_outer,
    varied_multiply,
    varied_product,
    weighted_sum,
)
from reference import relative_error

FLOAT32 = 2e-6
"""Of sums of a few hundred products, relative to their largest."""


@pytest.fixture(params=[USUAL, ZEN, ZEN5], ids=["usual", "zen", "zen5"])
def on_any_processor(request, monkeypatch):
    """Small products are as good as large ones for oneDNN; where it would round, nobody multiplies by it."""
    speed = request.param._replace(onednn=request.param.onednn and is_exact(), columns=32, whole=100_000)
    monkeypatch.setattr(products, "processor", lambda: speed)
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


@drawn(n=300, p=40, eighth=5)
def test_outer_products_add_up(on_any_processor, n, p, eighth):
    torch.manual_seed(0)
    z, x = torch.rand(n, p), torch.rand(n, 8 * eighth)
    exact, total = z.double().T @ x.double(), torch.ones(p, 2, 8 * eighth)
    assert relative_error(summed_outer(z, x).double(), exact) <= FLOAT32
    add_product(total[:, 1], z.T, x)
    assert relative_error(total[:, 1].double(), 1 + exact) <= FLOAT32
    assert (total[:, 0] == 1).all()


@drawn(n=300, p=40, eighth=5)
def test_the_gradient_of_an_input_is_torchs_but_for_rounding(on_any_processor, n, p, eighth):
    torch.manual_seed(0)
    z, x, weight = torch.rand(2, n, p), torch.rand(2, n, 8 * eighth), torch.rand(p, 8 * eighth)
    operation = Linear(Samples(0, 2))
    exact, _, _ = operation.backward(*(t.double() for t in (z, x, weight)), (True, False, False))
    assert relative_error(operation.input_gradient(z, x, weight).double(), exact) <= FLOAT32


@drawn(samples=3, p=40, k=70, d=40)
def test_each_sample_has_its_product_in_its_place(on_any_processor, samples, p, k, d):
    torch.manual_seed(0)
    a, b, place = torch.rand(samples, 1, p, k), torch.rand(samples, 1, k, d), torch.empty(samples + 1, 1, p, d)
    for into_place in (multiply, varied_multiply):
        into_place(a, b, place.fill_(7.0)[:samples])
        assert relative_error(place[:samples].double(), a.double() @ b.double()) <= FLOAT32
        assert (place[samples] == 7).all()


@drawn(M=300, entries=200)
def test_a_square_is_a_product_with_itself(on_any_processor, M, entries):
    torch.manual_seed(0)
    U = torch.randn(M, entries)
    K = square(U)
    assert relative_error(K.double(), U.double() @ U.double().T) <= FLOAT32
    assert K.is_contiguous()


@pytest.mark.parametrize("M", [32, 64, 128, 256, 512])
def test_a_square_of_a_usual_batch_is_whole_and_symmetric(on_any_processor, M):
    U = torch.randn(M, 401, generator=torch.Generator().manual_seed(M))
    K, exact = square(U), U.double() @ U.double().T
    assert relative_error(K.double(), exact) <= FLOAT32
    assert relative_error(K.T.double(), exact) <= FLOAT32
    assert K.is_contiguous()


@drawn(M=20, parts=7, entries=50)
def test_a_weighted_sum_is_that_of_all_parts(M, parts, entries):
    torch.manual_seed(0)
    c, U = torch.randn(M, dtype=torch.float64), torch.randn(M, parts, entries, dtype=torch.float64)
    assert relative_error(weighted_sum(c, U), torch.einsum("m,mpe->pe", c, U)) <= 1e-12


class ShapesOfOneDNN(TorchDispatchMode):
    """Notes the shapes and strides of all products that are made while oneDNN is switched on."""

    def __init__(self):
        super().__init__()
        self.met = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result, name = function(*args, **(kwargs or {})), function.overloadpacket.__name__
        if name in {"mm", "bmm", "addmm_", "baddbmm_"} and torch.backends.mkldnn.matmul.fp32_precision == ALLOWED:
            self.met.add((name.endswith("_"), *((*t.shape, *t.stride()) for t in (result, *args[-2:]))))
        return result


@pytest.fixture
def by_onednn(monkeypatch):
    """Products of any size are oneDNN's, to see which it is asked for: whether they are exact is not the question."""
    monkeypatch.setattr(products, "processor", lambda: ZEN5)
    monkeypatch.setattr(products, "LARGE", 1)


def test_sequences_of_any_length_are_few_shapes_to_onednn(by_onednn):
    """It keeps code for each: in a training on sentences there would be hundreds of megabytes of it."""
    with ShapesOfOneDNN() as shapes:
        for n in range(1, 1000):
            varied_product(torch.empty(1, n, 16), torch.empty(1, 128, 16))
    assert len(shapes.met) == 9  # 1 to 256 rows
    with ShapesOfOneDNN() as shapes:
        for n in range(1, 1000):
            summed_outer(torch.empty(n, 16), torch.empty(n, 32))
    assert len(shapes.met) == 4 + 3  # 64, 128, 256 or 512 rows come first, the first three of them later too
    with ShapesOfOneDNN() as shapes:
        for n in range(1, 100):
            varied_multiply(torch.empty(2, 16, n), torch.empty(2, n, 16), torch.empty(2, 16, 16))
    assert len(shapes.met) == 7


def test_batches_of_any_size_are_few_shapes_to_onednn(by_onednn):
    with ShapesOfOneDNN() as shapes:
        for M in range(1, 200):
            square(torch.zeros(M, 10**4))
    halves, whole = 8 + 1, 4 + 2 + 2  # 1 to 128 rows with 32, 16 with 16; 16 to 128 with themselves, 48 and 80 in two
    assert len(shapes.met) == halves + whole


def test_the_switch_is_back_after_a_product_even_a_failed_one(by_onednn):
    assert torch.backends.mkldnn.matmul.fp32_precision == NONE
    with pytest.raises(RuntimeError):
        product(torch.empty(64, 64), torch.empty(64, 65))
    assert torch.backends.mkldnn.matmul.fp32_precision == NONE


def test_a_product_under_autocast_is_what_torch_makes_of_it(by_onednn):
    z, x = torch.randn(200, 16), torch.randn(200, 32)
    with torch.autocast("cpu"):
        assert torch.equal(summed_outer(z, x), z.T @ x)


def test_a_switch_that_the_user_has_set_is_left_alone(by_onednn):
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"
    try:
        with ShapesOfOneDNN() as shapes:
            product(torch.randn(64, 64), torch.randn(64, 64))
        assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
        assert not shapes.met
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = NONE


CAPABILITIES = {"cpu_name": "AMD EPYC", "avx512_f": True, "avx_vnni": True}


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        (CAPABILITIES, ZEN5),
        ({**CAPABILITIES, "avx_vnni": False}, ZEN),
        ({**CAPABILITIES, "amx_tile": True}, ZEN),
        ({**CAPABILITIES, "cpu_name": "Intel(R) Xeon(R)"}, USUAL),
        ({}, USUAL),
    ],
)
def test_a_processor_is_known_by_its_features(monkeypatch, capabilities, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    monkeypatch.setattr(fngd.processor, "is_exact", lambda: True)
    assert fngd.processor.processor.__wrapped__() == expected


def test_whether_onednn_rounds_does_not_depend_on_who_asks():
    alone = is_exact.__wrapped__()
    with torch.device("meta"), torch.autocast("cpu"):
        assert is_exact.__wrapped__() == alone


def test_nothing_is_expected_of_a_library_that_would_round(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: CAPABILITIES, raising=False)
    monkeypatch.setattr(fngd.processor, "is_exact", lambda: False)
    assert fngd.processor.processor.__wrapped__() == ZEN


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # torch says so of its own switch
def test_who_turns_onednn_off_has_it_off(monkeypatch):
    monkeypatch.setattr(products, "processor", lambda: ZEN5)
    a = torch.randn(256, 256)
    with torch.backends.mkldnn.flags(enabled=False):
        assert torch.equal(product(a, a), a @ a.T)
