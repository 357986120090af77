"""Every network has the parameters its architecture says, and the shapes its table row says."""

import itertools

import pytest
import torch

from fngd_bench import models
from fngd_bench.errors import InputError
from fngd_bench.models.cifar_resnet import Shortcut
from fngd_bench.models.transformer import PAD, Transformer, later, sinusoids
from fngd_bench.price.batches import loss, synthetic


def conv(d_in, d_out, k=3, bias=False):
    """A convolution's weight, its bias, and scale and shift of the BatchNorm after it."""
    return k * k * d_in * d_out + bias * d_out + 2 * d_out


def cifar_resnet(n, classes):
    # Stem; then in stage s (width w): the first block comes from the last width, the 2n − 1 other convolutions keep w.
    widths = [(16, 16), (16, 32), (32, 64)]
    stages = sum(conv(before, w) + (2 * n - 1) * conv(w, w) for before, w in widths)
    return conv(3, 16) + stages + 64 * classes + classes


def resnet(blocks, classes):
    # Stem 3×3; two convolutions a block; a 1×1 shortcut wherever the width changes (stages 2 to 4).
    total, before = conv(3, 64), 64
    for w, n in zip((64, 128, 256, 512), blocks, strict=True):
        total += conv(before, w) + (2 * n - 1) * conv(w, w) + (before != w) * conv(before, w, 1)
        before = w
    return total + 512 * classes + classes


def resnet50(classes):
    # Stem 7×7; blocks 1×1 → 3×3 → 1×1 to 4w; the first of every stage has a 1×1 shortcut to 4w.
    total, before = conv(3, 64, 7), 64
    for w, n in zip((64, 128, 256, 512), (3, 4, 6, 3), strict=True):
        total += conv(before, 4 * w, 1)
        for _ in range(n):
            total += conv(before, w, 1) + conv(w, w) + conv(w, 4 * w, 1)
            before = 4 * w
    return total + 2048 * classes + classes


def vgg11(classes):
    widths = [3, 64, 128, 256, 256, 512, 512, 512, 512]
    return sum(conv(a, b, bias=True) for a, b in itertools.pairwise(widths)) + 512 * classes + classes


def transformer(vocabulary, layers=6):
    d, inner = 512, 2048
    attention = 4 * (d * d + d)  # query, key, value, output
    feed_forward = d * inner + inner + inner * d + d
    norm = 2 * d
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    return layers * (encoder + decoder) + 2 * vocabulary * d + vocabulary * d + vocabulary


COUNTS = {  # name: (by hand from the architecture, the published or agreed number at the default classes)
    "resnet32": (cifar_resnet(5, 10), 464_154),
    "resnet110": (cifar_resnet(18, 10), 1_727_962),
    "vgg11": (vgg11(10), 9_231_114),
    "resnet18": (resnet((2, 2, 2, 2), 100), 11_220_132),
    "resnet34": (resnet((3, 4, 6, 3), 100), 21_328_292),
    "resnet50": (resnet50(1000), 25_557_032),
    "transformer": (transformer(8000), 56_434_496),
    "small-cnn": (conv(1, 32) + conv(32, 64) + conv(64, 64) + 64 * 10 + 10, 56_554),
}


@pytest.mark.parametrize("name", models.MODELS)
def test_a_model_has_the_parameters_of_its_architecture(name):
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in models.build(name).parameters())
    assert (count, count) == COUNTS[name]


@pytest.mark.parametrize("name", models.MODELS)
def test_scores_have_the_shape_of_batch_and_classes(name):
    row = models.entry(name)
    with torch.device("meta"):
        model = models.build(name, classes=11)
    batch = synthetic(row.inputs, 2, 11, seed=0)
    scores = model(*(x.to("meta") for x in batch.inputs))
    assert scores.shape == (*batch.targets.shape, 11)


@pytest.mark.parametrize("name", ["resnet32", "vgg11", "small-cnn"])
def test_every_parameter_gets_a_finite_gradient(name):
    row = models.entry(name)
    model, batch = models.build(name), synthetic(row.inputs, 2, row.classes, seed=0)
    loss(model(*batch.inputs), batch.targets).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(("name", "classes", "said"), [("resnet33", 10, "resnet32"), ("vgg11", 1, "at least 2")])
def test_bad_requests_are_refused_with_the_rule(name, classes, said):
    with pytest.raises(InputError, match=said):
        models.build(name, classes)


def test_a_shortcut_keeps_every_second_pixel_between_zero_channels():
    x = torch.randn(2, 4, 6, 6)
    y = Shortcut(4, 8, 2)(x)
    assert y.shape == (2, 8, 3, 3)
    assert torch.equal(y[:, 2:6], x[:, :, ::2, ::2])
    assert not y[:, :2].any()
    assert not y[:, 6:].any()


def small_transformer():
    torch.manual_seed(0)
    return Transformer(20, layers=2, width=16, inner=32, heads=2).eval()


def test_the_transformer_takes_its_number_of_layers():
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in Transformer(100, layers=2).parameters())
    assert count == transformer(100, layers=2)


def test_the_transformer_does_not_look_at_later_target_words():
    model, source, target = small_transformer(), torch.randint(1, 20, (3, 5)), torch.randint(1, 20, (3, 6))
    changed = target.clone()
    changed[:, 4:] = changed[:, 4:] % 19 + 1
    before, after = model(source, target), model(source, changed)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_the_transformer_does_not_look_at_padding():
    model, source, target = small_transformer(), torch.randint(1, 20, (3, 5)), torch.randint(1, 20, (3, 6))
    padded = torch.cat([source, torch.full((3, 2), PAD)], 1)
    torch.testing.assert_close(model(source, target), model(padded, target))


def test_sinusoids_are_the_formula():
    table = sinusoids(7, 8)
    angle = 5 / 10000 ** (4 / 8)
    expected = torch.tensor([angle]).sin().item(), torch.tensor([angle]).cos().item()
    assert table[5, 4:6].tolist() == pytest.approx(expected, rel=1e-5)  # float32
    assert later(3, torch.device("cpu")).tolist() == [[False, True, True], [False, False, True], [False] * 3]
