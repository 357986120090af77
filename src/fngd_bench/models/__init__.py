"""The networks of the paper, one file a family; `build` makes one by name, `MODELS` is the list."""

from fngd_bench.models.registry import MODELS, Images, ModelEntry, Tokens, build, entry

__all__ = ["MODELS", "Images", "ModelEntry", "Tokens", "build", "entry"]
