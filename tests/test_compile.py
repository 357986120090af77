"""torch.compile: one graph a phase, without a break, and the gradients that the model has without it."""

import copy
import types

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import fngd
from cases import CASES
from reference import relative_error

# What torch's own compiler does and torch's own code warns of.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.* is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]

ONE_OF_A_KIND = [
    "linear on folded sequences, samples second",
    "conv1d with stride and dilation",
    "conv2d same",
    "conv2d channels-last",
    "conv2d on folded frames",
    "conv3d with groups",
    "attention with kdim and vdim",
    "encoder layer",
    "tied weights",
    "convolution called twice",
    "frozen layer below",
]
POLICIES = {
    "shared": fngd.Shared(2),
    "fresh": fngd.Fresh(),
    "refreshed": fngd.Refreshed(2, 0.5),
    "constant": fngd.Constant(2),
    "named head": fngd.FromHead(head="5"),
}


class Counting:
    """A backend that counts the graphs it is handed."""

    def __init__(self, backend="aot_eager"):
        self.graphs = 0
        self._backend = torch._dynamo.lookup_backend(backend)

    def __call__(self, graph, inputs):
        self.graphs += 1
        return self._backend(graph, inputs)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    counters.clear()


def network(dtype=torch.float64):
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 8)]
    return nn.Sequential(*layers, nn.Linear(8, 3)).to(dtype)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return x + self.second(torch.relu(self.first(x)))


class Deep(nn.Module):
    """Blocks of the same make; x is (M, 3, 8), and the blocks see (M · 3, 8)."""

    def __init__(self, blocks=3, call=None):
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(blocks)), nn.Linear(24, 3)
        self.call = call or (lambda block, x: block(x))
        self.double()

    def forward(self, x):
        shape, x = x.shape, x.flatten(0, 1)
        for block in self.blocks:
            x = self.call(block, x)
        return self.head(x.view(shape).flatten(1))

    def compile_blocks(self, backend):
        for index, block in enumerate(self.blocks):
            self.blocks[index] = torch.compile(block, backend=backend, fullgraph=True)


def batches(sizes, shape=(2, 6, 6), dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    draw = [(torch.randn(m, *shape, generator=generator, dtype=torch.float64), m) for m in sizes]
    return [(x.to(dtype), torch.randint(3, (m,), generator=generator)) for x, m in draw]


def step(model, optimizer, x, y, backward=lambda model, x, y: cross_entropy(model(x), y).backward()):
    optimizer.zero_grad()
    backward(model, x, y)
    gradients = [p.grad.clone() for p in model.parameters()]
    optimizer.step()
    return gradients


def trained(model, optimizer, data, graphs=None):
    """Each step's gradients, and how many graphs there were after it."""
    seen = []
    gradients = [(step(model, optimizer, x, y), seen.append(graphs and graphs.graphs))[0] for x, y in data]
    return gradients, seen


def optimizer_of(model, policy=None, **options):
    return fngd.FNGD(model, lr=0.05, momentum=0.9, policy=policy or fngd.Shared(2), **options)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def distance(actual, expected):
    pairs = [pair for steps in zip(actual, expected, strict=True) for pair in zip(*steps, strict=True)]
    return max(relative_error(a, e) for a, e in pairs)


def breaks():
    return sum(counters["graph_break"].values())


@pytest.mark.parametrize("name", ONE_OF_A_KIND)
def test_every_kind_of_layer_is_one_graph_a_phase_with_the_same_gradients(name):
    case, graphs, found = CASES[name], Counting(), []
    for compiled in (False, True):
        model, inputs, targets = case.data()
        optimizer = fngd.FNGD(model, lr=0.01, derive_steps=1, batch_dim=case.batch_dim)
        run = torch.compile(model, backend=graphs, fullgraph=True) if compiled else model
        found.append([])
        for shift in range(3):
            optimizer.zero_grad()
            case.loss(run(*(x + shift for x in inputs)), targets).backward()
            found[-1].append([p.grad.clone() for p in model.parameters() if p.grad is not None])
            optimizer.step()
    assert distance(found[1], found[0]) <= 1e-10
    assert graphs.graphs == 2


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_needs_a_graph_for_each_phase_and_no_more(name):
    policy, data, graphs = POLICIES[name], batches([6] * 6), Counting()
    model = network()
    expected, _ = trained(model, optimizer_of(model, policy), data)
    model = network()
    optimizer = optimizer_of(model, policy)
    actual, seen = trained(torch.compile(model, backend=graphs, fullgraph=True), optimizer, data, graphs)
    assert distance(actual, expected) <= 1e-10
    phases = ["derive" if policy.derives(number) else "share" for number in range(6)]
    assert seen == [len(set(phases[: number + 1])) for number in range(6)]


def attached_first(model, graphs):
    optimizer = optimizer_of(model)
    return torch.compile(model, backend=graphs), optimizer


def compiled_first(model, graphs):
    compiled = torch.compile(model, backend=graphs)
    return compiled, optimizer_of(compiled)


def in_place(model, graphs):
    model.compile(backend=graphs)
    return model, optimizer_of(model)


def in_place_afterwards(model, graphs):
    optimizer = optimizer_of(model)
    model.compile(backend=graphs)
    return model, optimizer


@pytest.mark.parametrize("order", [attached_first, compiled_first, in_place, in_place_afterwards])
def test_the_order_of_compiling_and_attaching_does_not_matter(order):
    data, graphs = batches([6] * 4), Counting()
    plain = network()
    reference = optimizer_of(plain)
    expected, _ = trained(plain, reference, data)
    model, optimizer = order(network(), graphs)
    actual, seen = trained(model, optimizer, data, graphs)
    assert distance(actual, expected) <= 1e-10
    assert seen == [1, 1, 2, 2]
    assert breaks() == 0
    state, wanted = optimizer.state_dict()["natural_gradient"], reference.state_dict()["natural_gradient"]
    assert state["layers"].keys() == wanted["layers"].keys()


def test_inductor_gives_the_same_gradients_in_both_phases():
    data, found = batches([4] * 3, (2, 4, 4), torch.float32), []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3))
        optimizer = optimizer_of(model, fngd.Shared(1))
        run = torch.compile(model, backend="inductor", fullgraph=True) if compiled else model
        found.append(trained(run, optimizer, data)[0])
    assert distance(found[1], found[0]) <= 1e-4


