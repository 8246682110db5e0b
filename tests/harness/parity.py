"""A suite that several tests run: an agent says whether a number is odd."""

from __future__ import annotations

SUITE = """\
suite: parity
target: {function: app.py:answer}
scorers:
  - {name: right, use: equals}
cases:
  - {from: cases.jsonl}
gate: {baseline: baselines/parity.json}
"""
