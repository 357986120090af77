"""What all tests share: a processor that half precision does not crash on, and a seed."""

import os

# oneDNN takes bfloat16 to AMX wherever the processor names it, and dies with an illegal instruction where the system
# does not let it. Read when oneDNN is first used; processes that a test starts inherit it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
