"""Multi-head attention, `torch.nn.MultiheadAttention`: its in-projection is one layer, its out-projection another.

The in-projection takes in all of q, k and v, packed in one weight or in three, with the packed bias: the sample's
gradient is the one of all these parameters together. The out-projection is the `Linear` module the attention holds.
The attention between the two, written out below, has no parameters but `bias_k` and `bias_v`, which take the plain
gradient.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fngd.layers.attach import layer_of
from fngd.layers.base import Layer
from fngd.layers.linear import project
from fngd.layers.registry import register_layer


@register_layer(
    nn.MultiheadAttention,
    parameters=("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias"),
)
def attention(
    module: nn.MultiheadAttention,
    layer: Layer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """query: (M, L, E), key and value: (M, S, ·), or with the first two dimensions swapped; or one sample alone."""
    if is_causal and attn_mask is None:
        raise RuntimeError("is_causal=True needs attn_mask as well, as in torch.nn.MultiheadAttention")
    batched = query.dim() == 3
    batch_dim = 0 if module.batch_first or not batched else 1
    one = functools.partial(layer.linear, batch_dim=batch_dim, batch=None if batched else 1)
    inputs = _Inputs(query, key, value) if batched else _Inputs(query, key, value).unsqueeze()
    q, k, v = (_heads(t, module.num_heads, batch_dim) for t in _in_projection(module, one, inputs))
    k, v, extra = _extended(module, k, v)
    causal_hint = is_causal and key_padding_mask is None and not need_weights
    mask = None if causal_hint else _mask(attn_mask, key_padding_mask, q, k.shape[2] - extra, extra)
    dropout = module.dropout if module.training else 0.0
    weights: Tensor | None = None
    if need_weights:
        attended, weights = _attend(q, k, v, mask, dropout)
    else:
        attended = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=causal_hint)
    joined = attended.transpose(1, 2).flatten(2)
    joined = joined if batch_dim == 0 else joined.transpose(0, 1)
    output = project(module.out_proj, layer_of(module.out_proj), joined, batch_dim, None if batched else 1)
    if weights is not None and average_attn_weights:
        weights = weights.mean(1)
    if batched:
        return output, weights
    return output.squeeze(0), None if weights is None else weights.squeeze(0)


class _Inputs(NamedTuple):
    query: Tensor
    key: Tensor
    value: Tensor

    def unsqueeze(self) -> _Inputs:
        """A batch of one, in which equal inputs are still the same object."""
        query = self.query.unsqueeze(0)
        key = query if self.key is self.query else self.key.unsqueeze(0)
        return _Inputs(query, key, key if self.value is self.key else self.value.unsqueeze(0))


def _in_projection(
    module: nn.MultiheadAttention, linear: Callable[..., Tensor], inputs: _Inputs
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v, each (·, ·, E), with as few products as the inputs allow."""
    width, weight, bias = module.embed_dim, module.in_proj_weight, module.in_proj_bias

    def rows(t: Tensor | None, start: int, stop: int) -> Tensor | None:
        return None if t is None else t[start * width : stop * width]

    def projected(x: Tensor, weight: Tensor, start: int, stop: int) -> Tensor:
        return linear(x, weight, rows(bias, start, stop))

    if weight is None:
        separate = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        q, k, v = (projected(x, w, i, i + 1) for i, (x, w) in enumerate(zip(inputs, separate, strict=True)))
    elif inputs.query is inputs.key and inputs.key is inputs.value:
        q, k, v = linear(inputs.query, weight, bias).chunk(3, -1)
    elif inputs.key is inputs.value:
        q = projected(inputs.query, weight[:width], 0, 1)
        k, v = projected(inputs.key, weight[width:], 1, 3).chunk(2, -1)
    else:
        q, k, v = (projected(x, weight[i * width : (i + 1) * width], i, i + 1) for i, x in enumerate(inputs))
    return q, k, v


def _heads(t: Tensor, heads: int, batch_dim: int) -> Tensor:
    """(M, L, E) or (L, M, E) → (M, heads, L, E / heads)."""
    t = t.unflatten(-1, (heads, -1))
    return t.transpose(1, 2) if batch_dim == 0 else t.permute(1, 2, 0, 3)


def _extended(module: nn.MultiheadAttention, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int]:
    """Keys and values with the learned and the zero entry, where the module has them, and how many these are."""
    extra = 0
    if module.bias_k is not None and module.bias_v is not None:
        k = torch.cat([k, _heads(module.bias_k, module.num_heads, 0).to(k.dtype).expand(len(k), -1, -1, -1)], 2)
        v = torch.cat([v, _heads(module.bias_v, module.num_heads, 0).to(v.dtype).expand(len(v), -1, -1, -1)], 2)
        extra += 1
    if module.add_zero_attn:
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        extra += 1
    return k, v, extra


def _mask(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor, length: int, extra: int
) -> Tensor | None:
    """The two masks as one term that is added to the scores, broadcastable to (M, heads, L, S + extra)."""
    M, heads, L, S = (*q.shape[:3], length)
    terms = []
    if attn_mask is not None:
        mask = _added("attn_mask", attn_mask, q.dtype, [(L, S), (M * heads, L, S)])
        terms.append(mask if mask.dim() == 2 else mask.unflatten(0, (len(q), -1)))
    if key_padding_mask is not None:
        mask = _added("key_padding_mask", key_padding_mask, q.dtype, [(M, S)] if M > 1 else [(M, S), (S,)])
        terms.append(mask.view(-1, 1, 1, mask.shape[-1]))
    padded = [F.pad(term, (0, extra)) for term in terms]
    return padded[0] + padded[1] if len(padded) == 2 else next(iter(padded), None)


def _added(name: str, mask: Tensor, dtype: torch.dtype, shapes: list[tuple[int, ...]]) -> Tensor:
    """A mask as numbers to add: a boolean True forbids."""
    if tuple(mask.shape) not in shapes or not (mask.dtype == torch.bool or mask.is_floating_point()):
        wanted = " or ".join(str(shape) for shape in shapes)
        raise RuntimeError(
            f"{name} must be of shape {wanted} and boolean or floating point, as in torch.nn.MultiheadAttention, but "
            f"is of shape {tuple(mask.shape)} and {mask.dtype}"
        )
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ/√d + mask) v and the weights themselves, (M, heads, L, S), after dropout as torch returns them."""
    scores = (q * math.sqrt(1.0 / q.shape[-1])) @ k.mT
    weights = F.softmax(scores if mask is None else scores + mask, dim=-1)
    weights = F.dropout(weights, dropout) if dropout > 0.0 else weights
    return weights @ v, weights