def test_a_short_batch_costs_a_phase_no_more_graphs_than_it_costs_sgd():
    sizes = [6, 4, 6, 4, 5, 3]
    seen = {}
    for name, make in {
        "sgd": sgd,
        "derive": lambda model: optimizer_of(model, fngd.Fresh()),
        "head": lambda model: optimizer_of(model, POLICIES["named head"]),
    }.items():
        torch._dynamo.reset()
        graphs, model = Counting(), network()
        optimizer = make(model)
        _, seen[name] = trained(torch.compile(model, backend=graphs), optimizer, batches(sizes), graphs)
    assert seen["derive"] == seen["head"] == seen["sgd"]


def test_a_short_batch_shares_as_it_does_without_a_graph():
    sizes, graphs = [6, 6, 4, 6, 4, 5, 3], Counting()
    model = network()
    expected, _ = trained(model, optimizer_of(model, fngd.Shared(1)), batches(sizes))
    model = network()
    optimizer = optimizer_of(model, fngd.Shared(1))
    actual, seen = trained(torch.compile(model, backend=graphs, fullgraph=True), optimizer, batches(sizes), graphs)
    assert distance(actual, expected) <= 1e-10
    assert seen == [1, 2, 3, 3, 3, 3, 3]


def test_new_coefficients_need_no_new_graph():
    data, graphs = batches([6] * 5), Counting()
    model = network()
    optimizer = optimizer_of(model)
    compiled = torch.compile(model, backend=graphs, fullgraph=True)
    trained(compiled, optimizer, data)
    state = copy.deepcopy(optimizer.state_dict())
    for layer in state["natural_gradient"]["layers"].values():
        layer["mean"] *= torch.linspace(0.5, 2.0, 6)
    optimizer.load_state_dict(state)
    plain = network()
    plain.load_state_dict(model.state_dict())
    reference = optimizer_of(plain)
    reference.load_state_dict(state)
    x, y = batches([6])[0]
    assert distance([step(compiled, optimizer, x, y)], [step(plain, reference, x, y)]) <= 1e-10
    assert graphs.graphs == 2


def test_a_compiled_model_goes_on_from_the_state_of_one_that_is_not():
    data, graphs = batches([6] * 4), Counting()
    model = network()
    optimizer = optimizer_of(model)
    trained(model, optimizer, data[:3])
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    last = step(model, optimizer, *data[3])
    compiled = torch.compile(network(), backend=graphs, fullgraph=True)
    resumed = optimizer_of(compiled)
    compiled._orig_mod.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    assert resumed.phase == "share"
    assert distance([step(compiled, resumed, *data[3])], [last]) <= 1e-10


