"""Whose turn it is in a node of a graph, and what was said before it."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, cast, overload

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, convert_to_messages

from arbiter.errors import ConfigurationError
from arbiter.history import CausalHistory, History, HistoryItem
from arbiter.instructions import Instruction
from arbiter.personas.characters import Names, Persona
from arbiter.personas.config import GateConfig
from arbiter.personas.engine import Target
from arbiter.personas.trajectories import SOMEBODY, Event, LazyEvents, Trajectory, event_of
from arbiter.states import ROOT, Digest, as_state, overwriting

_log = logging.getLogger("arbiter.personas")
SPEAKING_TOOLS = ("send_message",)
_SAID = ("text", "message", "content")
AgentOf = Callable[[HistoryItem], str | None]
"""Says from a node run which agent acts in it, by name or id; None for nobody who is known."""


class Cast:
    """The agents of a graph: which one acts in a node run, and what its conversation is.

    `key` is where the conversation is in the state: messages, or texts. An agent is known by the name or the id of its
    persona. Who acts in a node run is what `agent_of` says; without it, whose name or id is the name of the node; else,
    in the `nodes` and `instructions` that a single agent is bound to, that one, unless one of these nodes has its name.
    Nobody is guessed. Without any agents each node is one, by its own name.

    `speaking_tools` are tools by which an agent speaks: what it says is the argument that a mapping names, else the one
    called text, message or content.
    """

    def __init__(
        self,
        agents: Persona | str | Iterable[Persona | str] = (),
        *,
        key: str = "messages",
        agent_of: AgentOf | None = None,
        channel: str = "",
        nodes: Iterable[str] | None = None,
        instructions: Iterable[Instruction] | None = None,
        speaking_tools: Iterable[str] | Mapping[str, str] = SPEAKING_TOOLS,
    ) -> None:
        self.personas = _by_name([agents] if isinstance(agents, str | Persona) else agents)
        self.key = key
        self.agent_of = agent_of
        self.channel = channel
        self.nodes = frozenset([nodes] if isinstance(nodes, str) else nodes or ())
        self.instructions = frozenset(instructions or ())
        self.known_nodes: set[str] = set()
        """The nodes of governed graphs in which agents may act."""
        tools: Any = [speaking_tools] if isinstance(speaking_tools, str) else speaking_tools
        self.speaking_tools: Mapping[str, str] = (
            tools if isinstance(tools, Mapping) else dict.fromkeys(tools, "")
        )
        self._remember()

    def _remember(self) -> None:
        self._find = lru_cache(maxsize=1_000)(Names(self.personas.values()).find)
        self._found: OrderedDict[tuple[str, str], _Found] = OrderedDict()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """For pickles and deep copies: without what is only remembered."""
        return {name: part for name, part in vars(self).items() if name not in ("_find", "_found", "_lock")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self._remember()

    def name(self, known: str | None) -> str | None:
        """The name of the agent with that name or id; what is no agent's stays as it is."""
        return None if known is None else self._find(known) or known

    def acting(self, item: HistoryItem) -> str | None:
        """Who acts in that node run; None if that is not known."""
        if self.agent_of is not None:
            return self.name(self.agent_of(item))
        found = self.name(item.node)
        if not self.personas or found in self.personas:
            return found
        if not self.nodes and not self.instructions:
            return None
        is_target = (not self.nodes or item.node in self.nodes) and (
            not self.instructions or item.instruction in self.instructions
        )
        return self._bound if is_target else None

    @property
    def _bound(self) -> str | None:
        """The only agent that there is, where no node has its name."""
        if len(self.personas) != 1 or self._has_own_node(self.nodes or self.known_nodes):
            return None
        return next(iter(self.personas))

    def _has_own_node(self, nodes: Iterable[str]) -> bool:
        return any(self.name(node) in self.personas for node in nodes)

    @property
    def is_known(self) -> bool:
        """Whether an agent is known to act in one of the nodes. Without a graph there are none to look at."""
        if self.agent_of is not None or not self.personas or not self.known_nodes:
            return True
        is_bound = bool(self.nodes or self.instructions) and len(self.personas) == 1
        return is_bound or self._has_own_node(self.known_nodes)

    def persona(self, agent: str | None) -> tuple[Persona, ...]:
        """The persona of that agent, if it has one."""
        found = self.personas.get(agent or "")
        return (found,) if found is not None and found.text else ()

    def before(self, history: History, agent: str | None = None) -> Trajectory:
        """What was said before the newest node run. See `trajectory`. Raises what `messages_in` raises."""
        return self.trajectory(self.given(history), agent, self.writers(history))

    def given(self, history: History) -> Messages:
        """The messages that the newest node run was given. Raises what `messages_in` raises.

        What LangChain's agents send to their tools are the calls alone; then it is what the caller was given.
        """
        state = history.entries[-1][-1].input_state
        if (calls := _sent_calls(state)) is None:
            return messages_at(state, self.key)
        if part_at(state, "__type") == _WITH_CONTEXT:
            return messages_at(as_state(part_at(state, "state")), self.key)
        ids = {call["id"] for call in calls}
        for item in islice(history.earlier(), _LOOK_BACK):
            for one in self.wrote(item):
                if isinstance(one, AIMessage) and any(call["id"] in ids for call in one.tool_calls):
                    given = messages_at(item.input_state, self.key)
                    return Messages([*given.parts, one])
        return Messages([])

    def lacks_key(self, item: HistoryItem, output: Mapping[str, Any]) -> bool:
        """Whether neither the state that a node run was given, nor what it wrote, has a place for a conversation."""
        state = item.input_state
        if self.key in state or self.key in output or _sent_calls(state) is not None:
            return False
        return bool(state or output)

    def pending(self, history: History) -> list[Mapping[str, Any]]:
        """The calls by which an agent is about to speak, of those that the newest node run was given to make."""
        state = history.entries[-1][-1].input_state
        calls = _sent_calls(state)
        if calls is None:
            value = part_at(state, self.key)
            last = _parts_of(value)[-1] if isinstance(value, list) and value else None
            calls = last.tool_calls if isinstance(last, AIMessage) else []
        return [call for call in calls if self.speech(call) is not None]

    def trajectory(
        self,
        said: Sequence[Any],
        agent: str | None,
        writers: Writers | None = None,
        thoughts: Sequence[tuple[int, Event]] = (),
    ) -> Trajectory:
        """Messages and texts as events of the agents' names, made when they are looked at.

        AI messages without a name, and texts, are said by whom `writers` has seen writing them; else by `agent`, where
        there is no other agent who might have. `thoughts` are put in, each before the message at that place.
        """
        only = next(iter(self.personas), None) if len(self.personas) == 1 else None
        alone = (agent or only) if len(self.personas) < 2 else None
        hears = agent or SOMEBODY
        messages = said if isinstance(said, Messages) else Messages(list(said))
        # The thought at place n has the slot of its message and of the thoughts before it.
        thought_at = {place + at: thought for at, (place, thought) in enumerate(thoughts)}
        taken = sorted(thought_at)

        def speaker(one: Any) -> str:
            name = None if isinstance(one, str) else one.name
            if not name:
                name = (writers and writers.of(one)) or alone or SOMEBODY
            return self.name(name) or name

        def actor_at(slot: int) -> str | None:
            if (thought := thought_at.get(slot)) is not None:
                return thought.actor
            one = messages[slot - bisect_left(taken, slot)]
            acts = isinstance(one, str | AIMessage) or (isinstance(one, HumanMessage) and one.name)
            return speaker(one) if acts else None

        def event_at(slot: int) -> Event | None:
            if (thought := thought_at.get(slot)) is not None:
                return thought
            at = slot - bisect_left(taken, slot)
            one = messages[at]
            if isinstance(one, str):
                if not one or one.isspace():
                    return None
                return Event("action", speaker(one), one, "TALK", at, self.channel)
            if not (actor := actor_at(slot)):
                return event_of(one, self.name(hears) or hears, seq=at, channel=self.channel)
            if isinstance(one, AIMessage) and (said := self.spoken(one)) is not None:
                return Event("action", actor, said, "TALK", at, self.channel)
            event = event_of(one, actor, seq=at, channel=self.channel)
            return event and (event if event.actor == actor else replace(event, actor=actor))

        return Trajectory(LazyEvents(len(messages) + len(taken), event_at, actor_at))

    def spoken(self, message: AIMessage) -> str | None:
        """What a message says, with what it says by tools. None if it speaks by none."""
        said = [text for call in message.tool_calls if (text := self.speech(call)) is not None]
        return "\n".join(filter(str.strip, [str(message.text), *said])) if said else None

    def speech(self, call: Mapping[str, Any]) -> str | None:
        """What an agent says by that call of a tool, None if it does not speak by it."""
        key = self.speech_key(call)
        return None if key is None else call["args"][key]

    def speech_key(self, call: Mapping[str, Any]) -> str | None:
        """The argument of a call that is said."""
        named = self.speaking_tools.get(call["name"])
        if named is None:
            return None
        args = call["args"]
        return next((key for key in ((named,) if named else _SAID) if isinstance(args.get(key), str)), None)

    def writers(self, history: History) -> Writers:
        """Who wrote what has no name in the conversation of the newest node run."""
        return Writers(self, history)

    def found_in(self, history: History) -> _Found:
        """What is found in that history, with what was found in it before."""
        if not isinstance(history, CausalHistory):
            return self._looked(_Found(), list(history.earlier()))
        # Past a subgraph is another than past the graph around it.
        key = (history.thread_id or history.run_id, history.entries[-1][-1].namespace)
        seq = history.past.seq
        with self._lock:
            found = self._found.setdefault(key, _Found())
            self._found.move_to_end(key)
            while len(self._found) > _MOST_THREADS:
                self._found.popitem(last=False)
            new = seq - found.seq
            items = list(islice(history.earlier(), new + 1)) if new >= 0 else []
            if len(items) > new >= 0 and items[new].id == found.newest:
                del items[new:]
            elif seq:  # it is a fork, or nobody has looked for long
                found = self._found[key] = _Found()
                items = list(history.earlier())
            if items:
                found.seq, found.newest = seq, items[0].id
            return self._looked(found, items)

    def _looked(self, found: _Found, items: Sequence[HistoryItem]) -> _Found:
        for item in reversed(items):
            found.look_at(self, item)
        return found

    def wrote(self, item: HistoryItem) -> list[Any]:
        """What a node run has added to the conversation."""
        try:
            now = messages_at(item.output_state, self.key)
            # Only a node that returns several messages may return the conversation that it was given.
            return list(new_of(messages_at(item.input_state, self.key), now) if len(now) > 1 else now)
        except (TypeError, ValueError, NotImplementedError, ConfigurationError):
            return []

    def target(self, trajectory: Trajectory, agent: str | None) -> Target:
        """What a judge is shown: of one agent, or (None) of all."""
        personas = self.persona(agent) if agent is not None else tuple(self.personas.values())
        return Target(trajectory=trajectory, agent=agent, personas=personas, channel=self.channel)


