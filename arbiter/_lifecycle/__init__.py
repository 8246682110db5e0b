"""One governed node run, as a generator without I/O. See docs/design/lifecycle.md.

flow ─▶ stages in order, each in the module named after it ─▶ requests ─▶ drivers (sync, async)
  └──── runs: what the stages read of one node run, and the decisions that they make ───┘
"""
