"""Packs: rules as YAML. The place of the shipped ones, and the loader of binding packs."""

from arbiter._constitution.bindings import (
    BindingPack,
    Fingerprint,
    GraphFacts,
    load_bindings,
    shipped_bindings,
)
from arbiter._constitution.documents import load_packs, pack_files, pack_folder

__all__ = [
    "BindingPack",
    "Fingerprint",
    "GraphFacts",
    "load_bindings",
    "load_packs",
    "pack_files",
    "pack_folder",
    "shipped_bindings",
]
