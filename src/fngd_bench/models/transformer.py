"""The Transformer for translation (Vaswani et al., 2017): 512 wide, 2048 inside, 8 heads, six layers a side.

Built of torch's own encoder and decoder layers, which normalise after each addition as the paper does. Source and
target have embeddings of their own, scaled by √512 and added to sinusoids of the position; a linear layer turns the
decoder's output into scores over the vocabulary. Word `PAD` fills up short sentences and is never attended to.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

PAD = 0
"""The word that fills up short sentences."""


class Transformer(nn.Module):
    """Source and target words in, scores of the next target word out."""

    def __init__(
        self,
        vocabulary: int,
        *,
        layers: int = 6,
        width: int = 512,
        inner: int = 2048,
        heads: int = 8,
        dropout: float = 0.1,
        longest: int = 512,
    ) -> None:
        """Build it with fresh weights.

        Args:
            vocabulary: Words, of the source and of the target.
            layers: Encoder layers, and as many decoder layers.
            width: Features of a position.
            inner: Features inside the feed-forward part.
            heads: Attention heads.
            dropout: Share of the features that training leaves out.
            longest: Positions that have sinusoids ready.
        """
        super().__init__()
        self.source_embedding = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.target_embedding = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.register_buffer("positions", sinusoids(longest, width), persistent=False)
        self.dropout = nn.Dropout(dropout)
        encoder = nn.TransformerEncoderLayer(width, heads, inner, dropout, batch_first=True)
        decoder = nn.TransformerDecoderLayer(width, heads, inner, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(encoder, layers, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder, layers)
        self.output = nn.Linear(width, vocabulary)
        self._initialise()

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Scores of the word after each target position.

        Args:
            source: Words, (M, S).
            target: Words so far, (M, T).

        Returns:
            Scores, (M, T, vocabulary).
        """
        scores: Tensor = self.output(self.decode(self.encode(source), source, target))
        return scores

    def encode(self, source: Tensor) -> Tensor:
        """What the decoder reads of the source, (M, S, width).

        Args:
            source: Words, (M, S).

        Returns:
            The memory.
        """
        memory: Tensor = self.encoder(self._embed(self.source_embedding, source), src_key_padding_mask=source == PAD)
        return memory

    def decode(self, memory: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Features of each target position, (M, T, width).

        Args:
            memory: What `encode` made of the source.
            source: Words, (M, S).
            target: Words so far, (M, T).

        Returns:
            The features that `output` turns into scores.
        """
        decoded: Tensor = self.decoder(
            self._embed(self.target_embedding, target),
            memory,
            tgt_mask=later(target.shape[1], target.device),
            tgt_key_padding_mask=target == PAD,
            memory_key_padding_mask=source == PAD,
            tgt_is_causal=True,  # says what the mask is, or torch reads it back at every forward to find out
        )
        return decoded

    def _embed(self, embedding: nn.Embedding, words: Tensor) -> Tensor:
        positions = self.get_buffer("positions")[: words.shape[1]]
        embedded: Tensor = self.dropout(embedding(words) * math.sqrt(embedding.embedding_dim) + positions)
        return embedded

    def _initialise(self) -> None:
        """Glorot's uniform for matrices; embeddings of variance 1/width, so that scaled they are of variance 1."""
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        for embedding in (self.source_embedding, self.target_embedding):
            nn.init.normal_(embedding.weight, std=embedding.embedding_dim**-0.5)
            with torch.no_grad():
                embedding.weight[PAD].zero_()


def sinusoids(length: int, width: int) -> Tensor:
    """Sine and cosine of the position at wavelengths from 2π to 10000·2π.

    Args:
        length: Positions.
        width: Features, even.

    Returns:
        Sines in the even features and cosines in the odd ones, (length, width).
    """
    positions = torch.arange(length, dtype=torch.float32).unsqueeze(1)
    rates = torch.exp(torch.arange(0, width, 2, dtype=torch.float32) * (-math.log(10000.0) / width))
    angles = positions * rates
    return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)


def later(length: int, device: torch.device) -> Tensor:
    """True where a position would look at a later one, (length, length)."""
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(1)


def transformer(classes: int) -> Transformer:
    """The base model, six layers a side."""
    return Transformer(classes)
