"""The tensors of W1 to W4, the same on every machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["WORKLOADS"]

Tensors = dict[str, NDArray[Any]]


def few_large() -> Tensors:
    """W1: 8 tensors of 64 MiB."""
    rng = np.random.default_rng(1)
    return {f"layer.{i}.weight": rng.standard_normal((4096, 4096), np.float32) for i in range(8)}


def language_model() -> Tensors:
    """W2: 1000 tensors named and shaped like a language model, about 600 MB of bfloat16."""
    rng = np.random.default_rng(2)
    hidden, inner, vocabulary, layers = 384, 1024, 32_000, 111
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for i in range(layers):
        layer = f"model.layers.{i}"
        for name, shape in (
            ("self_attn.q_proj", (hidden, hidden)),
            ("self_attn.k_proj", (hidden, hidden)),
            ("self_attn.v_proj", (hidden, hidden)),
            ("self_attn.o_proj", (hidden, hidden)),
            ("mlp.gate_proj", (inner, hidden)),
            ("mlp.up_proj", (inner, hidden)),
            ("mlp.down_proj", (hidden, 2 * inner)),
            ("input_layernorm", (hidden,)),
            ("post_attention_layernorm", (hidden,)),
        ):
            shapes[f"{layer}.{name}.weight"] = shape
    return {name: rng.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16) for name, shape in shapes.items()}


def many_small() -> Tensors:
    """W3: 10,000 tensors of 16 × 16."""
    rng = np.random.default_rng(3)
    return {f"block.{i}.scale": rng.standard_normal((16, 16), np.float32) for i in range(10_000)}


def very_many_tiny() -> Tensors:
    """W4: 100,000 tensors of shape (4,)."""
    rng = np.random.default_rng(4)
    return {f"block.{i}.bias": rng.standard_normal(4, np.float32) for i in range(100_000)}


WORKLOADS: dict[str, Callable[[], Tensors]] = {
    "W1": few_large,
    "W2": language_model,
    "W3": many_small,
    "W4": very_many_tiny,
}