def test_forward_and_loss_compile_into_one_graph():
    data, graphs = batches([6] * 4), Counting()
    model = network()
    expected, _ = trained(model, optimizer_of(model), data)
    model = network()
    optimizer = optimizer_of(model)
    loss = torch.compile(lambda x, y: cross_entropy(model(x), y), backend=graphs, fullgraph=True)
    actual = [step(model, optimizer, x, y, lambda _, x, y: loss(x, y).backward()) for x, y in data]
    assert distance(actual, expected) <= 1e-10
    assert graphs.graphs == 2


def test_blocks_of_the_same_make_share_their_graphs():
    data, graphs = batches([6] * 4, (3, 8)), Counting()
    model = Deep(10)
    expected, _ = trained(model, optimizer_of(model, exclude=["blocks.0.first"]), data)
    model = Deep(10)
    model.compile_blocks(graphs)
    optimizer = optimizer_of(model, exclude=["blocks.0.first"])
    actual, seen = trained(model, optimizer, data, graphs)
    assert distance(actual, expected) <= 1e-10
    assert "blocks.0.second" in optimizer.coefficients
    assert seen == [2, 2, 4, 4]  # the excluded layer makes the first block another one


def test_a_layer_used_in_two_compiled_parts_is_refused_while_deriving():
    model = Deep(1, lambda block, x: block(block(x)))
    model.compile_blocks(Counting())
    optimizer = optimizer_of(model)
    (x, y), *_ = batches([6], (3, 8))
    with pytest.raises(RuntimeError, match=r"layer 'blocks.0.first' is used in a compiled part .* and once more"):
        model(x)
    with torch.compiler.set_stance("force_eager"):
        step(model, optimizer, x, y)


def test_a_graph_break_of_the_model_does_not_change_its_gradients():
    def broken(block, x):
        torch._dynamo.graph_break()
        return block(x)

    data, graphs = batches([6] * 4, (3, 8)), Counting()
    model = Deep()
    expected, _ = trained(model, optimizer_of(model), data)
    model = Deep(call=broken)
    optimizer = optimizer_of(model)
    actual, seen = trained(torch.compile(model, backend=graphs), optimizer, data, graphs)
    assert distance(actual, expected) <= 1e-10
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("part", ["model", "blocks"])
def test_checkpoints_give_the_same_gradients(part, reentrant):
    data, graphs = batches([6] * 4, (3, 8)), Counting()
    for x, _ in data:
        x.requires_grad_()
    model = Deep()
    expected, _ = trained(model, optimizer_of(model), data)
    model = Deep(call=lambda block, x: checkpoint(block, x, use_reentrant=reentrant))
    optimizer = optimizer_of(model)
    if part == "blocks":
        model.compile_blocks(graphs)
    compiled = torch.compile(model, backend=graphs) if part == "model" else model
    actual, _ = trained(compiled, optimizer, data)
    assert distance(actual, expected) <= 1e-10


def test_the_head_is_found_before_the_first_graph_is_made():
    data, graphs = batches([6] * 4), Counting()
    model = network()
    expected, _ = trained(model, optimizer_of(model, fngd.FromHead()), data)
    compiled = torch.compile(network(), backend=graphs)
    optimizer = optimizer_of(compiled, fngd.FromHead())
    actual, seen = trained(compiled, optimizer, data, graphs)
    assert distance(actual, expected) <= 1e-10
    assert list(optimizer.coefficients) == ["5"]
    assert seen == [0, 1, 1, 1]


@pytest.mark.filterwarnings("ignore:fngd. layer .* is used outside of the model")
def test_parts_called_from_outside_of_the_model_are_batches_of_their_own():
    data, graphs, found = batches([6] * 4, (8,)), Counting(), []
    for compiled in (False, True):
        model = Deep()
        optimizer = optimizer_of(model)

        def loss(x, y, first=model.blocks[0], second=model.blocks[1]):
            return cross_entropy(second(first(x)), y)

        run = torch.compile(loss, backend=graphs, fullgraph=True) if compiled else loss
        parts = model.blocks[:2]
        found.append([step(parts, optimizer, x, y, lambda _, x, y, run=run: run(x, y).backward()) for x, y in data])
    assert distance(found[1], found[0]) <= 1e-10
    assert graphs.graphs == 2


def test_a_layer_without_coefficients_is_warned_of_and_takes_the_plain_gradient():
    data = batches([6] * 2)
    model = network()
    last = list(model[5].parameters())
    optimizer = fngd.FNGD(model, list(model[:5].parameters()), lr=0.05, derive_steps=1)
    compiled = torch.compile(model, backend="aot_eager")
    step(compiled, optimizer, *data[0])
    optimizer.add_param_group({"params": last})
    plain = copy.deepcopy(model)
    with pytest.warns(UserWarning, match="layer '5' had no"):
        gradients = step(compiled, optimizer, *data[1])
    assert distance([gradients[-2:]], [step(plain, sgd(plain), *data[1])[-2:]]) <= 1e-10


