"""A user adds a kind of layer with one decorated function."""

import copy
import sys
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fngd
import reference
from fngd.layers import registry
from reference import relative_error


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch):
    monkeypatch.setattr(registry, "_kinds", dict(registry._kinds))


class Scaled(nn.Module):
    """y = 2 x W: a weight that is stored the other way round, and a bias of another name."""

    def __init__(self):
        super().__init__()
        self.table, self.shift = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return 2 * x @ self.table + self.shift


def check(model, name, parameters):
    x, y = torch.randn(5, 4, dtype=torch.float64), torch.randint(3, (5,))
    plain = copy.deepcopy(model)
    fngd.FNGD(model, lr=0.1, derive_steps=1)
    F.cross_entropy(model(x), y).backward()
    chosen = [plain.get_submodule(name).get_parameter(key) for key in parameters]
    U = reference.alone(plain, F.cross_entropy, [x], y, chosen)
    expected = U @ reference.coefficients(U, reference.damping(U, 0.005)) / 5
    got = [model.get_submodule(name).get_parameter(key).grad for key in parameters]
    assert relative_error(reference.flat(got), expected) <= 1e-10


def test_one_function_adds_a_kind():
    @fngd.register_layer(Scaled, parameters=("table", "shift"))
    def scaled(module, layer, x):
        return layer.linear(2 * x, module.table.T, module.shift)

    check(nn.Sequential(Scaled(), nn.Tanh(), nn.Linear(3, 3)).double(), "0", ["table", "shift"])


def test_a_kind_can_be_named_without_importing_it():
    module = types.ModuleType("elsewhere")
    module.Scaled = type("Scaled", (Scaled,), {"__module__": "elsewhere", "forward": Scaled.forward})
    sys.modules["elsewhere"] = module

    @fngd.register_layer("elsewhere.Scaled", parameters=("table", "shift"))
    def scaled(module, layer, x):
        return layer.linear(2 * x, module.table.T, module.shift)

    check(nn.Sequential(module.Scaled()).double(), "0", ["table", "shift"])


def test_hugging_faces_transposed_linear_is_known():
    fake = types.new_class(
        "Conv1D", (nn.Module,), exec_body=lambda ns: ns.update(__module__="transformers.pytorch_utils")
    )

    def forward(self, x):
        return torch.addmm(self.bias, x, self.weight)

    fake.forward = forward
    layer = fake()
    layer.weight, layer.bias = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))
    check(nn.Sequential(layer).double(), "0", ["weight", "bias"])


def test_a_subclass_that_keeps_its_forward_is_supported_and_one_that_overrides_it_is_named():
    class Same(nn.Linear):
        pass

    class Other(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    diagnosis = fngd.doctor(nn.Sequential(Same(4, 4), Other(4, 4)))
    assert [row.preconditioned for row in diagnosis.rows] == [True, False]
    assert diagnosis.rows[1].reason == "Other overrides the forward of Linear: add a rule with fngd.register_layer"


@pytest.mark.parametrize("kind", ["Linear", 3, int])
def test_something_that_is_no_module_class_is_refused(kind):
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module class or the full dotted name"):
        fngd.register_layer(kind)


def test_a_rule_that_passes_foreign_tensors_is_refused():
    @fngd.register_layer(Scaled, parameters=("table", "shift"))
    def scaled(module, layer, x):
        return layer.linear(x, module.table.T.clone(), module.shift)

    model = Scaled()
    fngd.FNGD(model, lr=0.1, derive_steps=1)
    with pytest.raises(RuntimeError, match=r"rule of layer '' must pass.*neither one of the parameters nor a view"):
        model(torch.randn(5, 4))