def _by_name(agents: Iterable[Persona | str]) -> dict[str, Persona]:
    """The personas of the agents. One that is given by name and as a persona is that persona."""
    found: dict[str, Persona] = {}
    for given in agents:
        persona = given if isinstance(given, Persona) else Persona(given, "")
        known = found.setdefault(persona.name, persona)
        if not known.text:
            found[persona.name] = persona
        elif persona.text and persona != known:
            raise ConfigurationError(
                f"there are two personas of the name {persona.name!r}, so their messages cannot be told apart. "
                "Give each a name of its own."
            )
    return found


def nobody_known(cast: Cast, so: str, name: str) -> LookupError:
    """The one warning of a contract that does nothing, because no node is known to be an agent's. It is logged, and
    raised it is among the errors of the item."""
    agents = ", ".join(map(repr, cast.personas))
    nodes = ", ".join(map(repr, sorted(cast.known_nodes)))
    problem = (
        f"no node is known to be one of {agents}, so {so}. Nodes: {nodes}. Name a node as its agent, or pass "
        "agent_of= or, for a single agent, target_nodes= or target_instructions="
    )
    _log.warning("%r: %s (This is told once.)", name, problem)
    return LookupError(problem)


_WITH_CONTEXT = "tool_call_with_context"
_LOOK_BACK = 50
"""In how many node runs before it the caller of a tool is looked for."""


