"""The kinds of steps that nodes perform: eight cores with 32 instructions, and cores of your own.

    from arbiter.instructions import GENERATE, CognitiveCore, Instruction, define, find_instruction

    CognitiveCore.GENERATE is GENERATE
    find_instruction("GENERATE") is find_instruction("CognitiveCore.GENERATE") is GENERATE

    class LegalCore(Instruction):
        REVIEW = define("Checks a contract against the playbook.", unverified=True)
        SIGN = define("Signs a contract in the company's name.", acts=True)

    find_instruction("LegalCore.SIGN").acts

A core exists as soon as its class statement has run: there is nothing to register. Its members are written in
capitals. The value of each is its own name, so two members with the same meaning stay distinct.

Policies decide by two properties of an instruction. `unverified`: a model made its output, and no step has
confirmed it yet. `acts`: it has an effect outside of the agent (on systems, other agents or people), which a
return to an earlier checkpoint does not undo. Both describe the kind of step, not a single node, and both are
False by default.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, EnumType
from typing import Any
from weakref import WeakSet

from arbiter.errors import RegistrationError, UnknownInstructionError, closest, nearest


@dataclass(frozen=True, slots=True)
class _Meaning:
    text: str
    unverified: bool
    acts: bool
    name: str = ""


def define(meaning: str, *, unverified: bool = False, acts: bool = False) -> _Meaning:
    """The right-hand side of a member of a core: the meaning of the instruction, in one line."""
    return _Meaning(meaning, unverified, acts)


means = define  # the earlier name, for cores that were written with it


class _CoreType(EnumType):
    """Passes each declaration the name to which it is assigned, because Enum does not pass it to `__new__`."""

    def __new__(metacls, name: str, bases: tuple[type, ...], members: Any, **options: Any) -> Any:
        if name in _BUILT_IN_CORES and members.get("__module__") != __name__:
            # Packs and configurations write "CognitiveCore.GENERATE", which must keep its built-in meaning.
            raise RegistrationError(f"{name} is a core of arbiter.instructions. Rename yours.")
        for member, declared in members.items():
            if isinstance(declared, _Meaning):
                if not member.isupper():
                    raise RegistrationError(
                        f"{name}.{member}: instructions are written in capitals. Write {member.upper()}."
                    )
                # Bypasses Enum's own dict, which refuses to set a name twice.
                dict.__setitem__(members, member, replace(declared, name=member))
        _found.clear()  # a plain name may have become ambiguous
        return super().__new__(metacls, name, bases, members, **options)


_found: dict[str, Sequence[Instruction]] = {}
"""Built-in instructions by the texts that named them: facts name instructions by text, at every step."""


_BUILT_IN_CORES = frozenset(
    f"{kind}Core"
    for kind in (
        "Cognitive",
        "Memory",
        "Execution",
        "Normative",
        "Metacognitive",
        "Adaptive",
        "Social",
        "Affective",
    )
)


class Instruction(Enum, metaclass=_CoreType):
    """The base of every core. `value` is the name in capitals, `meaning` describes it in one line."""

    _value_: str
    meaning: str
    unverified: bool
    acts: bool
    qualified: str
    """The name with its core, "CognitiveCore.GENERATE", which stays unique if another core has the same word.
    """

    def __new__(cls, declared: _Meaning) -> Instruction:
        if not isinstance(declared, _Meaning):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RegistrationError(
                f'{cls.__name__}: expected members such as NAME = define("What it does."), got {declared!r}'
            )
        member = object.__new__(cls)
        member._value_ = declared.name
        member.meaning = declared.text
        member.unverified = declared.unverified
        member.acts = declared.acts
        member.qualified = f"{cls.__name__}.{declared.name}"
        return member

    @property
    def core(self) -> str:
        """The name of its class, such as "CognitiveCore"."""
        return type(self).__name__

    # A member equals only itself. Enum's own hash is computed from the name, in Python, at every look-up.
    __hash__ = object.__hash__

    def __reduce_ex__(self, protocol: Any) -> Any:
        core = type(self)
        if getattr(sys.modules.get(core.__module__), core.__qualname__, None) is core:
            return super().__reduce_ex__(protocol)
        return find_instruction, (self.qualified,)  # a core that a pack declares has no importable class

    def __str__(self) -> str:
        return self._value_

    def __repr__(self) -> str:
        return self.qualified


class CognitiveCore(Instruction):
    """Thinking."""

    GENERATE = define("Calls a model to write, reason or decide.", unverified=True)
    DECOMPOSE = define("Breaks a task down into smaller ones.", unverified=True)
    REFLECT = define("Criticises an earlier output and says how to better it.", unverified=True)


class MemoryCore(Instruction):
    """Keeping the context, and what outlives it."""

    LOAD = define("Fetches knowledge or memories from where they are kept.")
    STORE = define("Writes to the agent's own long-term memory.")
    COMPRESS = define("Shortens the context, for example to a summary.", unverified=True)
    FILTER = define("Picks what stays in the context, by rule, and changes none of it.")
    STRUCTURE = define("Turns free text into structured data.", unverified=True)
    RENDER = define("Turns structured data into readable text.", unverified=True)


class ExecutionCore(Instruction):
    """Doing."""

    TOOL_CALL = define("Calls a tool, an interface or other code.", acts=True)
    # Writing a tool changes nothing outside; calling what was written is a TOOL_CALL.
    TOOL_BUILD = define("Writes the code of a new tool.", unverified=True)
    DELEGATE = define("Hands a task to another agent, takes its answer.", unverified=True, acts=True)
    # Not unverified: it passes on the output of earlier steps, which have marks of their own.
    RESPOND = define("Gives the user the final answer.", acts=True)


class NormativeCore(Instruction):
    """Keeping to the rules."""

    VERIFY = define("Checks facts or form against something other than a model's opinion.")
    CONSTRAIN = define("Holds content or conduct to a rule, by blocking, limiting or redacting.")
    FALLBACK = define("Recovers in a prepared way after a step failed.")
    INTERRUPT = define("Pauses to ask a human.")


class MetacognitiveCore(Instruction):
    """Watching itself."""

    PREDICT_SUCCESS = define("Estimates how likely the plan is to succeed.", unverified=True)
    EVALUATE_PROGRESS = define("Judges whether the work gets nearer to its goal.", unverified=True)
    MONITOR_RESOURCES = define("Measures tokens, money, time or calls against their limits.")


class AdaptiveCore(Instruction):
    """Learning."""

    UPDATE_KNOWLEDGE = define("Works new information into what is held to be true.", unverified=True)
    REFINE_SKILL = define("Betters a prompt, procedure or tool from experience.", unverified=True)
    LEARN_PREFERENCE = define("Infers what the user prefers from what they did.", unverified=True)
    FORMULATE_EXPERIMENT = define("Designs a trial that would settle a question.", unverified=True)


class SocialCore(Instruction):
    """Working with other agents."""

    COMMUNICATE = define("Sends a message to another agent.", unverified=True, acts=True)
    NEGOTIATE = define("Trades offers with others towards an agreement.", unverified=True, acts=True)
    PROPOSE_VOTE = define("Puts a question to a group to be decided.", unverified=True, acts=True)
    FORM_COALITION = define("Gathers agents around a common goal.", unverified=True, acts=True)


class AffectiveCore(Instruction):
    """Understanding the user."""

    INFER_INTENT = define("Concludes what the user wants beyond what was said.", unverified=True)
    MODEL_USER_STATE = define("Estimates the user's mood, knowledge and attention.", unverified=True)
    ADAPT_RESPONSE = define("Changes tone, length or style to suit the user.", unverified=True)
    MANAGE_TRUST = define("Shows limits and mends mistakes to keep trust deserved.", unverified=True)


GENERATE = CognitiveCore.GENERATE
DECOMPOSE = CognitiveCore.DECOMPOSE
REFLECT = CognitiveCore.REFLECT
LOAD = MemoryCore.LOAD
STORE = MemoryCore.STORE
COMPRESS = MemoryCore.COMPRESS
FILTER = MemoryCore.FILTER
STRUCTURE = MemoryCore.STRUCTURE
RENDER = MemoryCore.RENDER
TOOL_CALL = ExecutionCore.TOOL_CALL
TOOL_BUILD = ExecutionCore.TOOL_BUILD
DELEGATE = ExecutionCore.DELEGATE
RESPOND = ExecutionCore.RESPOND
VERIFY = NormativeCore.VERIFY
CONSTRAIN = NormativeCore.CONSTRAIN
FALLBACK = NormativeCore.FALLBACK
INTERRUPT = NormativeCore.INTERRUPT
PREDICT_SUCCESS = MetacognitiveCore.PREDICT_SUCCESS
EVALUATE_PROGRESS = MetacognitiveCore.EVALUATE_PROGRESS
MONITOR_RESOURCES = MetacognitiveCore.MONITOR_RESOURCES
UPDATE_KNOWLEDGE = AdaptiveCore.UPDATE_KNOWLEDGE
REFINE_SKILL = AdaptiveCore.REFINE_SKILL
LEARN_PREFERENCE = AdaptiveCore.LEARN_PREFERENCE
FORMULATE_EXPERIMENT = AdaptiveCore.FORMULATE_EXPERIMENT
COMMUNICATE = SocialCore.COMMUNICATE
NEGOTIATE = SocialCore.NEGOTIATE
PROPOSE_VOTE = SocialCore.PROPOSE_VOTE
FORM_COALITION = SocialCore.FORM_COALITION
INFER_INTENT = AffectiveCore.INFER_INTENT
MODEL_USER_STATE = AffectiveCore.MODEL_USER_STATE
ADAPT_RESPONSE = AffectiveCore.ADAPT_RESPONSE
MANAGE_TRUST = AffectiveCore.MANAGE_TRUST


_withdrawn: WeakSet[type[Instruction]] = WeakSet()


def withdraw(core: type[Instruction]) -> None:
    """Remove a core from look-ups by name. Its members stay valid."""
    _withdrawn.add(core)


def known_instructions() -> tuple[Instruction, ...]:
    """Every instruction that exists now: the built-in ones, then the others in the order in which their cores
    were defined.
    """
    # A notebook cell that is run again defines its core again; the last definition counts.
    cores = {
        (core.__module__, core.__qualname__): core
        for core in _subclasses(Instruction)
        if core not in _withdrawn
    }
    return tuple(member for core in cores.values() for member in core)


def _subclasses(core: type[Instruction]) -> Iterator[type[Instruction]]:
    for subclass in core.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def find_instruction(text_or_instruction: object) -> Instruction:
    """The instruction that a text names, "GENERATE" or "CognitiveCore.GENERATE". A member is returned
    unchanged.

    Raises `UnknownInstructionError` for a name that no core has, or a plain name that several cores have.
    """
    if isinstance(text_or_instruction, Instruction):
        return text_or_instruction
    if not isinstance(text_or_instruction, str):
        raise UnknownInstructionError(
            f"expected an instruction or its name, got {text_or_instruction!r}.",
            name=repr(text_or_instruction),
        )
    text = text_or_instruction
    found = _named(text)
    if len(found) == 1:
        return found[0]
    message = _ambiguity(text, found) or _absence(text, known_instructions())
    raise UnknownInstructionError(message, name=text)


def instruction_at(where: str, given: object) -> Instruction:
    """As `find_instruction`. The error begins with the place of the name: "instructions['pay']"."""
    try:
        return find_instruction(given)
    except UnknownInstructionError as error:
        raise UnknownInstructionError(f"{where}: {error}", name=error.name) from None


def recorded_instruction(qualified: str | None) -> Instruction | None:
    """The instruction of a recorded node run; None if its core is not imported in this process."""
    found = _named(qualified) if qualified else ()
    return found[0] if len(found) == 1 else None


def _named(text: str) -> Sequence[Instruction]:
    if (remembered := _found.get(text)) is not None:
        return remembered
    found = [member for member in known_instructions() if text in (member.value, member.qualified)]
    if len(found) == 1 and type(found[0]).__module__ == __name__:  # other cores may be withdrawn
        _found[text] = found
    return found


def _ambiguity(text: str, found: Sequence[Instruction]) -> str:
    if not found:
        return ""
    names = sorted({member.qualified for member in found})
    if len(names) == len(found):
        return f"{text!r} is an instruction of several cores. Write one of: {', '.join(names)}."
    modules = ", ".join(sorted(type(member).__module__ for member in found))
    return f"{text!r} is defined by cores of the same name, in {modules}. Pass the member itself."


def _absence(text: str, known: tuple[Instruction, ...]) -> str:
    # The word matters more than the core: 'MemoryCore.GENERATE' means GENERATE, not LOAD.
    word = closest(text.rpartition(".")[2], [member.value for member in known])
    meant = [member for member in known if member.value == word]
    hint = nearest(text, [member.qualified if "." in text else member.value for member in meant])
    hint = hint or " The built-in ones are listed in arbiter.instructions."
    return f"expected the name of an instruction, got {text!r}.{hint}"


__all__ = [
    "ADAPT_RESPONSE",
    "COMMUNICATE",
    "COMPRESS",
    "CONSTRAIN",
    "DECOMPOSE",
    "DELEGATE",
    "EVALUATE_PROGRESS",
    "FALLBACK",
    "FILTER",
    "FORMULATE_EXPERIMENT",
    "FORM_COALITION",
    "GENERATE",
    "INFER_INTENT",
    "INTERRUPT",
    "LEARN_PREFERENCE",
    "LOAD",
    "MANAGE_TRUST",
    "MODEL_USER_STATE",
    "MONITOR_RESOURCES",
    "NEGOTIATE",
    "PREDICT_SUCCESS",
    "PROPOSE_VOTE",
    "REFINE_SKILL",
    "REFLECT",
    "RENDER",
    "RESPOND",
    "STORE",
    "STRUCTURE",
    "TOOL_BUILD",
    "TOOL_CALL",
    "UPDATE_KNOWLEDGE",
    "VERIFY",
    "AdaptiveCore",
    "AffectiveCore",
    "CognitiveCore",
    "ExecutionCore",
    "Instruction",
    "MemoryCore",
    "MetacognitiveCore",
    "NormativeCore",
    "SocialCore",
    "define",
    "find_instruction",
    "known_instructions",
]
