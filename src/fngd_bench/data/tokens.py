"""Sentences to numbers and back: byte-pair encoding, one vocabulary for both languages, by the package `tokenizers`.

Pieces are made of bytes, so what was encoded comes back to the letter, double spaces included. The vocabulary holds
the bytes that the training sentences have; any other becomes `UNK`. It depends on the sentences and the size alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from torch import Tensor

from fngd_bench.errors import InputError
from fngd_bench.models.transformer import PAD

BOS, EOS, UNK = 1, 2, 3
"""The words that begin a sentence, end it, and stand for what was never seen."""
SPECIAL = ("[PAD]", "[BOS]", "[EOS]", "[UNK]")
"""Names of the special words; the position is the number."""


class Vocabulary:
    """Pieces of words and their numbers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Take over a trained tokenizer.

        Args:
            tokenizer: Its first four pieces are the special ones.
        """
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """The numbers of each sentence's pieces, without begin and end.

        Args:
            sentences: Any.

        Returns:
            For each its numbers.
        """
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(sentences), add_special_tokens=False)]

    def decode(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """The sentences that numbers stand for; special words are left out.

        Args:
            batch: Numbers of each sentence.

        Returns:
            The sentences.
        """
        return self._tokenizer.decode_batch([list(numbers) for numbers in batch], skip_special_tokens=True)


def train_vocabulary(sentences: Sequence[str], size: int) -> Vocabulary:
    """Learn the pieces.

    Args:
        sentences: To learn from, of both languages.
        size: Pieces, the four special ones included; fewer if the sentences have no more.

    Returns:
        The vocabulary.

    Raises:
        InputError: If `size` has no room for the single bytes of the sentences.
    """
    tokenizer = Tokenizer(BPE(unk_token=SPECIAL[UNK]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteDecoder()
    trainer = BpeTrainer(vocab_size=size, special_tokens=list(SPECIAL), show_progress=False)
    tokenizer.train_from_iterator(sentences, trainer)
    # What looks like a special word in a sentence is letters like any other.
    tokenizer.encode_special_tokens = True
    vocabulary = Vocabulary(tokenizer)
    if len(vocabulary) > size:
        raise InputError(
            f"vocabulary size={size} is too small: the single bytes of the sentences and {len(SPECIAL)} special words "
            f"make {len(vocabulary)}; ask for more"
        )
    return vocabulary


def pad(batch: Sequence[Sequence[int]]) -> Tensor:
    """Sentences of one batch, filled up to the longest.

    Args:
        batch: Numbers of each sentence, M of them.

    Returns:
        int64 (M, L), `PAD` behind short ones.
    """
    longest = max(map(len, batch))
    return torch.tensor([[*numbers, *[PAD] * (longest - len(numbers))] for numbers in batch], dtype=torch.int64)