def _sent_calls(state: Mapping[str, Any]) -> list[Any] | None:
    """The calls that were sent to a node to make, None if it was given a state."""
    if part_at(state, "__type") == _WITH_CONTEXT:
        return [part_at(state, "tool_call")]
    sent: Any = part_at(state, ROOT)
    if isinstance(sent, list) and sent:
        calls = _parts_of(sent)
        if all(isinstance(call, dict) and cast(Any, call).get("type") == "tool_call" for call in calls):
            return calls
    return None


class Writers:
    """Who wrote the messages and texts without a name in the conversation of a node run: the agent of the node run that
    added it, else its node, as far as the history has seen it."""

    def __init__(self, cast: Cast, history: History) -> None:
        self._cast = cast
        self._history = history

    @cached_property
    def _found(self) -> _Found:
        return self._cast.found_in(self._history)

    def of(self, one: Any) -> str | None:
        """Who wrote that, None if nobody was seen writing it."""
        id = None if isinstance(one, str) else one.id
        found = self._found
        who = found.by_id.get(id) if id else None
        return found.by_text.get(_text_of(one)) if who is None and found.by_text else who


class _Found:
    """What has been found in a history that grows: each node run is looked at once.

    A message is known by its id, or by its text if it has none; a text that two have written is nobody's.
    """

    __slots__ = ("by_id", "by_text", "newest", "seq")

    def __init__(self) -> None:
        self.by_id: dict[str, str] = {}
        self.by_text: dict[str, str] = {}
        self.seq = 0
        self.newest = ""

    def look_at(self, cast: Cast, item: HistoryItem) -> None:
        who: str | None = None
        for one in cast.wrote(item):
            if not _unsigned(one):
                continue
            who = who or cast.acting(item) or item.node
            if isinstance(one, str) or not one.id:
                text = _text_of(one)
                if self.by_text.setdefault(text, who) != who:
                    self.by_text[text] = SOMEBODY
            else:
                self.by_id.setdefault(one.id, who)
        for known in (self.by_id, self.by_text):
            while len(known) > _MOST_KNOWN:
                del known[next(iter(known))]


