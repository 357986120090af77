"""The table of data sets, and `load`. A new data set is an entry here, and a file if its layout is a new one."""

from __future__ import annotations

from pathlib import Path

from fngd_bench.data.checksums import File, md5, sha1
from fngd_bench.data.cifar import Cifar
from fngd_bench.data.dataset import DataSet, Embedded, Facts, command
from fngd_bench.data.derived import Derived, long_tailed, noisy
from fngd_bench.data.digits import digits
from fngd_bench.data.download import Remote
from fngd_bench.data.folder import data_folder
from fngd_bench.data.image_folders import Count, ImageFolders
from fngd_bench.data.multi30k import Multi30K, Split, text
from fngd_bench.data.numbers import numbers
from fngd_bench.data.pixels import Statistics
from fngd_bench.data.types import Data
from fngd_bench.errors import InputError

_TORONTO = "https://www.cs.toronto.edu/~kriz"
_CIFAR100_NAMES = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can "
    "castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin "
    "elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster "
    "man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck "
    "pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk "
    "skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger "
    "tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)

_CIFAR10 = Cifar(
    facts=Facts("cifar10", "colour images 32×32, 10 classes", "50,000 + 10,000", "170 MB", f"{_TORONTO}/cifar.html"),
    remote=Remote(f"{_TORONTO}/cifar-10-binary.tar.gz", md5("c32a1d4ab5d03f1284b67883e8d87530")),
    root="cifar-10-batches-bin",
    train=(
        File("cifar-10-batches-bin/data_batch_1.bin", sha1("aadd24acce27caa71bf4b10992e9e7b2d74c2540")),
        File("cifar-10-batches-bin/data_batch_2.bin", sha1("c0ba65cce70568cd57b4e03e9ac8d2a5367c1795")),
        File("cifar-10-batches-bin/data_batch_3.bin", sha1("1dd00a74ab1d17a6e7d73e185b69dbf31242f295")),
        File("cifar-10-batches-bin/data_batch_4.bin", sha1("aab85764eb3584312d3c7f65fd2fd016e36a258e")),
        File("cifar-10-batches-bin/data_batch_5.bin", sha1("26e2849e66a845b7f1e4614ae70f4889ae604628")),
    ),
    test=(File("cifar-10-batches-bin/test_batch.bin", sha1("67eb016db431130d61cd03c7ad570b013799c88c")),),
    label_bytes=1,
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
)
_CIFAR100 = Cifar(
    facts=Facts("cifar100", "colour images 32×32, 100 classes", "50,000 + 10,000", "169 MB", f"{_TORONTO}/cifar.html"),
    remote=Remote(f"{_TORONTO}/cifar-100-binary.tar.gz", md5("03b5dce01913d631647c71ecec9e9cb8")),
    root="cifar-100-binary",
    train=(File("cifar-100-binary/train.bin", sha1("e207cd2e05b73b1393c74c7f5e7bea451d63e08e")),),
    test=(File("cifar-100-binary/test.bin", sha1("8fb6623e830365ff53cf14adec797474f5478006")),),
    label_bytes=2,
    classes=tuple(_CIFAR100_NAMES.split()),
)
_TINY20 = ImageFolders(
    facts=Facts("tiny20", "20 classes of Tiny-ImageNet, 64×64", "10,000 + 1,000", "21 MB", "no site of its own"),
    root="tiny-imagenet-20",
    count=Count(classes=20, train=10_000, val=1_000),
    size=64,
    how="it is 20 classes of Tiny-ImageNet with 500 + 50 images each, in ImageNet's layout, and has no site of its own",
    known=None,
)
_IMAGENET = ImageFolders(
    facts=Facts("imagenet", "photographs, 1,000 classes", "1,281,167 + 50,000", "145 GB", "https://image-net.org"),
    root="imagenet",
    count=Count(classes=1000, train=1_281_167, val=50_000),
    size=224,
    how="ImageNet (ILSVRC 2012) needs a licence, which https://image-net.org gives to those who register",
    known=Statistics(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
)
_MULTI30K = Multi30K(
    facts=Facts(
        "multi30k", "German and English sentences", "29,000 + 1,014 + 1,000", "1.3 MB", "https://github.com/multi30k"
    ),
    train=Split(
        29_000,
        text("train.en", "9dcf8c2eca9c247857621f70b775d80a9573e11d", "7bb270d3cb8e0231dc8a35612f710bd7acd7d15d"),
        text("train.de", "0fd15648687149cf46b8c441b99b31ace76f02e7", "b75faedd06acf582c14bbc55c5e4fdc6ba59882e"),
    ),
    validation=Split(
        1_014,
        text("val.en", "395cb9a531e50c3263720a7db3ea6b110b8490db", "5c29ab7ab08044622ac25c5003fe3ed5267d50d9"),
        text("val.de", "066cf66cc1c771cbe9c5a8ca0a3ebcdbc95cae73", "a32005594509bd1732f77f5bf2896be331a7ada2"),
    ),
    test=Split(
        1_000,
        text(
            "test_2016_flickr.en",
            "9982210315a70106e3f724bfe745ac7fcb484387",
            "09d84fb0baefe355bde7d65905f15be0ce494cad",
        ),
        text(
            "test_2016_flickr.de",
            "23b8540ad62d72ce4f1ef52479c094dcee39be57",
            "fbec225cd0169f93136cb8fa4959009333fa7b74",
        ),
    ),
)
_DIGITS = Embedded(
    Facts("digits", "grey images 8×8, 10 classes", "1,437 + 360", "–", "comes with scikit-learn"), digits
)
_NUMBERS = Embedded(
    Facts("numbers", "numbers in words, English and German", "4,000 + 500 + 500", "–", "made on the spot"), numbers
)

_NOISY, _LONG_TAILED = "with 40 % random labels", "with class sizes down to 1 %"
_DERIVED = (
    Derived(Facts("digits-noisy", _NOISY, "1,437 + 360", "–", "made of digits"), _DIGITS, noisy),
    Derived(Facts("digits-longtail", _LONG_TAILED, "354 + 360", "–", "made of digits"), _DIGITS, long_tailed),
    Derived(Facts("cifar10-noisy", _NOISY, "50,000 + 10,000", "–", "made of cifar10"), _CIFAR10, noisy),
    Derived(Facts("cifar10-longtail", _LONG_TAILED, "12,408 + 10,000", "–", "made of cifar10"), _CIFAR10, long_tailed),
)

SETS: dict[str, DataSet] = {
    entry.facts.name: entry
    for entry in (_DIGITS, _NUMBERS, _CIFAR10, _CIFAR100, _TINY20, _IMAGENET, _MULTI30K, *_DERIVED)
}
"""Every data set, by name."""


def find(name: str) -> DataSet:
    """The data set of that name.

    Args:
        name: One of `SETS`.

    Returns:
        The data set.

    Raises:
        InputError: If there is none.
    """
    if name not in SETS:
        raise InputError(f"there is no data set {name!r}; choose one of {', '.join(SETS)}")
    return SETS[name]


def find_present(name: str, folder: Path) -> DataSet:
    """The data set of that name, if its files are there.

    Args:
        name: One of `SETS`.
        folder: The data folder.

    Returns:
        The data set.

    Raises:
        InputError: If there is none, or a file of it is missing.
    """
    entry = find(name)
    if (path := entry.absent(folder)) is not None:
        raise InputError(
            f"data set {name} is missing: there is no {path}; get it with `{command(entry.origin, folder)}`"
        )
    return entry


def load(name: str, folder: Path | None = None) -> Data:
    """A data set, read and checked.

    Args:
        name: One of `SETS`.
        folder: Where data sets lie; by default `$FNGD_DATA` or the user's cache folder.

    Returns:
        Images with classes, or pairs of sentences.

    Raises:
        InputError: If there is no such data set, or its files are missing or corrupt.

    Example:
        >>> load("digits").classes[7]
        '7'
    """
    place = data_folder(folder)
    return find_present(name, place).read(place)
