"""Packs: where they are, what a file may hold, and which graphs the shipped bindings recognise."""

from __future__ import annotations

import pickle
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, cast

import langchain.agents
import langgraph.prebuilt
import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    after_agent,
    before_agent,
    before_model,
)
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

import arbiter
from arbiter._constitution.bindings import binding_for, code_of
from arbiter._constitution.documents import PACK
from arbiter.errors import ConfigurationError, PackError
from arbiter.instructions import (
    COMPRESS,
    CONSTRAIN,
    FILTER,
    GENERATE,
    INTERRUPT,
    MONITOR_RESOURCES,
    STRUCTURE,
    TOOL_CALL,
    VERIFY,
    Instruction,
)
from arbiter.packs import (
    BindingPack,
    Fingerprint,
    GraphFacts,
    load_bindings,
    pack_files,
    pack_folder,
    shipped_bindings,
)

# Both leave parameters of their types open, which strict checkers pass on to every graph they make.
create_agent = cast(Any, langchain.agents).create_agent
create_react_agent = cast(Any, langgraph.prebuilt).create_react_agent


class ScriptedModel(FakeMessagesListChatModel):
    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Runnable[Any, Any]:
        return self


@tool
def search(query: str) -> str:
    """Search for `query`."""
    return query


def model() -> ScriptedModel:
    return ScriptedModel(responses=[AIMessage("done")])


def facts_of(graph: Any) -> GraphFacts:
    """The facts about a graph that `govern` collects."""
    return GraphFacts(
        nodes={name: code_of(node.bound) for name, node in graph.nodes.items()},
        metadata=graph.config.get("metadata", {}) if graph.config else {},
    )


def bound(graph: Any) -> tuple[str, Mapping[str, Instruction]] | None:
    """The name of the pack that knows the graph, and what it says of each node."""
    if (pack := binding_for(facts_of(graph))) is None:
        return None
    return pack.name, pack.instructions_of(node for node in graph.nodes if node != START)


def passing(state: Any, runtime: Any = None) -> None:
    """A hook that does nothing."""


# Any graph that LangChain's create_agent makes.


def test_create_agent_is_recognised() -> None:
    agent = create_agent(model(), [search])
    assert bound(agent) == ("langchain-create-agent", {"model": GENERATE, "tools": TOOL_CALL})


def test_create_agent_without_tools_is_recognised() -> None:
    agent = create_agent(model(), name="clerk")
    assert bound(agent) == ("langchain-create-agent", {"model": GENERATE})


def test_middleware_nodes_have_instructions() -> None:
    agent = create_agent(
        model(),
        [search],
        middleware=[
            PIIMiddleware("email"),
            SummarizationMiddleware(model()),
            HumanInTheLoopMiddleware({"search": True}),
            TodoListMiddleware(),
            ModelCallLimitMiddleware(run_limit=3),
            ToolCallLimitMiddleware(run_limit=9),
            ToolCallLimitMiddleware(tool_name="search", run_limit=3),
        ],
    )
    assert bound(agent) == (
        "langchain-create-agent",
        {
            "model": GENERATE,
            "tools": TOOL_CALL,
            "PIIMiddleware[email].before_model": CONSTRAIN,
            "PIIMiddleware[email].after_model": CONSTRAIN,
            "SummarizationMiddleware.before_model": COMPRESS,
            "HumanInTheLoopMiddleware.after_model": INTERRUPT,
            "TodoListMiddleware.after_model": CONSTRAIN,
            "ModelCallLimitMiddleware.before_model": MONITOR_RESOURCES,
            "ModelCallLimitMiddleware.after_model": MONITOR_RESOURCES,
            "ToolCallLimitMiddleware.after_model": MONITOR_RESOURCES,
            "ToolCallLimitMiddleware[search].after_model": MONITOR_RESOURCES,
        },
    )


class AsyncOnly(AgentMiddleware[Any, Any, Any]):
    async def aafter_model(self, state: Any, runtime: Any) -> None: ...


def test_hooks_of_ones_own_middleware_constrain() -> None:
    hooks = [before_agent(passing), after_agent(name="audit")(passing)]
    agent = create_agent(model(), middleware=[*hooks, before_model(name="trim")(passing), AsyncOnly()])
    assert bound(agent) == (
        "langchain-create-agent",
        {
            "model": GENERATE,
            "passing.before_agent": CONSTRAIN,
            "audit.after_agent": CONSTRAIN,
            "trim.before_model": CONSTRAIN,
            "AsyncOnly.after_model": CONSTRAIN,
        },
    )


