"""The forward pass of all-MiniLM-L6-v2 in numpy: a BERT encoder, the mean of its tokens, length 1.

Everything is float32: one float64 scalar in an expression would turn the arrays to float64, and cost thirtyfold.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

Array = NDArray[np.float32]

_LONGEST = 256
_BATCH = 32
_F = np.float32


class MiniLM:
    """The model in a folder with `config.json`, `tokenizer.json` and `model.safetensors`. Safe to share
    between threads."""

    def __init__(self, folder: Path) -> None:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.dims = int(config["hidden_size"])
        self._layers = int(config["num_hidden_layers"])
        self._heads = int(config["num_attention_heads"])
        self._epsilon = _F(config["layer_norm_eps"])
        self._weights = _tensors(folder / "model.safetensors")
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(_LONGEST)
        self._tokenizer = tokenizer

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector of length 1 for each text, in order. Texts are cut after 256 tokens."""
        tokens = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        # A batch has texts of one length only, so that no padding and no mask is needed.
        order = sorted(range(len(tokens)), key=lambda at: len(tokens[at]))
        vectors: dict[int, list[float]] = {}
        while order:
            batch = [at for at in order[:_BATCH] if len(tokens[at]) == len(tokens[order[0]])]
            order = order[len(batch) :]
            vectors.update(zip(batch, self._forward([tokens[at] for at in batch]), strict=True))
        return [vectors[at] for at in range(len(tokens))]

    def _forward(self, ids: list[list[int]]) -> list[list[float]]:
        given = np.array(ids)
        length = given.shape[1]
        weight = self._weights
        hidden = weight["embeddings.word_embeddings.weight"][given]
        hidden = hidden + weight["embeddings.position_embeddings.weight"][:length]
        hidden = self._normed(
            hidden + weight["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm"
        )
        for layer in range(self._layers):
            hidden = self._layer(hidden, f"encoder.layer.{layer}")
        mean: Array = hidden.mean(axis=1, dtype=_F)
        found: list[list[float]] = (mean / np.linalg.norm(mean, axis=1, keepdims=True)).tolist()
        return found

    def _layer(self, hidden: Array, name: str) -> Array:
        texts, length, width = hidden.shape
        size = width // self._heads

        def heads(part: str) -> Array:
            found = self._dense(hidden, f"{name}.attention.self.{part}")
            return found.reshape(texts, length, self._heads, size).transpose(0, 2, 1, 3)

        scores = heads("query") @ heads("key").transpose(0, 1, 3, 2) * _F(1 / sqrt(size))
        mixed = (_softmax(scores) @ heads("value")).transpose(0, 2, 1, 3).reshape(texts, length, width)
        attended = self._dense(mixed, f"{name}.attention.output.dense")
        hidden = self._normed(hidden + attended, f"{name}.attention.output.LayerNorm")
        wide = _gelu(self._dense(hidden, f"{name}.intermediate.dense"))
        return self._normed(hidden + self._dense(wide, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def _dense(self, hidden: Array, name: str) -> Array:
        found: Array = hidden @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return found

    def _normed(self, hidden: Array, name: str) -> Array:
        centred = hidden - hidden.mean(axis=-1, keepdims=True, dtype=_F)
        spread = np.sqrt((centred * centred).mean(axis=-1, keepdims=True, dtype=_F) + self._epsilon)
        found: Array = centred / spread * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        return found


def _softmax(scores: Array) -> Array:
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    found: Array = raised / raised.sum(axis=-1, keepdims=True, dtype=_F)
    return found


def _gelu(x: Array) -> Array:
    # numpy has no error function. Abramowitz and Stegun 7.1.26 is accurate to 1.5e-7, the precision of float32.
    scaled = np.abs(x) * _F(1 / sqrt(2))
    t = _F(1) / (_F(1) + _F(0.3275911) * scaled)
    series = np.full_like(t, 1.061405429)
    for factor in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = series * t + _F(factor)
    error = np.copysign(_F(1) - series * t * np.exp(-scaled * scaled), x)
    found: Array = _F(0.5) * x * (_F(1) + error)
    return found


def _tensors(path: Path) -> dict[str, Array]:
    """The float32 tensors of a safetensors file: the header's length in 8 bytes, the header in JSON, the data."""
    with path.open("rb") as file:
        header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    found: dict[str, Array] = {}
    for name, about in header.items():
        if name != "__metadata__" and about["dtype"] == "F32":
            begin, end = about["data_offsets"]
            numbers = np.frombuffer(data, dtype="<f4", offset=begin, count=(end - begin) // 4)
            found[name] = numbers.reshape(about["shape"])
    return found
