"""The benchmark of retrieval, on made data of the same form as LoCoMo's: `benchmarks/locomo.py` needs the real one."""

from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest

from arbiter.errors import ConfigurationError
from arbiter.memory import _embeddings
from benchmarks import locomo

VERBS = {
    "buy": "bought",
    "visit": "visited",
    "paint": "painted",
    "climb": "climbed",
    "study": "studies",
    "love": "loves",
}
THINGS = ["kayaks", "churches", "mountains", "violins", "rivers", "novels", "gardens", "castles"]
TAILS = [
    "during a trip with the family that took far longer than anybody had planned",
    "although the weather was dreadful and the children were tired of walking",
    "and told everybody at work about it for weeks on end",
    "because a friend had recommended it warmly",
]


def conversation(seed: int) -> dict[str, Any]:
    """Two people with two hundred claims, and questions in other forms of their words. Most claims share a
    word with each question."""
    choose = random.Random(seed)
    made: dict[str, Any] = {"speaker_a": "Ann", "speaker_b": "Bob", "qa": []}
    for session in range(1, 11):
        told: dict[str, list[list[str]]] = {"Ann": [], "Bob": []}
        said: list[dict[str, str]] = []
        for number in range(1, 21):
            person, id = choose.choice(["Ann", "Bob"]), f"D{session}:{number}"
            (verb, form), thing = choose.choice(list(VERBS.items())), choose.choice(THINGS)
            name = "".join(choose.choices("abdeiklmnorstu", k=7)).capitalize()
            told[person].append([f"{person} {form} {thing} in {name} {choose.choice(TAILS)}.", id])
            said.append({"speaker": person, "dia_id": id, "text": "Well."})
            if choose.random() < 0.3:
                asked = choose.choice(
                    [
                        f"When did {person} {verb} the {thing[:-1]} in {name}?",
                        f"What does {person} do in {name}?",
                    ]
                )
                made["qa"].append({"question": asked, "evidence": [id], "category": 1})
        made[f"session_{session}"] = said
        made[f"session_{session}_date_time"] = f"1:56 pm on {session} May, 2023"
        made[f"session_{session}_observation"] = told
    made["qa"].append({"question": "Is Ann a spy?", "evidence": ["D1:1"], "category": locomo.ADVERSARIAL})
    made["qa"].append({"question": "Do Ann and Bob agree?", "evidence": ["D1:1"], "category": 1})
    return made


@pytest.mark.lengthy
@pytest.mark.parametrize("form", ["json", pytest.param("zip", marks=pytest.mark.slow)])
def test_the_provider_shows_at_least_the_evidence_that_plain_bm25_finds(tmp_path: Path, form: str) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps([conversation(1)]))
    if form == "zip":
        with zipfile.ZipFile(tmp_path / "data.zip", "w") as whole:
            whole.write(path, "data.json")
        path = tmp_path / "data.zip"
    rows = {row.name: row for row in locomo.measured(path, 1, None, lambda line: None)}
    ours, plain = rows["FactsProvider, no embeddings"], rows["plain BM25, best 12"]
    assert ours.asked == plain.asked >= 40
    assert ours.any_evidence >= plain.any_evidence
    assert ours.any_evidence / ours.asked >= 0.95
    assert ours.found / ours.asked > 3 * rows["newest 12"].found / ours.asked
    assert ours.lines / ours.asked == 14


def test_without_the_local_model_its_rows_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is loaded at the first use, so a missing one shows only then."""

    def missing() -> Path:
        raise ConfigurationError("no model")

    monkeypatch.setattr(_embeddings, "_packaged", missing)
    assert locomo.local_embeddings() is None