def test_an_agent_that_was_given_other_metadata_is_recognised_by_its_code() -> None:
    """As by what is built on create_agent; and releases of langchain that wrote no metadata."""
    agent = create_agent(model(), [search])
    renamed = agent.with_config(metadata={"ls_integration": "deepagents"})
    assert bound(renamed) == bound(agent)


def test_an_agent_whose_code_moved_is_recognised_by_its_metadata() -> None:
    agent = facts_of(create_agent(model()))
    moved = GraphFacts(nodes={"model": "langchain.elsewhere.node"}, metadata=agent.metadata)
    assert binding_for(moved) is binding_for(agent)


def test_an_agent_that_is_a_node_of_a_graph_is_recognised_and_the_graph_is_not() -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("model", create_agent(model(), [search]))
    builder.add_edge(START, "model")
    graph = builder.compile()
    assert bound(graph) is None
    assert bound(graph.nodes["model"].bound) is not None


# Any graph that LangGraph's create_react_agent makes.

deprecated = pytest.mark.filterwarnings("ignore:create_react_agent has been moved")


@deprecated
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_create_react_agent_is_recognised(version: Any) -> None:
    agent = create_react_agent(model(), [search], version=version)
    assert bound(agent) == ("langgraph-prebuilt", {"agent": GENERATE, "tools": TOOL_CALL})


@deprecated
@pytest.mark.parametrize("tools", [[], [search]], ids=["no tools", "tools"])
def test_create_react_agent_is_recognised_with_everything_it_can_have(tools: list[Any]) -> None:
    agent = create_react_agent(
        model(),
        tools,
        pre_model_hook=RunnableLambda(passing),
        post_model_hook=RunnableLambda(passing),
        response_format={"title": "answer", "type": "object", "properties": {}},
    )
    assert bound(agent) == (
        "langgraph-prebuilt",
        {
            "agent": GENERATE,
            **({"tools": TOOL_CALL} if tools else {}),
            "pre_model_hook": FILTER,
            "post_model_hook": CONSTRAIN,
            "generate_structured_response": STRUCTURE,
        },
    )


# Any other graph.


class State(TypedDict):
    text: str


def graph_of(**nodes: Any) -> Any:
    builder = StateGraph(State)
    for name, node in nodes.items():
        builder.add_node(name, node)
        builder.add_edge(START, name)
    return builder.compile(name="create_agent")


def model_node(state: State) -> State:
    return state


def call_model(state: State) -> State:
    return state


class Caller:
    def call_model(self, state: State) -> State:
        return state

    def __call__(self, state: State) -> State:
        return state


@pytest.mark.parametrize("names", [("model", "tools"), ("agent", "tools")], ids="-".join)
@pytest.mark.parametrize(
    "node",
    [
        model_node,
        call_model,
        Caller().call_model,
        Caller(),
        partial(call_model),
        RunnableLambda(call_model),
        RunnableLambda(call_model) | RunnableLambda(model_node),
        lambda: None,
        model(),
    ],
    ids=lambda node: type(node).__name__,
)
def test_a_graph_that_merely_uses_the_names_is_not_recognised(names: tuple[str, str], node: Any) -> None:
    agent, tools = names
    graph = graph_of(**{agent: node, tools: ToolNode([search]), "x.before_model": node})
    assert bound(graph) is None


def test_metadata_of_another_integration_is_not_recognised() -> None:
    graph = graph_of(model=model_node).with_config(metadata={"ls_integration": "langgraph"})
    assert bound(graph) is None


def test_a_graph_without_nodes_or_metadata_is_not_recognised() -> None:
    assert binding_for(GraphFacts(nodes={})) is None


