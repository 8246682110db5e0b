"""Exports of runs for trainers: what was judged becomes rewards, preferences and labels.

    journal ─▶ steps (one row a node run) ─▶ trl, verl, openrlhf, stepwise ─▶ Parquet or JSON lines

A score is a reward only if its outcome is "scored", its scale has two ends, and no rule or correction loop of the
graph read it: text that was steered by a score says nothing about that score. See docs/exports.md.
"""

from arbiter.harness.exports.exporting import FORMATS, Export, export_run
from arbiter.harness.exports.forms import ExportOptions
from arbiter.harness.exports.rewarding import Rewards

__all__ = ["FORMATS", "Export", "ExportOptions", "Rewards", "export_run"]
