"""How a history is printed: its shape, what is folded, that no content can break or forge it."""

from __future__ import annotations

import array
import io
import re
import tracemalloc
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from html.parser import HTMLParser
from pathlib import PurePosixPath
from typing import Any, NamedTuple, cast
from uuid import UUID

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from rich.cells import cell_len
from rich.console import Console
from rich.panel import Panel
from syrupy.assertion import SnapshotAssertion

from arbiter import ArbiterOS, EvaluationResult, History, HistoryItem, ThresholdEvaluator, Verdict
from arbiter.history._rendering import history_html, history_text, pprint_history, render_history
from arbiter.instructions import GENERATE, LOAD, RESPOND, VERIFY, Instruction
from tests.support import quick


@dataclass
class Said:
    """Stands in for a verdict."""

    kind: str
    reason: str = ""


@dataclass
class Scored:
    """Stands in for an evaluation result."""

    score: Any
    passed: bool = True
    feedback: Any = ""


@dataclass(kw_only=True)
class Item:
    """Stands in for a history item."""

    node: str = "writer"
    instruction: Instruction | None = GENERATE
    namespace: str = ""
    attempt: int = 1
    status: str = "completed"
    input_state: Any = field(default_factory=dict[str, Any])
    output_state: Any = field(default_factory=dict[str, Any])
    duration: float = 0.0123
    check_policy_results: Mapping[str, Any] = field(default_factory=dict[str, Any])
    route_policy_results: Mapping[str, Any] = field(default_factory=dict[str, Any])
    evaluation_results: Mapping[str, Any] = field(default_factory=dict[str, Any])
    evaluation_errors: Mapping[str, str] = field(default_factory=dict[str, str])
    evaluator_trace: Sequence[Any] = ()
    error: str | None = None
    redirected_to: str | None = None
    errors: Mapping[str, str] = field(default_factory=dict[str, str])
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    corrections: Sequence[str] = ()


@dataclass
class Kept:
    """Stands in for a history."""

    entries: Sequence[Sequence[Item]]


def history(*supersteps: Item | list[Item]) -> History:
    entries = [step if isinstance(step, list) else [step] for step in supersteps]
    return cast("History", Kept(entries))


def shown(value: Any, width: int = 80) -> str:
    """The printed form of one field of a node's input, without the indentation."""
    lines = history_text(history(Item(input_state={"it": value})), width).split("\n")[3:]
    return "\n".join(line[6:] for line in lines)