_MOST_KNOWN = 1_000
"""Of how many messages without a name, the newest of a thread, the writer is remembered."""
_MOST_THREADS = 256


def _unsigned(one: Any) -> bool:
    return isinstance(one, str) or (isinstance(one, AIMessage) and not one.name)


def _text_of(one: Any) -> str:
    return one if isinstance(one, str) else str(one.text)


class Messages(Sequence[Any]):
    """The messages and texts in a part of a state. One that is written otherwise is made a message when it is looked
    at, so raises what `convert_to_messages` raises then. Only where all are texts is a text not a message."""

    __slots__ = ("_texts", "parts")

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts
        self._texts = bool(parts) and isinstance(parts[0], str) and all(isinstance(one, str) for one in parts)

    def __len__(self) -> int:
        return len(self.parts)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Messages: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return Messages(self.parts[index])
        one = self.parts[index]
        if isinstance(one, BaseMessage) or self._texts:
            return one
        return convert_to_messages([one])[0]


_ROLES = frozenset({"human", "user", "ai", "assistant", "function", "tool", "system", "developer"})


def messages_at(state: Mapping[str, Any], key: str) -> Messages:
    """The messages at that key of a state. Raises what `messages_in` raises."""
    return messages_in(part_at(state, key))


def part_at(state: Mapping[str, Any], key: str) -> Any:
    """The part of a state, past a read-only view of it, which copies each message that is looked at."""
    return dict[str, Any].get(state, key) if isinstance(state, dict) else state.get(key)