@pytest.mark.parametrize("policy", [fngd.Shared(1), fngd.FromHead(head="5")])
def test_autocast_holds_inside_a_graph(policy):
    def backward(model, x, y):
        with torch.autocast("cpu", torch.bfloat16):
            loss = cross_entropy(model(x), y)
        loss.backward()

    data, found = batches([6] * 3, dtype=torch.float32), []
    for compiled in (False, True):
        model = network(torch.float32)
        optimizer = optimizer_of(model, policy)
        run = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        found.append([step(run, optimizer, x, y, backward) for x, y in data])
    assert distance(found[1], found[0]) <= 1e-4


def test_hugging_faces_transposed_linear_compiles():
    kind = types.new_class(
        "Conv1D", (nn.Module,), exec_body=lambda ns: ns.update(__module__="transformers.pytorch_utils")
    )
    kind.forward = lambda self, x: torch.addmm(self.bias, x, self.weight)
    data, graphs, found = batches([6] * 3, (4,)), Counting(), []
    for compiled in (False, True):
        torch.manual_seed(0)
        layer = kind()
        layer.weight, layer.bias = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))
        model = nn.Sequential(layer, nn.Tanh(), nn.Linear(3, 3)).double()
        optimizer = optimizer_of(model)
        run = torch.compile(model, backend=graphs, fullgraph=True) if compiled else model
        found.append(trained(run, optimizer, data)[0])
    assert "0" in optimizer.coefficients
    assert distance(found[1], found[0]) <= 1e-10
    assert graphs.graphs == 2


def test_two_forward_passes_before_one_backward_are_two_batches():
    def backward(model, x, y):
        (cross_entropy(model(x[:3]), y[:3]) + cross_entropy(model(x[3:]), y[3:])).backward()

    data, found = batches([6] * 4), []
    for compiled in (False, True):
        model = network()
        optimizer = optimizer_of(model)
        run = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        found.append([step(run, optimizer, x, y, backward) for x, y in data])
    assert distance(found[1], found[0]) <= 1e-10


def test_a_model_that_is_evaluated_and_detached_is_torchs_own():
    data = batches([6] * 4)
    model = network()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    optimizer = optimizer_of(compiled)
    trained(compiled, optimizer, data)
    plain = copy.deepcopy(model)
    assert torch.equal(compiled.eval()(data[0][0]), plain.eval()(data[0][0]))
    optimizer.detach()
    compiled.train(), plain.train()
    assert distance([step(compiled, optimizer, *data[0])], [step(plain, sgd(plain), *data[0])]) <= 1e-10


def test_a_batch_that_is_too_large_is_refused_in_the_same_words():
    model = network()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = optimizer_of(model, fngd.Shared(1))
    small, large = batches([4, 6])
    step(compiled, optimizer, *small)
    with pytest.raises(RuntimeError, match="meets a batch of 6 samples"):
        compiled(large[0])


def test_a_batch_that_is_not_finite_is_skipped():
    data = batches([6] * 3)
    data[1][0][2] = torch.nan
    model = network()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    optimizer = fngd.FNGD(model, lr=0.0, policy=fngd.Fresh())
    step(compiled, optimizer, *data[0])
    with pytest.warns(UserWarning, match="NaN or Inf"):
        step(compiled, optimizer, *data[1])
    assert optimizer.statistics()["4"].skipped == 1


def test_doctor_and_gram_matrices_see_through_the_compiler():
    model = Deep()
    x, y = batches([6], (3, 8))[0]
    expected = fngd.doctor(model, x)
    matrices = fngd.gram_matrices(model, lambda model: cross_entropy(model(x), y))
    model.compile_blocks("aot_eager")
    compiled = torch.compile(model, backend="aot_eager")
    assert str(fngd.doctor(compiled, x)) == str(expected)
    found = fngd.gram_matrices(compiled, lambda model: cross_entropy(model(x), y))
    assert found.keys() == matrices.keys()
    assert all(torch.allclose(found[name], matrices[name]) for name in found)


def test_a_compiled_update_is_the_same_update():
    data, weights = batches([6] * 4), []
    for compiled in (False, True):
        model = network()
        optimizer = optimizer_of(model, fused=False)
        update = torch.compile(optimizer.step, backend="aot_eager") if compiled else optimizer.step
        for x, y in data:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            update()
        weights.append([[p.detach() for p in model.parameters()]])
    assert distance(weights[1], weights[0]) <= 1e-10
    assert optimizer.phase == "share"