def printed(of: History, encoding: str = "utf-8", **console: Any) -> str:
    """The text that a console writes to a file of that encoding."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    pprint_history(of, Console(file=file, width=80, **console))
    file.flush()
    return raw.getvalue().decode(encoding)


TYPICAL_STEPS: list[Item | list[Item]] = [
    Item(
        node="lookup",
        instruction=LOAD,
        input_state={"question": "How do I read a file line by line?"},
        output_state={
            "passages": [
                {"module": "io", "score": 7.25, "text": "Line iteration over a text stream."},
                {"module": "fileinput", "score": 3.5, "text": "Iterate over lines."},
            ],
            "tags": ["io", "files"],
            "exhausted": False,
        },
        duration=0.0042,
        check_policy_results={"budget": Said("allow")},
    ),
    [
        Item(
            input_state={
                "messages": [
                    SystemMessage("Answer from the documentation."),
                    HumanMessage("How do I read a file line by line?"),
                    AIMessage(
                        "",
                        tool_calls=[{"name": "search", "args": {"query": "lines"}, "id": "c1"}],
                    ),
                    ToolMessage("no such table", tool_call_id="c1", status="error"),
                ]
            },
            output_state={
                "answer": "Open it and iterate:\n\n"
                "with open(path) as file:\n    for line in file:\n        print(line)\n",
                "confidence": 0.9,
            },
            duration=1.84,
            attempt=2,
            check_policy_results={
                "budget": Said("allow"),
                "tone": Said("ask", "The answer addresses a customer by first name."),
            },
            corrections=["draft 1: names no module"],
            route_policy_results={"auto_reflect": "reflect", "quiet": None, "escalate": "human"},
            redirected_to="reflect",
            evaluation_results={
                "confidence_check": Scored(0.9, True, "confidence=0.90 (✓ threshold=0.7)"),
                "response_quality": Scored(0.66, True, "Quality assessment: length=82 chars"),
                "consistency_check": Scored(0.5, False, "Tone inconsistent with previous"),
            },
            evaluation_errors={"judge": "TimeoutError: no answer within 5 s"},
            errors={"router by_cost": "ZeroDivisionError: division by zero"},
        ),
        Item(
            node="audit",
            instruction=None,
            status="failed",
            namespace="review:7",
            duration=95.2,
            error="ValueError: the ledger is closed",
        ),
    ],
    Item(
        node="send",
        instruction=RESPOND,
        status="denied",
        duration=0.0,
        check_policy_results={"verify_first": Said("deny", "RESPOND needs a VERIFY that passed before it.")},
    ),
]
TYPICAL = history(*TYPICAL_STEPS)


# --- The shape ---


def test_typical_history_at_80_columns(snapshot: SnapshotAssertion) -> None:
    assert history_text(TYPICAL) == snapshot


def test_typical_history_in_ascii(snapshot: SnapshotAssertion) -> None:
    """For an output that cannot show `╔` or `✓`."""
    assert printed(TYPICAL, "ascii") == snapshot


def test_shape_is_the_documented_one() -> None:
    """Boxes, `[1.1] GENERATE` and evaluation lines are those of the documentation of evaluators."""
    evaluations = {
        "confidence_check": Scored(0.90, True, "confidence=0.90 (✓ threshold=0.7)"),
        "consistency_check": Scored(0.50, False, "Tone inconsistent with previous"),
    }
    lines = history_text(history(Item(evaluation_results=evaluations))).split("\n")
    assert lines[0] == "╔═══ SuperStep 1 ═══╗"
    assert lines[1].startswith("  [1.1] GENERATE")
    assert lines[2:] == [
        "    Evaluations:",
        "      ✓ confidence_check: score=0.90 - confidence=0.90 (✓ threshold=0.7)",
        "      ✗ consistency_check: score=0.50 - Tone inconsistent with previous",
    ]


def test_empty_history_says_so_in_one_line() -> None:
    assert history_text(history()) == "The history is empty: no node has run."


def test_numbers_are_superstep_and_place() -> None:
    text = history_text(history(Item(), [Item(node="a"), Item(node="b")]))
    assert re.findall(r"SuperStep \d|\[\d\.\d\] \w+ · \w+", text) == [
        "SuperStep 1",
        "[1.1] GENERATE · writer",
        "SuperStep 2",
        "[2.1] GENERATE · a",
        "[2.2] GENERATE · b",
    ]


@pytest.mark.parametrize(
    ("item", "line"),
    [
        (Item(), "  [1.1] GENERATE · writer · completed · 12 ms"),
        (Item(instruction=None), "  [1.1] (no instruction) · writer · completed · 12 ms"),
        (Item(attempt=3), "  [1.1] GENERATE · writer · completed · 12 ms · attempt 3"),
        (Item(namespace="sub:1"), "  [1.1] GENERATE · writer · completed · 12 ms · in sub:1"),
        (Item(status="running", duration=0), "  [1.1] GENERATE · writer · running"),
        (
            Item(instruction=VERIFY, duration=0.00042),
            "  [1.1] VERIFY · writer · completed · 0.4 ms",
        ),
        (Item(duration=3.21), "  [1.1] GENERATE · writer · completed · 3.2 s"),
        (Item(duration=3725), "  [1.1] GENERATE · writer · completed · 62 min 05 s"),
        (Item(duration=float("nan")), "  [1.1] GENERATE · writer · completed"),
    ],
)
def test_first_line_of_an_item(item: Item, line: str) -> None:
    assert history_text(history(item)).split("\n")[1] == line


def test_sections_that_are_empty_are_left_out() -> None:
    assert history_text(history(Item())).count("\n") == 1


def test_checks_show_mark_name_and_reason_when_not_allowed() -> None:
    checks = {
        "a": Said("allow", "because"),
        "b": Said("deny", "too dear"),
        "c": Said("ask", "sure?"),
        "d": Said("deny"),
    }
    assert history_text(history(Item(check_policy_results=checks))).split("\n")[2:] == [
        "    Checks:",
        "      ✓ a",
        "      ✗ b: too dear",
        "      ? c: sure?",
        "      ✗ d",
    ]


@pytest.mark.parametrize(
    ("answers", "taken", "lines"),
    [
        ({"r": None}, None, []),
        ({"r": "reflect"}, "reflect", ["→ r: reflect", "→ redirected to reflect"]),
        (
            {"q": None, "r": "reflect", "s": "pay"},
            "reflect",
            ["→ r: reflect", "→ s: pay (overruled)", "→ redirected to reflect"],
        ),
        ({"r": "reflect"}, None, ["→ r: reflect (not taken)"]),
        ({}, "fallback", ["→ redirected to fallback"]),
    ],
)
def test_routes(answers: dict[str, str | None], taken: str | None, lines: list[str]) -> None:
    text = history_text(history(Item(route_policy_results=answers, redirected_to=taken)))
    expected = ["    Routes:", *(f"      {line}" for line in lines)] if lines else []
    assert text.split("\n")[2:] == expected


def test_errors_of_node_evaluators_and_contracts_are_shown() -> None:
    item = Item(
        evaluation_errors={"judge": "TimeoutError: late"},
        errors={"router r": "KeyError: 'x'"},
        error="ValueError: boom\nand more",
        corrections=["too short", "no source"],
    )
    assert history_text(history(item)).split("\n")[2:] == [
        "    Corrections:",
        "      - too short",
        "      - no source",
        "    Evaluations:",
        "      ! judge: TimeoutError: late",
        "    Contract errors:",
        "      ! router r: KeyError: 'x'",
        "    Error: ValueError: boom",
        "          and more",
    ]


def test_evaluations_are_waited_for_when_printed_and_not_before() -> None:
    waited: list[str] = []

    class Lazy(Mapping[str, Scored]):
        def __getitem__(self, name: str) -> Scored:
            waited.append(name)
            return Scored(1.0)

        def __iter__(self) -> Iterator[str]:
            return iter(["slow"])

        def __len__(self) -> int:
            return 1

    view = render_history(history(Item(evaluation_results=Lazy())))
    assert waited == []
    console = Console(file=io.StringIO(), width=80)
    console.print(view)
    assert waited == ["slow"]


@pytest.mark.parametrize("score", [float("nan"), 1e300, -3, Decimal("0.5"), None, "high", 10**400])
def test_any_score_is_printed(score: Any) -> None:
    assert "x: score=" in history_text(history(Item(evaluation_results={"x": Scored(score)})))


def test_prints_to_standard_output_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    pprint_history(TYPICAL)
    assert "╔═══ SuperStep 1 ═══╗" in capsys.readouterr().out


def test_fits_inside_of_other_renderables() -> None:
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as capture:
        console.print(Panel(render_history(TYPICAL)))
    assert {cell_len(line) for line in capture.get().splitlines()} == {80}


@pytest.mark.parametrize(
    ("stand_in", "real"), [(Item, HistoryItem), (Said, Verdict), (Scored, EvaluationResult), (Kept, History)]
)
def test_stand_ins_have_the_attributes_of_the_real_ones(stand_in: type, real: type) -> None:
    assert {part.name for part in fields(stand_in)} <= set(dir(real)) | set(real.__annotations__)


def test_a_real_history_prints_itself() -> None:
    def answer(state: dict[str, Any]) -> dict[str, Any]:
        return {"answer": state["question"] + "[/red]\x1b[31m"}

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(ThresholdEvaluator("confidence_check", key="confidence", threshold=0.7))
    arbiter_os.execute({"question": "Why?"}, answer, instruction=GENERATE)
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as capture:
        arbiter_os.history.pprint(console)
    lines = capture.get().splitlines()
    assert lines[0] == "╔═══ SuperStep 1 ═══╗"
    assert lines[1].startswith("  [1.1] GENERATE · ")
    assert lines[2:6] == [
        "    Input:",
        "      question: Why?",
        "    Output:",
        r'      answer: "Why?[/red]\x1b[31m"',
    ]
    assert "✗ confidence_check: score=0.00" in capture.get()
    # As a notebook calls it.
    html = arbiter_os.history._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert r"Why?[/red]\x1b[31m" in html


# --- Colour and encodings ---


def test_colours_on_a_terminal() -> None:
    assert "\x1b[32m" in printed(TYPICAL, force_terminal=True, color_system="standard")


def test_no_color_leaves_out_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = printed(TYPICAL, force_terminal=True, color_system="standard")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", text)


def test_a_file_gets_no_escape_codes() -> None:
    assert printed(TYPICAL) == history_text(TYPICAL) + "\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "cp437", "shift_jis", "koi8-r"])
def test_ascii_marks_where_the_encoding_lacks_ours(encoding: str) -> None:
    """Content that the encoding lacks is escaped; nothing fails to be written."""
    text = printed(history(Item(input_state={"a": "日本 ✓ é"}), *TYPICAL_STEPS), encoding)
    assert "+=== SuperStep 1 ===+" in text
    assert "ok confidence_check: score=0.90" in text
    assert "x consistency_check" in text
    assert r"\u2713" in text


def test_unknown_encoding_counts_as_ascii() -> None:
    class Odd(io.StringIO):
        encoding = "x-none"  # pyright: ignore[reportIncompatibleVariableOverride, reportAssignmentType]

    file = Odd()
    pprint_history(TYPICAL, Console(file=file, width=80))
    assert file.getvalue().isascii()


# --- Values as YAML ---


class Colour(Enum):
    RED = 1


class Word(StrEnum):
    HI = "hi"


class Number(IntEnum):
    ONE = 1


class Bits(Flag):
    A = 1
    B = 2


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Person:
    name: str
    password: str = field(repr=False)
    friends: list[Person] = field(default_factory=list["Person"])


class Order(BaseModel):
    model_config = ConfigDict(extra="allow")

    amount: int
    card: str = Field(default="4111", repr=False)
    key: SecretStr = SecretStr("hunter2")


class Slotted:
    __slots__ = ("gone",)


class Loud:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class Polite:
    def __repr__(self) -> str:
        return "<Polite at 0x7f001122>"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "it: null"),
        (True, "it: true"),
        ("text", "it: text"),
        ("true", 'it: "true"'),
        ("12", 'it: "12"'),
        ("", 'it: ""'),
        ("a: b", 'it: "a: b"'),
        ("# … (+3 items)", 'it: "# … (+3 items)"'),
        ("<cycle>", 'it: "<cycle>"'),
        ("!Person", 'it: "!Person"'),
        ("naïve 日本", "it: naïve 日本"),
        ("a\nb", "it: |-\n  a\n  b"),
        ("a\nb\n", "it: |\n  a\n  b"),
        ("a\r\nb", r'it: "a\r\nb"'),
        ("tab\tbed", r'it: "tab\tbed"'),
        (12, "it: 12"),
        (1e300, "it: 1.0e+300"),
        (0.5, "it: 0.5"),
        (float("nan"), "it: .nan"),
        (float("-inf"), "it: -.inf"),
        (10**5000, "it: <int of about 5,000 digits>"),
        (b"\x00abc", r'it: !bytes "\x00abc"'),
        (bytearray(b"abc"), "it: !bytearray abc"),
        (memoryview(b"abc"), "it: !memoryview abc"),
        (datetime(2026, 1, 2, 3, 4, tzinfo=UTC), "it: 2026-01-02T03:04:00+00:00"),
        (date(2026, 1, 2), "it: 2026-01-02"),
        (timedelta(hours=1), "it: !timedelta datetime.timedelta(seconds=3600)"),
        (Decimal("1.5"), "it: !Decimal Decimal('1.5')"),
        (UUID(int=0), "it: !UUID UUID('00000000-0000-0000-0000-000000000000')"),
        (PurePosixPath("a/b"), "it: !PurePosixPath PurePosixPath('a/b')"),
        (GENERATE, "it: !CognitiveCore GENERATE"),
        (Colour.RED, "it: !Colour RED"),
        (Word.HI, "it: !Word HI"),
        (Number.ONE, "it: !Number ONE"),
        (Bits(0), 'it: !Bits "0"'),
        ([], "it: []"),
        ({}, "it: {}"),
        (set[int](), "it: !set []"),
        ({3, 1, 2}, "it: !set [1, 2, 3]"),
        ([1, "two", None], "it: [1, two, null]"),
        ((1, 2), "it: [1, 2]"),
        (deque([1, 2]), "it: [1, 2]"),
        (["a, b"], "it:\n  - a, b"),
        ([{"a": 1, "b": [2]}, [[3, {}]]], "it:\n  - a: 1\n    b: [2]\n  - - - 3\n      - {}"),
        (OrderedDict(a=1), "it:\n  a: 1"),
        (UserDict(a=1), "it:\n  a: 1"),
        ({1: "a", None: "b", "1": "c"}, 'it:\n  1: a\n  null: b\n  "1": c'),
        ({(1, 2): "a", Colour.RED: "b"}, 'it:\n  !tuple "(1, 2)": a\n  !Colour RED: b'),
        (Point(1, 2), "it: !Point\n  x: 1\n  y: 2"),
        (Person("Ann", "secret"), "it: !Person\n  name: Ann\n  friends: []"),
        (
            Order(amount=1, note="x"),  # type: ignore[call-arg]
            "it: !Order\n  amount: 1\n  key: !SecretStr SecretStr('**********')\n  note: x",
        ),
        (Slotted(), "it: <Slotted object>"),
        (object(), "it: <object object>"),
        (Loud(), "it: <Loud: cannot be shown, RuntimeError>"),
        (Polite(), 'it: !Polite "<Polite>"'),
        (ValueError("boom"), "it: !ValueError ValueError('boom')"),
        (int, """it: !type "<class 'int'>\""""),
        (len, 'it: !builtin_function_or_meth "<built-in function len>"'),
        (array.array("b", bytes(5000)), "it: <array object of 5,000 items>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values(value: Any, text: str) -> None:
    assert shown(value) == text


def test_messages_are_shown_as_role_and_content() -> None:
    calls = [{"name": "search", "args": {"q": "x"}, "id": "1"}]
    invalid = [{"name": "pay", "args": "{", "id": "2", "error": "not JSON"}]
    messages = [
        SystemMessage("Be brief."),
        HumanMessage("Hi", name="ann"),
        AIMessage("Looking.", tool_calls=calls, invalid_tool_calls=invalid),
        AIMessageChunk(content="part"),
        ChatMessage(content="Yes", role="judge"),
        ToolMessage("broken", tool_call_id="1", status="error"),
        RemoveMessage(id="m1"),
    ]
    assert shown(messages).split("\n") == [
        "it:",
        "  - system: Be brief.",
        "  - human: Hi",
        "    name: ann",
        "  - ai: Looking.",
        "    tool_calls:",
        "      - search:",
        "          q: x",
        "    invalid_tool_calls:",
        "      - pay: not JSON",
        "  - ai: part",
        '  - judge: "Yes"',
        "  - tool: broken",
        "    status: error",
        "  - remove: m1",
    ]


def test_a_cycle_is_named() -> None:
    ring: dict[str, Any] = {"a": 1}
    ring["again"] = [ring]
    ann = Person("Ann", "")
    ann.friends.append(ann)
    assert shown(ring) == "it:\n  a: 1\n  again:\n    - <cycle>"
    assert shown(ann) == "it: !Person\n  name: Ann\n  friends:\n    - <cycle>"


def test_the_same_object_twice_is_no_cycle() -> None:
    part = {"a": 1}
    assert shown([part, part]) == "it:\n  - a: 1\n  - a: 1"


# --- Folding ---


def test_long_strings_are_cut_with_a_count() -> None:
    assert "… (+1,234 chars)" in shown("ab " * 578)
    assert shown("x" * 1734).endswith("# … (+1,234 chars)")
    assert shown(b"x" * 1734).endswith("# … (+1,234 bytes)")


def test_long_reasons_and_errors_are_cut_with_a_count() -> None:
    assert "… (+1,234 chars)" in history_text(history(Item(error="x" * 1734)))
    assert "# … (+88 lines)" in history_text(history(Item(error="x\n" * 100)))


def test_long_containers_are_folded_with_counts() -> None:
    assert shown(list(range(1000))).split("\n")[7:] == [
        "  - 6",
        "  # … (+990 items)",
        "  - 997",
        "  - 998",
        "  - 999",
    ]
    assert shown({f"k{n}": n for n in range(1000)}).endswith("  k19: 19\n  # … (+980 keys)")
    assert shown(set(range(1000))).endswith("# … (+990 items)")


@pytest.mark.lengthy
def test_deep_nesting_is_capped() -> None:
    deep: Any = "bottom"
    for _ in range(100_000):
        deep = {"in": deep, "x": 1}
    text = shown(deep)
    assert "in: {…} # … (2 keys, too deep)" in text
    assert "bottom" not in text


def test_a_value_is_capped_in_lines() -> None:
    item = Item(input_state={f"k{n}": list("ab\n") * 3 for n in range(30)})
    assert history_text(history(item)).count("\n") <= 2 + 40 + 1
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as capture:
        console.print(render_history(history(item), max_value_lines=5))
    lines = capture.get().splitlines()
    assert lines[-1] == "      # … (cut after 5 lines)"
    assert len(lines) == 3 + 5 + 1


def test_a_long_field_does_not_push_out_the_others() -> None:
    """The lines of a value are shared: short fields are shown whole, and long ones cut."""
    messages = [HumanMessage("word " * 100)] * 100
    text = history_text(history(Item(input_state={"messages": messages, "a": 1, "b": "x\ny"})))
    assert re.findall(r"^      (\w+|#.*)", text, re.MULTILINE) == [
        "messages",
        "# … (cut after 35 lines)",
        "a",
        "b",
    ]
    assert text.endswith("      b: |-\n        x\n        y")


def test_many_evaluations_are_capped() -> None:
    many = {f"e{n}": Scored(1) for n in range(1000)}
    assert history_text(history(Item(evaluation_results=many))).count("\n") < 110


class Verbose:
    """An object whose `repr` shows everything and is too long."""

    def __init__(self, held: Any) -> None:
        self.held = held
        self.asked = 0

    def __repr__(self) -> str:
        self.asked += 1
        return f"Verbose({self.held!r})"


def giant_ring() -> Any:
    ring: list[Any] = list(range(100_000))
    ring[0] = ring
    return ring


class Wide(BaseModel):
    model_config = ConfigDict(extra="allow")


GIANTS: dict[str, Callable[[], Any]] = {
    "text": lambda: "x" * 10_000_000,
    "lines": lambda: "line\n" * 2_000_000,
    "hostile text": lambda: "\x1b[31m" * 2_000_000,
    "bytes": lambda: bytes(10_000_000),
    "list": lambda: list(range(1_000_000)),
    "tuple of texts": lambda: ("y" * 1000,) * 1_000_000,
    "dict": lambda: dict.fromkeys(range(1_000_000), "v"),
    "set": lambda: set(range(1_000_000)),
    "deque": lambda: deque(range(1_000_000)),
    "ring": giant_ring,
    "list of lists": lambda: [list(range(100_000))] * 100_000,
    "key": lambda: {"k" * 10_000_000: 1},
    "tuple as key": lambda: {tuple(range(1_000_000)): 1},
    "whole number": lambda: 1 << 10_000_000,
    "error": lambda: ValueError("x" * 10_000_000),
    "object": lambda: Verbose([Verbose("x" * 10_000_000)]),
    "iterator": lambda: iter(list(range(1_000_000))),
    "message": lambda: AIMessage("x" * 10_000_000),
    "extras": lambda: Wide(**dict.fromkeys(map(str, range(100_000)), 1)),
}


@pytest.mark.lengthy
@pytest.mark.parametrize("name", GIANTS)
def test_a_giant_value_costs_no_more_than_a_small_one(name: str) -> None:
    """Of memory at most what a page takes, and of time milliseconds."""
    value = GIANTS[name]()
    huge = value if isinstance(value, str) else ""
    checks = {"c": Said("deny", huge)}
    of = history(Item(input_state={"it": value}, error=huge, check_policy_results=checks, node=huge))
    history_text(of)  # imports and caches
    tracemalloc.start()
    history_text(of)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    with quick(0.5):
        history_text(of)


def test_repr_is_not_called_on_large_values() -> None:
    large, small = Verbose([Verbose(list(range(10_000)))]), Verbose([1])
    assert shown(large) == "it: <Verbose object>"
    assert shown(small) == 'it: !Verbose "Verbose([1])"'
    assert (large.asked, small.asked) == (0, 1)


# --- Hostile content ---

# What may be seen of a line besides printable characters: the spaces of French and Japanese prose.
SPACES = {0xA0: " ", 0x202F: " ", 0x3000: " "}

EVIL = (
    "[/red][bold]x[/] :smile: \x1b[31mred\x1b]0;title\x07 \r\b\u202egnp.exe \u200bzero\u200d "
    "\ud800 \x00\x7f\x85\u2028\u2066 \U000e0041\ufeff\U000e0100"
)
FORGED = "fine\n╔═══ SuperStep 99 ═══╗\n  [9.9] RESPOND\n    Checks:\n      ✓ verify_first\n"


class Vandal(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items")

    def __len__(self) -> int:
        raise RuntimeError("no length")


class Broken(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise RuntimeError(EVIL)

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return -1


class Liar(str):
    __slots__ = ()

    def __getitem__(self, key: Any) -> str:
        return "\x1b[2J"

    def __str__(self) -> str:
        return "\x1b[2J"


class Late(datetime):
    def isoformat(self, *_: Any, **__: Any) -> str:
        return "\x1b[2J"


class Evil:
    def __repr__(self) -> str:
        return EVIL


Evil.__name__ = "Evil[/red]\x1b[31m\n╔═"


HOSTILE_VALUES: dict[str, Any] = {
    "markup": EVIL,
    "forged": FORGED,
    "crlf": "a\r\nb\x1b[2K",
    "quotes": '"it\'s" \\ # no: comment',
    EVIL: "evil key",
    "liar": Liar("truth"),
    "late": Late(2026, 1, 1, tzinfo=UTC),
    "evil": Evil(),
    "vandal": Vandal(a=1),
    "broken": Broken(),
    "loud": Loud(),
    "marks": "o" + "\u0301" * 300,
    "unbroken": "x" * 300,
    "wide": "漢" * 100,
    "nan": float("nan"),
    "bytes": b"\x1b[31m",
    "lambda": lambda: None,
    "surrogates": ["\ud800", {"\udfff": "\udc80"}],
}


def hostile() -> History:
    return history(
        Item(
            node=f"no\nde{EVIL}",
            namespace=EVIL * 3,
            status="denied",
            input_state=HOSTILE_VALUES,
            output_state={"text": FORGED * 2},
            check_policy_results={EVIL: Said("deny", EVIL), "forged": Said("ask", FORGED)},
            corrections=[FORGED],
            route_policy_results={EVIL: EVIL, "r": FORGED},
            evaluation_results={
                EVIL: Scored(0.1, False, FORGED),
                "odd": Scored(EVIL, True, Loud()),
            },
            evaluation_errors={EVIL: EVIL},
            errors={f"router {EVIL}": FORGED},
            error=f"ValueError: {EVIL}{FORGED}",
            redirected_to=FORGED,
        )
    )


def harmless(text: str, width: int = 80) -> None:
    """Assert that nothing in it acts on a terminal, hides, runs over the edge or poses as a box."""
    for line in text.split("\n"):
        assert line.translate(SPACES).isprintable(), ascii(line)
        assert cell_len(line) <= width, line
        assert line == "" or line.startswith("  ") or re.fullmatch(r"╔═══ SuperStep \d+ ═══╗", line)


def test_hostile_history(snapshot: SnapshotAssertion) -> None:
    assert history_text(hostile()) == snapshot


def test_hostile_history_is_harmless() -> None:
    text = history_text(hostile())
    harmless(text)
    assert text.count("\n╔") == 0
    assert r"[/red][bold]x[/] :smile: \x1b[31mred\x1b]0;title\x07 \r\x08\u202egnp.exe" in re.sub(
        r"\\?\n *", " ", text
    ).replace("  ", " ")


def test_hostile_history_in_ascii() -> None:
    text = printed(hostile(), "ascii")
    assert text.replace("\n", "").isprintable()
    assert text.count("SuperStep 1 ===+") == 1


def test_hostile_history_on_a_terminal_emits_colours_only() -> None:
    text = printed(hostile(), force_terminal=True, color_system="truecolor")
    harmless(re.sub(r"\x1b\[[0-9;]*m", "", text).removesuffix("\n"))


def test_content_cannot_forge_a_heading_or_an_entry() -> None:
    """Every line of content is further in than what could be said about it."""
    text = history_text(hostile())
    assert len(re.findall(r"^ {0,4}Checks:", text, re.MULTILINE)) == 1
    assert not re.search(r"^ {0,6}✓ verify_first", text, re.MULTILINE)
    assert not re.search(r"^ {0,2}\[9\.9\]", text, re.MULTILINE)


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_one_escaped_block_with_inline_styles() -> None:
    script = '</pre><script>alert("x")</script><img src=x onerror=y>&amp;{code}'
    html = history_html(history(Item(node=script, input_state={script: script})))
    reader = Reader()
    reader.feed(html)
    assert reader.tags == {"pre", "span"}
    assert reader.attributes == {"style"}
    assert reader.text.count("<script>alert") == 3
    assert "SuperStep 1" in reader.text


def test_html_is_the_same_whatever_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    before = history_html(TYPICAL)
    for name, value in {"NO_COLOR": "1", "COLUMNS": "20", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    assert history_html(TYPICAL) == before


# --- What must hold for every value ---

anything_written = st.text(st.characters(), max_size=300) | st.text(
    "\x1b\r\n\t\b\x07\x85\u202e\u200b\u2028\ud800\ufe0f\u0301 ╔═✓#:'\"\\[]{}-❤漢a", max_size=300
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | anything_written
    | st.binary(max_size=600)
    | st.datetimes()
    | st.decimals()
    | st.sampled_from([Colour.RED, Liar("x"), 10**999])
    | st.one_of(*map(st.builds, (Loud, Evil, Vandal, Broken)))
)
anything = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=14)
        | st.dictionaries(anything_written | st.integers() | st.none(), inner, max_size=5)
        | st.tuples(inner, inner)
        | st.builds(Person, anything_written, anything_written, inner)
        | anything_written.map(AIMessage)
        | st.frozensets(st.text(max_size=5), max_size=14)
    ),
    max_leaves=25,
)


@pytest.mark.lengthy
@given(anything)
def test_any_value_is_harmless(value: Any) -> None:
    harmless(history_text(history(Item(input_state={"it": value}, output_state=value))))


@given(anything, st.integers(40, 120))
def test_any_value_fits_any_width(value: Any, width: int) -> None:
    harmless(history_text(history(Item(input_state={"it": value})), width), width)


@given(anything)
def test_any_value_can_be_written_in_ascii(value: Any) -> None:
    text = printed(history(Item(input_state={"it": value})), "ascii")
    assert text.replace("\n", "").isprintable()


@given(anything_written)
def test_any_text_is_harmless_wherever_it_is(text: str) -> None:
    item = Item(
        node=text,
        namespace=text,
        status=text,
        check_policy_results={text: Said("deny", text)},
        route_policy_results={text: text},
        redirected_to=text,
        evaluation_results={text: Scored(0.5, True, text)},
        evaluation_errors={text: text},
        errors={text: text},
        notes={text: text},
        corrections=[text],
        error=text,
    )
    harmless(history_text(history(item)))


# At most 40 columns, also when all of it is escaped: a longer one is cut.
keys = st.text(max_size=4) | st.text("ab -#:,?'\"[]", max_size=20)
short = st.text(st.characters(), max_size=40) | st.text("ab \n-#:,?'\"\\\u0301\x1b", max_size=40)
small = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats(allow_nan=False) | short,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(keys, inner, max_size=8),
    max_leaves=8,
)


@pytest.mark.lengthy
@given(st.dictionaries(keys, small, min_size=1, max_size=5))
def test_unfolded_values_read_back_from_yaml_unchanged(state: dict[str, Any]) -> None:
    view = render_history(history(Item(input_state=state)), max_value_lines=10_000)
    console = Console(file=io.StringIO(), width=160)
    with console.capture() as capture:
        console.print(view)
    lines = capture.get().split("\n")
    assert lines[2] == "    Input:"
    assert yaml.safe_load("\n".join(line[6:] for line in lines[3:])) == state


@given(st.text(st.characters(exclude_characters="\n"), max_size=200))
def test_a_long_line_of_text_is_broken_into_the_same_yaml(text: str) -> None:
    assert yaml.safe_load(shown(text)) == {"it": text}
