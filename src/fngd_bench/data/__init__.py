"""The data room: `load` gives a data set by name, read from published files and checked, or made on the spot."""

from fngd_bench.data.folder import data_folder
from fngd_bench.data.jpegs import FolderImages
from fngd_bench.data.sets import SETS, load
from fngd_bench.data.types import ImageData, Images, MemoryImages, Sentences, TextData

__all__ = [
    "SETS",
    "FolderImages",
    "ImageData",
    "Images",
    "MemoryImages",
    "Sentences",
    "TextData",
    "data_folder",
    "load",
]
