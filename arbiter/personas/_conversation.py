"""Finds the agent that acts in a node of a graph, and the conversation before it."""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, cast

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from arbiter._threads.forks import new_lock
from arbiter._values.recent import Recent
from arbiter._values.states import ROOT, as_state
from arbiter.errors import ConfigurationError
from arbiter.history._causal import CausalHistory
from arbiter.history._items import History, HistoryItem
from arbiter.instructions import TOOL_CALL, Instruction
from arbiter.personas._characters import Names, Persona, agents_of
from arbiter.personas._messages import Messages, messages_at, new_of, part_at, parts_of
from arbiter.personas._targets import Target
from arbiter.personas._trajectories import SOMEBODY, Event, LazyEvents, Trajectory, event_of

_log = logging.getLogger("arbiter.personas")
SPEAKING_TOOLS = ("send_message",)
_SAID = ("text", "message", "content")
AgentOf = Callable[[HistoryItem], str | None]
"""Returns the agent that acts in a node run, by name or id; None if it is unknown."""


class Cast:
    """The agents of a graph: finds the agent that acts in a node run, and its conversation.

    `key` is the key of the conversation in the state: messages, or texts. An agent is known by the name or id
    of its persona. `agent_of` decides which agent acts in a node run. Without it, a node belongs to the agent
    of its name or id; the remaining `nodes` and `instructions` belong to a single agent, unless a node has
    that agent's name. Agents are never guessed. Without any agents each node is one, under its own name.

    `speaking_tools` are tools by which an agent speaks: the message is the argument that a mapping names,
    else the arguments called text, message and content.
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
        self.personas = _by_name(agents_of(agents))
        self.key = key
        if agent_of is not None and not callable(cast(Any, agent_of)):
            raise ConfigurationError(f"agent_of: expected a function of a node run, got {agent_of!r:.80}.")
        self.agent_of = agent_of
        if not isinstance(cast(Any, channel), str):
            raise ConfigurationError(f"channel: expected a text, got {channel!r:.80}.")
        self.channel = channel
        self.nodes = frozenset([nodes] if isinstance(nodes, str) else nodes or ())
        self.instructions = frozenset(instructions or ())
        self.known_nodes: set[str] = set()
        """The nodes of governed graphs in which agents may act."""
        tools: Any = [speaking_tools] if isinstance(speaking_tools, str) else speaking_tools
        is_many = isinstance(speaking_tools, Iterable)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_many:
            raise ConfigurationError(f"speaking_tools: expected names of tools, got {tools!r:.80}.")
        self.speaking_tools: Mapping[str, str] = (
            tools if isinstance(tools, Mapping) else dict.fromkeys(tools, "")
        )
        self._remember()

    def _remember(self) -> None:
        self._find = lru_cache(maxsize=1_000)(Names(self.personas.values()).find)
        self._found = Recent[tuple[str, str], _Found](_MOST_THREADS)
        self._lock = new_lock()

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickles and deep copies, without caches and locks."""
        return {name: part for name, part in vars(self).items() if name not in ("_find", "_found", "_lock")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self._remember()

    def name(self, known: str | None) -> str | None:
        """The name of the agent with that name or id; any other text unchanged."""
        return None if known is None else self._find(known) or known

    def acting(self, item: HistoryItem) -> str | None:
        """The agent that acts in that node run; None if it is unknown."""
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
        """The only agent, unless a node has its name."""
        if len(self.personas) != 1 or self._has_own_node(self.nodes or self.known_nodes):
            return None
        return next(iter(self.personas))

    def _has_own_node(self, nodes: Iterable[str]) -> bool:
        return any(self.name(node) in self.personas for node in nodes)

    @property
    def is_known(self) -> bool:
        """True if an agent is known to act in one of the nodes, or if there are no nodes to check yet."""
        if self.agent_of is not None or not self.personas or not self.known_nodes:
            return True
        is_bound = bool(self.nodes or self.instructions) and len(self.personas) == 1
        return is_bound or self._has_own_node(self.known_nodes)

    def persona(self, agent: str | None) -> tuple[Persona, ...]:
        """The persona of that agent, empty if it has none."""
        found = self.personas.get(agent or "")
        return (found,) if found is not None and found.text else ()

    def before(self, history: History, agent: str | None = None) -> Trajectory:
        """The conversation before the newest node run. See `trajectory`. Raises the errors of
        `messages_in`."""
        return self.trajectory(self.given(history), agent, self.writers(history))

    def given(self, history: History) -> Messages:
        """The messages in the input of the newest node run. Raises the errors of `messages_in`.

        LangChain's agents send only calls to their tool nodes; the messages are then those of the caller.
        """
        state = history.item.input_state
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

    def goes_on(self, history: History, agent: str) -> bool:
        """True if the newest node run continues that agent's turn: its input ends with results of tools that
        the agent called.

        Raises the errors of `messages_in`.
        """
        newest = reversed(self.given(history))
        if not isinstance(next(newest, None), ToolMessage):
            return False
        caller = next((one for one in newest if not isinstance(one, ToolMessage)), None)
        if not isinstance(caller, AIMessage):
            return False
        name = caller.name or self.writers(history).of(caller) or (agent if len(self.personas) < 2 else None)
        return name is not None and self.name(name) == agent

    def lacks_key(self, item: HistoryItem, output: Mapping[str, Any]) -> bool:
        """True if neither the input nor the output of a node run has a place for a conversation."""
        state = item.input_state
        if self.key in state or self.key in output or _sent_calls(state) is not None:
            return False
        return bool(state or output)

    def pending(self, history: History) -> list[Mapping[str, Any]]:
        """The calls by which an agent speaks, among those that the newest node run will make."""
        return [call for call in self._to_make(history) if self.speech(call) is not None]

    def unread(self, history: History) -> list[str]:
        """The speaking tools among those that the newest node run calls whose text is in no known argument."""
        calls = self._to_make(history)
        return [
            call["name"]
            for call in calls
            if call["name"] in self.speaking_tools and self.speech(call) is None
        ]

    def _to_make(self, history: History) -> list[Any]:
        state = history.item.input_state
        if (calls := _sent_calls(state)) is not None:
            return calls
        return _open_calls(part_at(state, self.key), anywhere=history.item.instruction == TOOL_CALL)

    def trajectory(
        self,
        said: Sequence[Any],
        agent: str | None,
        writers: Writers | None = None,
        thoughts: Sequence[tuple[int, Event]] = (),
    ) -> Trajectory:
        """Messages and texts as events under the agents' names, created when they are read.

        `writers` attributes texts and AI messages without a name to the agent that was seen writing them. The
        rest is attributed to `agent`, unless another agent could have written it. Each of `thoughts` is
        inserted before the message at its place.
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
        """The text of a message, including the text spoken by tools. None if no tool speaks."""
        said = [text for call in message.tool_calls if (text := self.speech(call)) is not None]
        return "\n".join(filter(str.strip, [str(message.text), *said])) if said else None

    def speech(self, call: Mapping[str, Any]) -> str | None:
        """The text that an agent speaks by that call of a tool; None if the call does not speak."""
        said = [call["args"][key] for key in self._said_in(call)]
        return "\n".join(filter(str.strip, said)) if said else None

    def with_speech(self, call: Mapping[str, Any], text: str) -> dict[str, Any]:
        """The call with `text` in place of everything that it speaks."""
        first, *others = self._said_in(call)
        return {**call, "args": {**call["args"], first: text, **dict.fromkeys(others, "")}}

    def last_of_each(self, calls: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Of speaking calls that differ in their text alone, and so have one receiver, the last."""
        found: dict[str, Mapping[str, Any]] = {}
        for call in calls:
            said = self._said_in(call)
            found[
                repr([call["name"], {key: arg for key, arg in call["args"].items() if key not in said}])
            ] = call
        return [*found.values()]

    def _said_in(self, call: Mapping[str, Any]) -> list[str]:
        """The names of a call's arguments that are spoken."""
        named = self.speaking_tools.get(call["name"])
        keys = () if named is None else (named,) if named else _SAID
        return [key for key in keys if isinstance(call["args"].get(key), str)]

    def writers(self, history: History) -> Writers:
        """The writers of unnamed messages in the conversation of the newest node run."""
        return Writers(self, history)

    def found_in(self, history: History) -> _Found:
        """The writers found in that history, including those found earlier."""
        if not isinstance(history, CausalHistory):
            return self._looked(_Found(), list(history.earlier()))
        # A subgraph has a past of its own.
        key = (history.thread_id or history.run_id, history.item.namespace)
        seq = history.past.seq
        with self._lock:
            found = self._found[key] = self._found.get(key) or _Found()
            new = seq - found.seq
            items = list(islice(history.earlier(), new + 1)) if new >= 0 else []
            if len(items) > new >= 0 and items[new].id == found.newest:
                del items[new:]
            elif seq:  # a fork, or the history no longer has the item read last
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
        """The messages that a node run added to the conversation."""
        try:
            now = messages_at(item.output_state, self.key)
            # Only a node that returns several messages may return the conversation that it was given.
            return list(new_of(messages_at(item.input_state, self.key), now) if len(now) > 1 else now)
        except (TypeError, ValueError, NotImplementedError, ConfigurationError):
            return []

    def target(self, trajectory: Trajectory, agent: str | None) -> Target:
        """The material for a judge: that of one agent, or (None) of all."""
        personas = self.persona(agent) if agent is not None else tuple(self.personas.values())
        return Target(trajectory=trajectory, agent=agent, personas=personas, channel=self.channel)


def _by_name(agents: Iterable[Persona | str]) -> dict[str, Persona]:
    """The personas by name. An agent given both by name and as a persona counts as that persona."""
    found: dict[str, Persona] = {}
    for given in agents:
        persona = given if isinstance(given, Persona) else Persona(given, "")
        known = found.setdefault(persona.name, persona)
        if not known.text:
            found[persona.name] = persona
        elif persona.text and persona != known:
            raise ConfigurationError(
                f"two personas have the name {persona.name!r}, so their messages cannot be told apart. "
                "Give each a name of its own."
            )
    return found


def run_id_of(history: History) -> str:
    """The id of the run; "" in a history that is no graph's."""
    return history.run_id if isinstance(history, CausalHistory) else ""


def scope_of(history: History) -> str:
    """The id of the conversation: the thread, or the run without one."""
    return (history.thread_id or history.run_id) if isinstance(history, CausalHistory) else ""


def nobody_known(cast: Cast, so: str, name: str) -> LookupError:
    """The warning of a contract that does nothing, because no node belongs to one of its agents.

    It is logged, and returned as an error to raise, so that it appears among the errors of the item.
    """
    agents = ", ".join(map(repr, cast.personas))
    nodes = ", ".join(map(repr, sorted(cast.known_nodes)))
    problem = (
        f"no node is known to be one of {agents}, so {so}. Nodes: {nodes}. Name a node as its agent, or pass "
        "agent_of= or, for a single agent, target_nodes= or target_instructions="
    )
    _log.warning("%r: %s (This is reported once.)", name, problem)
    return LookupError(problem)


_WITH_CONTEXT = "tool_call_with_context"
_LOOK_BACK = 50
"""Earlier node runs in which the caller of a tool is looked for."""


def _sent_calls(state: Mapping[str, Any]) -> list[Any] | None:
    """The calls that were sent to a node; None if its input is a state."""
    if part_at(state, "__type") == _WITH_CONTEXT:
        return [part_at(state, "tool_call")]
    sent: Any = part_at(state, ROOT)
    if isinstance(sent, list) and sent:
        calls = parts_of(sent)
        if all(isinstance(call, dict) and cast(Any, call).get("type") == "tool_call" for call in calls):
            return calls
    return None


def _open_calls(value: Any, *, anywhere: bool) -> list[Any]:
    """The calls of the last AI message if one of them has no answer yet; `anywhere` if more than answers may
    follow it. LangGraph's `ToolNode` makes them all, whatever follows."""
    # Some models give all calls the same id, so answers are counted.
    answered: list[str | None] = []
    for one in reversed(parts_of(value) if isinstance(value, list) else []):
        if isinstance(one, AIMessage):
            # No tool is called for these.
            invalid = {call["id"] for call in one.invalid_tool_calls}
            return one.tool_calls if sum(id not in invalid for id in answered) < len(one.tool_calls) else []
        if isinstance(one, ToolMessage):
            answered.append(one.tool_call_id)
        elif not anywhere:
            break
    return []


class Writers:
    """The writers of unnamed messages in the conversation of a node run, as far as the history shows them.

    A message is attributed to the agent of the node run that added it, else to that node.
    """

    def __init__(self, cast: Cast, history: History) -> None:
        self._cast = cast
        self._history = history

    @cached_property
    def _found(self) -> _Found:
        return self._cast.found_in(self._history)

    def of(self, one: Any) -> str | None:
        """The writer of a message or text; None if the history does not show one."""
        id = None if isinstance(one, str) else one.id
        found = self._found
        who = found.by_id.get(id) if id else None
        return found.by_text.get(_digest(one)) if who is None and found.by_text else who


class _Found:
    """The writers found in a growing history; each node run is read once.

    A message is identified by its id, or by its text without one; a text of two writers is attributed to
    neither.
    """

    __slots__ = ("by_id", "by_text", "newest", "seq")

    def __init__(self) -> None:
        self.by_id = Recent[str, str](_MOST_KNOWN)
        self.by_text = Recent[str, str](_MOST_KNOWN)  # by digest: there are many, and texts may be long
        self.seq = 0
        self.newest = ""

    def look_at(self, cast: Cast, item: HistoryItem) -> None:
        who: str | None = None
        for one in cast.wrote(item):
            if not _unsigned(one):
                continue
            who = who or cast.acting(item) or item.node
            if isinstance(one, str) or not one.id:
                text = _digest(one)
                if self.by_text.setdefault(text, who) != who:
                    self.by_text[text] = SOMEBODY
            else:
                self.by_id.setdefault(one.id, who)


_MOST_KNOWN = 1_000
"""Unnamed messages of a thread, the newest, whose writers are remembered."""
_MOST_THREADS = 256


def _digest(one: Any) -> str:
    return hashlib.blake2b(_text_of(one).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _unsigned(one: Any) -> bool:
    return isinstance(one, str) or (isinstance(one, AIMessage) and not one.name)


def _text_of(one: Any) -> str:
    return one if isinstance(one, str) else str(one.text)
