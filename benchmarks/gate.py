"""The error rates of the regression gate, and the cost of its exact test. `python benchmarks/gate.py`.

The share of simulated runs that fail: nothing changed, or the agent got worse by 0.3, 0.6 or 1.0 of 0 to 9. The
judge's noise has an sd of 0.9, cases have one of 1.5, and an agent that answers anew one of 0.7. "rule at 1.0" is
the share that the rule "fail if the mean drops by more than 1.0" finds of a true drop of 1.0.

    python benchmarks/gate.py [--trials 1000] [--seed 1] [--json FILE]

Limits: 20 cases with 3 votes find a drop of 0.6 in 90 % of the runs, and at most 5 % of unchanged runs fail, give
or take the error of that many trials. The exact test of 1,000 cases costs at most 1 s of CPU time; beside it
stands a sampled permutation test of scipy with 9,999 draws.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))
from arbiter.harness import Row
from arbiter.statistics import sign_flip
from tests.harness.simulation import AGENT, World, fails, share_that_fails, verdicts

DROPS = (0.0, 0.3, 0.6, 1.0)
SAME = ((5, 3), (10, 3), (20, 1), (20, 3), (50, 1), (50, 3), (100, 1))
ANEW = ((20, 1), (20, 3), (50, 1), (50, 3), (100, 1), (200, 1))
RUNS = 100


def rule_at_one(world: World, trials: int, seed: int) -> float:
    """The share of runs in which the mean drops by more than 1.0, of an agent that got worse by 1.0."""
    rng, found = random.Random(f"{seed}:rule:{world}"), 0
    for _ in range(trials):
        qualities = world.qualities(rng)
        before, after = (world.row(rng, qualities, drop=drop).mean or 0.0 for drop in (0.0, 1.0))
        found += before - after > 1.0 + 1e-9
    return found / trials


def four_rows(world: World, drop: float, trials: int, seed: int) -> float:
    """The share of runs with four rows that fail, if one of the rows drops."""
    rng, failed = random.Random(f"{seed}:four:{world}:{drop}"), 0
    for _ in range(trials):
        before: dict[str, Row] = {}
        after: dict[str, Row] = {}
        for name in ("tone", "style", "facts", "form"):
            qualities = world.qualities(rng)
            before[name] = world.row(rng, qualities)
            after[name] = world.row(rng, qualities, drop=drop if name == "tone" else 0.0)
        found = verdicts(before, after)
        failed += "regressed" in (found.values() if not drop else [found["tone"]])
    return failed / trials


def luck(kind: str, trials: int, seed: int) -> list[float]:
    """The share of unchanged runs that fail, for each of many baselines."""
    world, rng = World(cases=20, votes=3, agent=AGENT), random.Random(f"{seed}:luck:{kind}")
    shares: list[float] = []
    for _ in range(trials):
        qualities = world.qualities(rng)
        if kind == "the best-looking of 5 runs":
            baseline = max((world.row(rng, qualities) for _ in range(5)), key=lambda row: row.mean or 0.0)
        else:
            baseline = world.row(rng, qualities, repeats=3 if kind == "the mean of 3 repeats" else 1)
        shares.append(fmean(fails(baseline, world.row(rng, qualities)) for _ in range(RUNS)))
    return shares


def cost(cases: int) -> tuple[float, float]:
    """CPU seconds of the exact test, and of a sampled one, on whole scores with 3 votes; medians of 3 rounds."""
    rng = random.Random(cases)
    scores = [sum(rng.randint(0, 9) - rng.randint(0, 9) for _ in range(3)) / 3 for _ in range(cases)]
    stats: Any = importlib.import_module("scipy.stats")
    numpy: Any = importlib.import_module("numpy")

    def sampled() -> None:
        stats.permutation_test(
            (numpy.array(scores),),
            numpy.mean,
            permutation_type="samples",
            n_resamples=9_999,
            alternative="less",
            vectorized=True,
        )

    rounds = [(_cpu(lambda: sign_flip(scores)), _cpu(sampled)) for _ in range(3)]
    return median(own for own, _ in rounds), median(other for _, other in rounds)


def _cpu(call: Callable[[], object]) -> float:
    begun = time.process_time()
    call()
    return time.process_time() - begun


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=200, help="simulated runs a cell (default 200)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    trials, seed, console = options.trials, options.seed, Console()
    failing: dict[str, list[float]] = {}
    lucks: dict[str, list[float]] = {}
    costs: dict[int, tuple[float, float]] = {}

    for label, agent, sizes in (("same answers judged anew", 0.0, SAME), ("agent answers anew", AGENT, ANEW)):
        table = Table("cases × votes", *(f"drop {drop:g}" for drop in DROPS), "rule at 1.0", title=label)
        for cases, votes in sizes:
            world = World(cases=cases, votes=votes, agent=agent)
            shares = [share_that_fails(world, drop, trials=trials, seed=seed) for drop in DROPS]
            shares.append(rule_at_one(world, trials, seed))
            failing[f"{label}, {cases} × {votes}"] = shares
            table.add_row(f"{cases} × {votes}", *(f"{share:.3f}" for share in shares))
        console.print(table)

    ceiling = World(cases=20, votes=3, mean=8.3)
    more = {
        "near the ceiling, unchanged": share_that_fails(ceiling, 0, trials=trials, seed=seed),
        "near the ceiling, drop 0.6": share_that_fails(ceiling, 0.6, trials=trials, seed=seed),
    } | {
        f"four rows, {cases} × 3, {f'drop {drop:g} of one' if drop else 'unchanged'}": four_rows(
            World(cases=cases, votes=3), drop, trials, seed
        )
        for cases in (20, 50)
        for drop in (0.0, 0.6)
    }
    table = Table("rows", "runs that fail", title="ceiling, and Holm over four rows")
    for name, share in more.items():
        table.add_row(name, f"{share:.3f}")
    console.print(table)

    table = Table(
        "baseline is", "mean", "unluckiest tenth", "fail above 0.2", title="luck of a baseline, unchanged"
    )
    for kind in ("one run", "the mean of 3 repeats", "the best-looking of 5 runs"):
        shares = sorted(luck(kind, max(20, trials // 5), seed))
        tenth = fmean(shares[-max(1, len(shares) // 10) :])
        numbers = [fmean(shares), tenth, fmean(share > 0.2 for share in shares)]
        lucks[kind] = numbers
        table.add_row(kind, *(f"{number:.3f}" for number in numbers))
    console.print(table)

    table = Table("pairs", "exact", "sampled (scipy)", "ratio", title="CPU seconds of the test")
    for cases in (20, 200, 1_000):
        own, other = cost(cases)
        costs[cases] = own, other
        table.add_row(f"{cases:,}", f"{own:.4f}", f"{other:.4f}", f"{own / other:.2f}")
    console.print(table)

    if options.json:
        found = {"runs that fail": failing, "more": more, "luck": lucks, "cost": costs}
        options.json.write_text(
            json.dumps({"trials": trials, "seed": seed, **found}, indent=2), encoding="utf-8"
        )
    unchanged, _, drop, _, _ = failing["same answers judged anew, 20 × 3"]
    slack = 2 * math.sqrt(0.05 * 0.95 / trials)
    kept = {
        "20 × 3 finds a drop of 0.6 in 90 % of the runs": drop >= 0.9 - slack,
        "at most 5 % of unchanged runs fail": unchanged <= 0.05 + slack,
        "the exact test of 1,000 cases costs at most 1 s": costs[1_000][0] <= 1,
    }
    for limit, holds in kept.items():
        console.print(f"{'✓' if holds else '✗'} {limit}")
    return 0 if all(kept.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
