"""The instruction set: what is in it, how it is found by text, and how users add to it."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Iterator

import pytest
from pydantic import BaseModel

import arbiter.instructions
from arbiter.errors import RegistrationError, UnknownInstructionError
from arbiter.instructions import (
    GENERATE,
    REFLECT,
    RESPOND,
    TOOL_CALL,
    VERIFY,
    CognitiveCore,
    Instruction,
    define,
    find_instruction,
    known_instructions,
)

CORES = {
    "CognitiveCore": "GENERATE DECOMPOSE REFLECT",
    "MemoryCore": "LOAD STORE COMPRESS FILTER STRUCTURE RENDER",
    "ExecutionCore": "TOOL_CALL TOOL_BUILD DELEGATE RESPOND",
    "NormativeCore": "VERIFY CONSTRAIN FALLBACK INTERRUPT",
    "MetacognitiveCore": "PREDICT_SUCCESS EVALUATE_PROGRESS MONITOR_RESOURCES",
    "AdaptiveCore": "UPDATE_KNOWLEDGE REFINE_SKILL LEARN_PREFERENCE FORMULATE_EXPERIMENT",
    "SocialCore": "COMMUNICATE NEGOTIATE PROPOSE_VOTE FORM_COALITION",
    "AffectiveCore": "INFER_INTENT MODEL_USER_STATE ADAPT_RESPONSE MANAGE_TRUST",
}
BUILT_IN = [member for member in known_instructions() if type(member).__module__ == "arbiter.instructions"]

every_instruction = pytest.mark.parametrize("instruction", BUILT_IN, ids=repr)


class LegalCore(Instruction):
    """A core that a user adds."""

    REVIEW = define("Checks a contract against the playbook.", unverified=True)
    SIGN = define("Signs a contract in the company's name.", acts=True)
    FILE = define("Checks a contract against the playbook.")


@pytest.fixture
def passing_cores() -> Iterator[None]:
    """Cores that a test defines are gone after it. Classes are freed by the collector alone."""
    yield
    gc.collect()


defines_cores = pytest.mark.usefixtures("passing_cores")


def test_there_are_eight_cores_with_32_instructions() -> None:
    cores = {name: getattr(arbiter.instructions, name) for name in CORES}
    assert {name: " ".join(core.__members__) for name, core in cores.items()} == CORES
    assert len(BUILT_IN) == 32


def test_public_names_are_the_cores_the_instructions_and_three_functions() -> None:
    words = {word for names in CORES.values() for word in names.split()}
    assert set(arbiter.instructions.__all__) == words | set(CORES) | {
        "Instruction",
        "find_instruction",
        "known_instructions",
        "define",
    }


def test_cores_that_were_written_with_means_still_load() -> None:
    """The function was called `means` before."""
    assert arbiter.instructions.means is define


@every_instruction
def test_an_instruction_is_a_module_name_too(instruction: Instruction) -> None:
    assert getattr(arbiter.instructions, instruction.value) is instruction


@every_instruction
def test_an_instruction_says_what_it_means_in_one_line(instruction: Instruction) -> None:
    assert instruction.meaning.endswith(".")
    assert "\n" not in instruction.meaning
    assert len(instruction.meaning) < 80


@every_instruction
def test_an_instruction_is_found_by_its_name_with_or_without_its_core(
    instruction: Instruction,
) -> None:
    assert find_instruction(instruction.value) is instruction
    assert find_instruction(instruction.qualified) is instruction
    assert find_instruction(instruction) is instruction


@every_instruction
def test_an_instruction_stays_itself_when_copied_or_pickled(instruction: Instruction) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(instruction, protocol)) is instruction
    assert copy.copy(instruction) is instruction
    assert copy.deepcopy({"a": [instruction]})["a"][0] is instruction
    assert type(instruction)(instruction.value) is instruction


def test_texts_of_an_instruction() -> None:
    assert (GENERATE.value, GENERATE.core) == ("GENERATE", "CognitiveCore")
    assert GENERATE.qualified == "CognitiveCore.GENERATE"
    assert f"{GENERATE} {GENERATE!r}" == "GENERATE CognitiveCore.GENERATE"


@pytest.mark.lengthy
@defines_cores
def test_equal_names_in_two_cores_are_two_instructions() -> None:
    class OtherCore(Instruction):
        GENERATE = define("Makes electricity.")

    other: Instruction = OtherCore.GENERATE
    assert other != GENERATE
    assert len({other, GENERATE, CognitiveCore.GENERATE}) == 2


def test_the_two_facts_tell_models_and_effects_apart() -> None:
    facts = {i: (i.unverified, i.acts) for i in (GENERATE, TOOL_CALL, VERIFY, RESPOND)}
    assert facts == {
        GENERATE: (True, False),
        TOOL_CALL: (False, True),
        VERIFY: (False, False),
        RESPOND: (False, True),
    }
    acting = {instruction.value for instruction in BUILT_IN if instruction.acts}
    social = set(CORES["SocialCore"].split())
    assert acting == {"TOOL_CALL", "DELEGATE", "RESPOND"} | social


def test_users_add_a_core_by_subclassing() -> None:
    assert find_instruction("REVIEW") is find_instruction("LegalCore.REVIEW") is LegalCore.REVIEW
    assert (LegalCore.REVIEW.unverified, LegalCore.REVIEW.acts) == (True, False)
    assert (LegalCore.SIGN.unverified, LegalCore.SIGN.acts) == (False, True)
    assert LegalCore.SIGN.meaning == "Signs a contract in the company's name."
    assert LegalCore.SIGN in known_instructions()
    assert pickle.loads(pickle.dumps(LegalCore.SIGN)) is LegalCore.SIGN


def test_two_instructions_of_one_meaning_stay_two() -> None:
    assert LegalCore.REVIEW.meaning == LegalCore.FILE.meaning
    assert [member.value for member in LegalCore] == ["REVIEW", "SIGN", "FILE"]


@pytest.mark.lengthy
@defines_cores
def test_a_core_may_have_a_base_without_members() -> None:
    class CompanyCore(Instruction):
        @property
        def owner(self) -> str:
            return f"{self.core} team"

    class AuditCore(CompanyCore):
        SAMPLE = define("Picks what is audited.")

    assert find_instruction("AuditCore.SAMPLE") is AuditCore.SAMPLE
    assert AuditCore.SAMPLE.owner == "AuditCore team"


def test_an_instruction_is_its_text_at_a_pydantic_edge() -> None:
    class Step(BaseModel):
        core: LegalCore

    step = Step.model_validate_json('{"core": "SIGN"}')
    assert step.core is LegalCore.SIGN
    assert step.model_dump_json() == '{"core":"SIGN"}'


@pytest.mark.lengthy
@defines_cores
def test_a_core_that_is_defined_again_replaces_the_first() -> None:
    """As a notebook does when a cell is run twice."""

    def cell() -> type[Instruction]:
        class AgainCore(Instruction):
            ONCE_MORE = define("Does it again.")

        return AgainCore

    first, second = cell(), cell()
    assert find_instruction("AgainCore.ONCE_MORE") in list(second)
    assert find_instruction("ONCE_MORE") not in list(first)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GENRATE", "'GENRATE'. Did you mean 'GENERATE'?"),
        ("generate", "'generate'. Did you mean 'GENERATE'?"),
        ("CognitiveCore.GENRATE", "Did you mean 'CognitiveCore.GENERATE'?"),
        ("MemoryCore.GENERATE", "Did you mean 'CognitiveCore.GENERATE'?"),
        ("qwxyz", "'qwxyz'. The built-in ones are listed in arbiter.instructions."),
        ("", "''. The built-in ones are listed in arbiter.instructions."),
        (7, "got 7."),
        (None, "got None."),
    ],
)
def test_an_unknown_name_is_an_error_with_the_nearest_one(text: object, expected: str) -> None:
    with pytest.raises(UnknownInstructionError) as caught:
        find_instruction(text)
    assert str(caught.value).startswith("expected ")
    assert str(caught.value).endswith(expected)
    assert caught.value.name in (text, repr(text))


@pytest.mark.lengthy
@defines_cores
def test_a_name_of_two_cores_asks_for_the_core() -> None:
    class CriticCore(Instruction):
        REFLECT = define("Writes a review.")

    with pytest.raises(UnknownInstructionError) as caught:
        find_instruction("REFLECT")
    assert "CognitiveCore.REFLECT, CriticCore.REFLECT" in str(caught.value)
    assert find_instruction("CriticCore.REFLECT") is CriticCore.REFLECT
    assert find_instruction("CognitiveCore.REFLECT") is REFLECT


@pytest.mark.lengthy
@defines_cores
def test_two_cores_of_one_name_ask_for_the_member_itself() -> None:
    def elsewhere() -> type[Instruction]:
        class LegalCore(Instruction):
            REVIEW = define("Reads a verdict.")

        return LegalCore

    core = elsewhere()
    with pytest.raises(UnknownInstructionError, match="Pass the member itself"):
        find_instruction("LegalCore.REVIEW")
    assert find_instruction(LegalCore.REVIEW) is LegalCore.REVIEW
    assert find_instruction(next(iter(core))).meaning == "Reads a verdict."


def test_a_member_without_a_meaning_is_refused() -> None:
    with pytest.raises(RegistrationError, match=r'NAME = define\("What it does."\), got 1'):

        class NumberCore(Instruction):  # pyright: ignore[reportUnusedClass]
            ONE = 1  # pyright: ignore[reportArgumentType]  # what is tested


def test_a_member_in_small_letters_is_refused() -> None:
    with pytest.raises(RegistrationError, match=r"SmallCore.review: .* Write REVIEW\."):

        class SmallCore(Instruction):  # pyright: ignore[reportUnusedClass]
            review = define("Checks a contract.")


@pytest.mark.parametrize("name", CORES)
def test_the_name_of_a_built_in_core_is_taken(name: str) -> None:
    with pytest.raises(RegistrationError, match=f"{name} is a core of arbiter.instructions"):
        Instruction(name, {"REVIEW": define("Checks a contract.")})  # type: ignore[call-arg, arg-type]  # the functional form