def messages_in(value: Any) -> Messages:
    """The messages and texts in a part of a state, which may be a single one: a text, a message, or what LangChain
    takes for a message, `{"role": ..., "content": ...}` or `("ai", ...)`. Of an `Overwrite`, what it writes.

    Raises `TypeError` for what is none of these, and `ConfigurationError` where the history keeps digests alone.
    """
    value = overwriting(value)[1]
    if value is None:
        return Messages([])
    if isinstance(value, Digest):
        raise ConfigurationError(
            "what was said cannot be judged, because the history keeps digests alone. "
            "Use ArbiterOS(snapshot='shallow') or 'deep'."
        )
    if isinstance(value, str | BaseMessage):
        return Messages([value])
    if is_single(value):
        return Messages(list(convert_to_messages([value])))
    return Messages(_parts_of(value))


def _parts_of(value: Any) -> list[Any]:
    """The elements, past the iterator of a read-only view, which copies each."""
    parts: Any = value
    return list[Any].__getitem__(parts, slice(None)) if isinstance(value, list) else list(parts)


def is_single(value: Any) -> bool:
    """Whether that is one text or message, and no list of them."""
    pair: Any = value
    if isinstance(value, tuple):
        return len(pair) == 2 and isinstance(pair[0], str) and pair[0] in _ROLES
    return isinstance(value, str | BaseMessage | Mapping)


def new_of(given: Messages, now: Messages) -> Messages:
    """What is new of what a node says: it may return the conversation that it was given, or a part of it."""
    if now.parts[: len(given)] == given.parts:
        new = now[len(given) :]
        # Messages have ids; texts that are the same as those before may well be said again.
        return new if new or not all(isinstance(one, str) for one in now.parts) else now
    if len(now) == 1:
        return now
    known = {id(one) for one in given.parts if not isinstance(one, str)}
    return Messages([one for one in now.parts if id(one) not in known])


def config_for(configs: GateConfig | Mapping[str, GateConfig], cast: Cast, agent: str | None) -> GateConfig:
    """The settings of an agent: by its name or id where there are several, "*" for all others."""
    if isinstance(configs, GateConfig):
        return configs
    named = {cast.name(known): config for known, config in configs.items()}
    found = named.get(agent) or named.get("*")
    return found if found is not None else GateConfig()


def checked_configs(
    configs: GateConfig | Mapping[str, GateConfig], cast: Cast, owner: str
) -> GateConfig | Mapping[str, GateConfig]:
    """The same. Raises `ConfigurationError` for settings of somebody who is no agent."""
    if not isinstance(configs, GateConfig):
        for known in configs:
            if known != "*" and cast.personas and cast.name(known) not in cast.personas:
                agents = ", ".join(map(repr, cast.personas))
                raise ConfigurationError(f"{owner}: there are settings for {known!r}. Agents: {agents}.")
        named: dict[str | None, str] = {}
        for known in configs:
            if (other := named.setdefault(cast.name(known), known)) != known:
                raise ConfigurationError(
                    f"{owner}: {other!r} and {known!r} are one agent. Keep one of its settings."
                )
    return configs


def all_configs(configs: GateConfig | Mapping[str, GateConfig]) -> tuple[GateConfig, ...]:
    """All settings that there are."""
    return (configs,) if isinstance(configs, GateConfig) else tuple(configs.values())