@pytest.mark.parametrize(
    ("runnable", "code"),
    [
        (call_model, f"{__name__}.call_model"),
        (Caller().call_model, f"{__name__}.Caller.call_model"),
        (Caller(), f"{__name__}.Caller"),
        (partial(partial(call_model)), f"{__name__}.call_model"),
        (RunnableLambda(partial(call_model)), f"{__name__}.call_model"),
        (ToolNode([search]), "langgraph.prebuilt.tool_node.ToolNode._func"),
        (model(), f"{__name__}.ScriptedModel"),
        (None, "builtins.NoneType"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_code_is_named_by_the_place_of_its_definition(runnable: object, code: str) -> None:
    assert code_of(runnable) == code


def test_code_is_found_for_an_object_that_is_its_own_function() -> None:
    class Endless:
        func: Any

        def __call__(self) -> None: ...

    endless = Endless()
    endless.func = endless
    assert code_of(endless).endswith("Endless")


# What a binding pack says.


def pack_with(*bindings: tuple[str, Instruction]) -> BindingPack:
    fingerprint = Fingerprint(metadata={"team": "legal"}, nodes={"read": "acme.legal.*"})
    return BindingPack(name="legal", description="", file="", match=(fingerprint,), bindings=bindings)


def test_the_first_binding_that_fits_a_node_holds() -> None:
    pack = pack_with(("call_bank", VERIFY), ("call_*", TOOL_CALL), ("*", GENERATE))
    nodes = ["call_bank", "call_taxi", "other"]
    assert pack.instructions_of(nodes) == dict(zip(nodes, [VERIFY, TOOL_CALL, GENERATE], strict=True))


def test_a_node_that_no_binding_fits_has_no_instruction() -> None:
    pack = pack_with(("read", GENERATE), ("wri?e", GENERATE))
    assert pack.instruction_of("reader") is None
    assert pack.instruction_of("Read") is None
    assert pack.instructions_of(["read", "write", "rest"]) == {"read": GENERATE, "write": GENERATE}


@pytest.mark.parametrize("pattern", ["guard[a-z].*", "guard[a-z].check", "guard[[]*"])
def test_brackets_in_a_pattern_are_brackets(pattern: str) -> None:
    pack = pack_with((pattern, VERIFY))
    assert (pack.instruction_of("guard[a-z].check") is VERIFY) == ("[[" not in pattern)
    assert pack.instruction_of("guardb.check") is None


def test_all_of_a_fingerprint_must_fit() -> None:
    legal, nodes = {"team": "legal"}, {"read": "acme.legal.read"}
    packs = [pack_with(("read", GENERATE))]
    assert binding_for(GraphFacts(nodes=nodes, metadata={**legal, "more": 1}), packs) is packs[0]
    assert binding_for(GraphFacts(nodes=nodes), packs) is None
    assert binding_for(GraphFacts(nodes={}, metadata=legal), packs) is None
    assert binding_for(GraphFacts(nodes={"read": "acme.law.read"}, metadata=legal), packs) is None


# The shipped packs.


def test_shipped_packs_are_read_once() -> None:
    assert shipped_bindings() is shipped_bindings()
    assert [pack.file for pack in shipped_bindings()] == [
        "instructions/langchain-create-agent.yaml",
        "instructions/langgraph-prebuilt.yaml",
    ]


@pytest.mark.parametrize("folder", ["instructions", "policies", "evaluators"])
def test_the_readme_of_the_folder_lists_the_shipped_packs(folder: Any) -> None:
    readme = (pack_folder(folder) / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([a-z-]+\.yaml)` \|", readme, re.MULTILINE)
    assert sorted(listed) == sorted(file.name for file in pack_files(pack_folder(folder)))


def test_the_example_in_the_readme_of_the_folder_is_a_pack(tmp_path: Path) -> None:
    readme = (pack_folder("instructions") / "README.md").read_text(encoding="utf-8")
    example = readme.split("```yaml\n")[1].split("```")[0]
    (tmp_path / "example.yaml").write_text(example, encoding="utf-8")
    (pack,) = load_bindings(tmp_path)
    assert binding_for(GraphFacts(nodes={"intake": "acme.agents.triage.read"}), [pack]) is pack


def test_no_shipped_pack_takes_a_node_for_a_verification() -> None:
    """A policy that waits for VERIFY must not be content with a hook that merely runs."""
    assert VERIFY not in {instruction for pack in shipped_bindings() for _, instruction in pack.bindings}


@pytest.mark.lengthy
def test_a_users_core_with_our_names_does_not_break_the_shipped_packs() -> None:
    result = run_python(
        """
        from arbiter.instructions import Instruction, define
        from arbiter.packs import shipped_bindings

        class MyCore(Instruction):
            GENERATE = define("Mine.")
            TOOL_CALL = define("Mine.")

        print(shipped_bindings()[0].instruction_of("model").qualified)
        """,
        path=Path(arbiter.__file__).parent.parent,
    )
    assert result.stdout.strip() == "CognitiveCore.GENERATE", result.stderr


# Where they are.


def run_python(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh process that imports from `path`, in a folder of no meaning."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    environment = {"PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=path, env=environment, capture_output=True, text=True, check=False)


TELL_FOLDER = 'from arbiter.packs import pack_folder; print(pack_folder("instructions"))'


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An installation of the modules that packs need, without any pack."""
    package = tmp_path / "arbiter"
    package.mkdir()
    (package / "__init__.py").touch()
    for name in ("errors.py", "instructions.py", "_constitution", "packs"):
        source = Path(arbiter.__file__).parent / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, package / name)
    return tmp_path


@pytest.mark.parametrize("kind", ["instructions", "policies", "evaluators"])
def test_each_kind_of_packs_has_a_folder(kind: Any) -> None:
    assert pack_folder(kind).joinpath("README.md").is_file()


@pytest.mark.lengthy
def test_installed_packs_come_before_those_of_a_checkout(site: Path) -> None:
    """The folder `arbiter/packs` is beside the module `arbiter/_constitution/documents.py` and does not hide it."""
    installed = site / "arbiter" / "packs" / "instructions"
    for folder in (installed, site / "instructions"):
        folder.mkdir(parents=True)
    (site / "pyproject.toml").touch()
    result = run_python(TELL_FOLDER, site)
    assert result.stdout.strip() == str(installed), result.stderr


@pytest.mark.lengthy
def test_a_checkout_is_known_by_its_pyproject(site: Path) -> None:
    (site / "instructions").mkdir()
    (site / "pyproject.toml").touch()
    result = run_python(TELL_FOLDER, site)
    assert result.stdout.strip() == str(site / "instructions"), result.stderr


@pytest.mark.lengthy
def test_a_folder_beside_a_broken_install_is_not_taken_for_a_checkout(site: Path) -> None:
    (site / "instructions").mkdir()
    result = run_python(TELL_FOLDER, site)
    assert "ConfigurationError: the instructions packs" in result.stderr
    assert "Install arbiteros again." in result.stderr


def test_a_kind_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="the recipes packs"):
        pack_folder("recipes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# What is refused in a file.

GOOD = """\
version: 1
name: legal
description: The graphs of acme.
match:
  - metadata: {team: legal}
  - nodes: {read: acme.legal.*}
instructions:
  - node: read
    instruction: GENERATE
  - {node: "call_*", instruction: ExecutionCore.TOOL_CALL}
"""

Load = Callable[..., tuple[BindingPack, ...]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a folder with these files: `load(a=GOOD)` writes `rules/a.yaml`."""

    def _load(**texts: str | bytes) -> tuple[BindingPack, ...]:
        folder = tmp_path / "rules"
        folder.mkdir()
        for name, text in texts.items():
            raw = text.encode() if isinstance(text, str) else text
            (folder / f"{name}.yaml").write_bytes(raw)
        return load_bindings(folder)

    return _load


def test_a_file_becomes_a_pack(load: Load) -> None:
    (pack,) = load(a=GOOD)
    assert pack == BindingPack(
        name="legal",
        description="The graphs of acme.",
        file="rules/a.yaml",
        match=(
            Fingerprint(metadata={"team": "legal"}, nodes={}),
            Fingerprint(metadata={}, nodes={"read": "acme.legal.*"}),
        ),
        bindings=(("read", GENERATE), ("call_*", TOOL_CALL)),
    )


def test_a_byte_order_mark_and_aliases_are_fine(load: Load) -> None:
    text = GOOD.replace("node: read", "node: &it read").replace('"call_*"', "*it")
    (pack,) = load(a=b"\xef\xbb\xbf" + text.encode())
    assert pack.bindings == (("read", GENERATE), ("read", TOOL_CALL))


def test_only_yaml_files_are_read(tmp_path: Path) -> None:
    for name in ("b.yml", "a.yaml", "README.md", ".hidden.yaml", "c.yaml.bak"):
        text = GOOD.replace("legal", name, 1) if name in ("b.yml", "a.yaml") else "{"
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert [pack.name for pack in load_bindings(tmp_path)] == ["a.yaml", "b.yml"]


@pytest.mark.parametrize(
    ("old", "new", "mistakes"),
    [
        ("version: 1", "version: 2", ["1: version: expected 1, got 2"]),
        ("version: 1\n", "", ["1: version: expected a value, got nothing"]),
        (
            "name: legal",
            "nmae: legal",
            [
                "1: name: expected a value, got nothing",
                "2: nmae: expected one of description, instructions, match, name, version, "
                "got 'nmae'. Did you mean 'name'?",
            ],
        ),
        ("name: legal", "name: 7", ["2: name: expected a text, got 7"]),
        ("name: legal", "name: ''", ["2: name: expected a text that is not empty, got ''"]),
        (
            "- metadata: {team: legal}",
            "- metadata: legal",
            ["5: match[0].metadata: expected a mapping, got 'legal'"],
        ),
        (
            "- metadata: {team: legal}",
            "- metdata: {team: legal}",
            ["5: match[0].metdata: expected one of metadata, nodes, got 'metdata'. Did you mean 'metadata'?"],
        ),
        (
            "- metadata: {team: legal}",
            "- {}",
            ["5: match[0]: expected metadata or nodes, got neither. It would fit every graph."],
        ),
        (
            "- metadata: {team: legal}",
            "- metadata: {team: 3}",
            ["5: match[0].metadata.team: expected a text, got 3"],
        ),
        (
            "{read: acme.legal.*}",
            "{read: '*'}",
            [
                "6: match[1].nodes.read: expected where the node's code is defined, such as "
                "'langchain.agents.factory.*', got '*'. A node's name alone is not a fingerprint."
            ],
        ),
        (
            "{read: acme.legal.*}",
            "[read]",
            ["6: match[1].nodes: expected a mapping, got ['read']"],
        ),
        (
            "    instruction: GENERATE",
            "    instruction: GENRATE",
            [
                "9: instructions[0].instruction: expected the name of an instruction, "
                "got 'GENRATE'. Did you mean 'GENERATE'?"
            ],
        ),
        (
            "    instruction: GENERATE\n",
            "",
            ["8: instructions[0].instruction: expected a value, got nothing"],
        ),
        (
            "    instruction: GENERATE",
            "    instruction: on",
            ["9: instructions[0].instruction: expected an instruction or its name, got True."],
        ),
        (
            "node: read",
            "nodes: read",
            [
                "8: instructions[0].node: expected a value, got nothing",
                "8: instructions[0].nodes: expected one of instruction, node, got 'nodes'. "
                "Did you mean 'node'?",
            ],
        ),
        ("name: legal", "name: a\nname: b", ["3: name: expected once, got again after line 2"]),
        ("name: legal", "name: legal\n7: x", ["3: expected a text as key, got '7'"]),
        ("name: legal", "name: legal\n? [a]\n: x", ["3: expected a text as key, got a sequence"]),
        ("name: legal", "name: 2024-99-99", ["2: name: expected plain YAML, got '2024-99-99'"]),
        (
            "name: legal",
            "name: legal\n? !!str [a]\n: x",
            ["3: expected a text as key, got a sequence"],
        ),
        ("name: legal", "name: !!bool maybe", ["2: name: expected plain YAML, got 'maybe'"]),
        ("name: legal", "name: !!timestamp maybe", ["2: name: expected plain YAML, got 'maybe'"]),
        ("name: legal", "name: !!int ''", ["2: name: expected plain YAML, got ''"]),
        ("name: legal", "name: " + "1" * 5000, None),
        (
            "version: 1",
            "version: 01",
            [
                "1: version: expected a decimal number, or a text in quotes, got '01', which YAML reads as 1",
            ],
        ),
        (
            "name: legal",
            "name: 1:30",
            [
                "2: name: expected a decimal number, or a text in quotes, got '1:30', which YAML reads as 90",
            ],
        ),
        ("name: legal", "name: !!python/name:os.system x", None),
        (
            "name: legal",
            "name: !!python/object/apply:os.system [ls]",
            ["2: name: expected plain YAML, got the tag 'tag:yaml.org,2002:python/object/apply:os.system'"],
        ),
        (
            "match:",
            "match: !!set",
            ["4: match: expected plain YAML, got the tag 'tag:yaml.org,2002:set'"],
        ),
        (
            "name: legal",
            "name: legal\n<<: {a: b}",
            ["3: expected a text as key, got the merge key '<<'. Write its keys out"],
        ),
        ("name: legal", "name: [", None),
        ("name: legal", "name: *nobody", ["2: expected YAML; found undefined alias 'nobody'"]),
        ("name: legal", "name: legal\n---\n", None),
        ("name: legal", "name: \x07", ["1: expected YAML, got a file with control characters"]),
        (
            "name: legal",
            "name: [" + "x" * 99 + "]",
            ["2: name: expected a text, got ['" + "x" * 55 + "..."],
        ),
    ],
)
def test_a_mistake_is_reported_with_its_line(
    load: Load, old: str, new: str, mistakes: list[str] | None
) -> None:
    """Where `mistakes` is None, the words are yaml's own: line and form are what matters."""
    assert GOOD.count(old) == 1
    with pytest.raises(PackError) as caught:
        load(a=GOOD.replace(old, new))
    told = str(caught.value).splitlines()
    if mistakes is not None:
        assert told == [f"rules/a.yaml:{mistake}" for mistake in mistakes]
    for mistake in told:
        file, line, message = mistake.split(":", 2)
        assert (file, int(line) > 0) == ("rules/a.yaml", True)
        assert "expected" in message
        assert len(message) < 160


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("", "1: expected a mapping, got an empty file"),
        ("# nothing yet\n", "1: expected a mapping, got an empty file"),
        ("- a\n", "1: expected a mapping, got ['a']"),
        ("rules\n", "1: expected a mapping, got 'rules'"),
        (b"version: 1\nname: \xff\n", "2: expected UTF-8 text"),
        ("x" * (PACK.bytes + 1), f"1: expected at most {PACK.bytes} bytes, got more"),
        ("\n" + "[" * 200_000, f"2: expected at most {PACK.depth} levels of nesting, got more"),
        ("a: &a [*a]", f"1: a{'[0]' * (PACK.depth - 1)}: "),
        ("a: [" + "1," * PACK.values + "]", f"1: expected at most {PACK.values} values, got more"),
    ],
    ids=["empty", "comment", "list", "text", "bytes", "size", "depth", "cycle", "values"],
)
def test_a_file_that_cannot_be_read_is_reported_with_its_line(
    load: Load, text: str | bytes, mistake: str
) -> None:
    with pytest.raises(PackError) as caught:
        load(a=text)
    assert str(caught.value).startswith(f"rules/a.yaml:{mistake.split(': ')[0]}: expected")
    if not mistake.endswith(": "):
        assert str(caught.value) == f"rules/a.yaml:{mistake}"


def test_an_alias_bomb_does_not_go_off(load: Load) -> None:
    laughs = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for i in range(1, 12):
        laughs.append(f"a{i}: &a{i} [" + ", ".join([f"*a{i - 1}"] * 9) + "]")
    with pytest.raises(PackError, match=f"expected at most {PACK.values} values, got more"):
        load(a="\n".join(laughs))


def test_all_mistakes_of_all_files_are_reported_at_once(load: Load) -> None:
    wrong = GOOD.replace("version: 1", "version: 2").replace("GENERATE", "GENRATE")
    with pytest.raises(PackError) as caught:
        load(a=wrong, b=GOOD, c="{", d=wrong.replace("node: read", "nodes: read"))
    assert [(m.file, m.line, m.path) for m in caught.value.mistakes] == [
        ("rules/a.yaml", 1, "version"),
        ("rules/a.yaml", 9, "instructions[0].instruction"),
        ("rules/c.yaml", 1, ""),
        ("rules/d.yaml", 1, "version"),
        ("rules/d.yaml", 8, "instructions[0].node"),
        ("rules/d.yaml", 8, "instructions[0].nodes"),
        ("rules/d.yaml", 9, "instructions[0].instruction"),
    ]
    assert (caught.value.file, caught.value.line) == ("rules/a.yaml", 1)
    assert caught.value.message == "expected 1, got 2"
    assert str(caught.value).count("\n") == 6


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"expected a folder of packs, got '.*rulse'"):
        load_bindings(tmp_path / "rulse")


def test_two_packs_of_one_name_are_a_mistake(load: Load) -> None:
    with pytest.raises(PackError) as caught:
        load(a=GOOD, b="# the same again\n" + GOOD)
    assert str(caught.value) == (
        "rules/b.yaml:3: name: expected a name of its own, got 'legal', which rules/a.yaml has"
    )


def test_a_pack_error_is_a_configuration_error_that_survives_pickling(load: Load) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(a="")
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, PackError)
    assert str(again) == str(caught.value)
    assert (again.file, again.line) == ("rules/a.yaml", 1)
