"""A hundred packs that are wrong, each with what has to be said about it.

`BAD` maps a name to the file's content and the texts that the one error has to hold; `{file}` stands for its name. A
content that starts with "version" is a whole file, else it is put behind a sound head of three lines.
"""

from __future__ import annotations

from collections.abc import Callable

HEAD = "version: 1\nname: it\ndescription: A test.\n"
Content = str | bytes | Callable[[], bytes]
BAD: dict[str, tuple[Content, tuple[str, ...]]] = {}


def bad(name: str, content: Content, *expected: str) -> None:
    assert name not in BAD
    assert expected
    BAD[name] = (content, expected)


def rule(text: str, section: str = "checkers") -> str:
    """A pack with one rule, on line 5."""
    return f"{section}:\n  - {{{text}}}\n"


FORBID = "name: x, use: forbid_sequence, bad_sequence: [LOAD]"

bad(
    "a-date-for-a-name",
    rule("name: 2024-01-01, use: at_most, times: 1"),
    "{file}:5: checkers[0].name: expected a text, got datetime.date(2024, 1, 1). YAML reads dates so unless they are "
    "in quotes",
)
# What is no YAML, or more than a pack may be
bad("empty", b"", "{file}:1: expected a mapping, got an empty file")
bad("only-a-comment", b"# nothing\n", "{file}:1: expected a mapping, got an empty file")
bad("a-list", b"- a\n- b\n", "{file}:1: expected a mapping")
bad("a-text", b"hello\n", "{file}:1: expected a mapping")
bad("a-number", b"3\n", "{file}:1: expected a mapping")
bad("null", b"null\n", "{file}:1: expected a mapping")
bad(
    "tabs",
    b"version: 1\nname: x\ncheckers:\n\t- name: y\n",
    "{file}:4: expected YAML",
    "cannot start any token. Check the indentation (no tabs), brackets and quotes",
)
bad("unclosed-bracket", b"version: [1\nname: x\n", "{file}:2: expected YAML")
bad("unclosed-quote", b'version: 1\nname: "x\n', "expected YAML")
bad("bad-indent", b"version: 1\n  name: x\n", "{file}:2: expected YAML", "Check the indentation")
bad("two-documents", b"version: 1\n---\nversion: 1\n", "expected YAML", "single document")
bad("not-utf-8", b"version: 1\nname: \xff\xfe\n", "{file}:2: expected UTF-8 text")
bad("latin-1", "version: 1\nname: café\n".encode("latin-1"), "{file}:2: expected UTF-8 text")
bad("utf-16", "version: 1\n".encode("utf-16"), "{file}:1: expected UTF-8 text")
bad(
    "control-characters",
    b"version: 1\nname: \x00\n",
    "{file}:1: expected YAML, got a file with control characters",
)
bad("a-bell", b"version: 1\nname: a\x07\n", "control characters")
bad(
    "50-megabytes",
    lambda: b"version: 1\n#" + b"x" * 50_000_000,
    "{file}:1: expected at most 262144 bytes, got more",
)
bad("just-too-large", lambda: b"#" * 262_145, "expected at most 262144 bytes")
bad(
    "depth-10000-flow",
    lambda: b"version: " + b"[" * 10_000,
    "expected at most 20 levels of nesting, got more",
)
bad(
    "depth-10000-mappings",
    lambda: b"a: " + b"{b: " * 10_000,
    "expected at most 20 levels of nesting, got more",
)
bad(
    "depth-block",
    "\n".join("  " * depth + "a:" for depth in range(200)).encode(),
    "expected at most 20 levels of nesting, got more",
)
bad(
    "many-values",
    lambda: b"version: 1\ncheckers: [" + b"1," * 30_000 + b"]",
    "expected at most 20000 values, got more",
)
LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [" + ",".join([f"*{chr(97 + i)}"] * 9) + "]\n" for i in range(8)
)
bad("billion-laughs", LAUGHS.encode(), "expected at most 20000 values, got more")
bad("an-alias-to-itself", b"version: &v [*v]\n", "expected")
bad("an-alias-in-a-mapping-to-itself", b"a: &a {b: *a}\n", "expected")
bad("an-unknown-alias", b"version: *nobody\n", "{file}:1: expected YAML", "undefined alias")
bad(
    "python-object",
    "version: !!python/object:os.system {}\n",
    "expected plain YAML, got the tag",
    "python/object",
)
bad("python-apply", "version: !!python/object/apply:os.system ['true']\n", "expected plain YAML, got the tag")
bad("python-name", "version: !!python/name:os.system ''\n", "expected plain YAML")
bad("own-tag", "version: !secret abc\n", "expected plain YAML")
bad(
    "a-negation-without-quotes",
    "checkers:\n  - name: x\n    use: condition\n    deny_when: !has(input.text)\n",
    "{file}:7: checkers[0].deny_when: expected plain YAML, got the tag '!has(input.text)'. "
    "Put a text that begins with ! in quotes",
)
bad("binary-tag", "version: !!binary aGk=\n", "{file}:1: version: expected 1")
bad("bad-date", HEAD.replace("A test.", "2024-99-99"), "{file}:3: description: expected plain YAML")
bad("bool-tag", HEAD.replace("A test.", "!!bool maybe"), "{file}:3: description: expected plain YAML")
bad("a-set", HEAD + "extends: !!set {a, b}\n", "{file}:4: extends: expected plain YAML")
bad("key-twice", HEAD + "name: again\n", "{file}:4: name: expected once, got again after line 2")
bad(
    "key-twice-inside",
    rule("name: x, use: forbid_sequence, use: budget"),
    "{file}:5: checkers[0].use: expected once",
)
bad("a-number-as-key", HEAD + "3: x\n", "{file}:4: expected a text as key, got '3'")
bad("a-list-as-key", HEAD + "? [a]\n: x\n", "{file}:4: expected a text as key, got a sequence")
bad("null-as-key", HEAD + "~: x\n", "{file}:4: expected a text as key, got '~'")
bad("a-merge-key", HEAD + "<<: {name: x}\n", "{file}:4: expected a text as key")

# The head of a pack
bad("no-version", b"name: x\ndescription: y\n", "{file}:1: version: expected a value, got nothing")
bad("no-name", b"version: 1\ndescription: y\n", "{file}:1: name: expected a value, got nothing")
bad("no-description", b"version: 1\nname: x\n", "{file}:1: description: expected a value, got nothing")
bad("version-2", HEAD.replace("1", "2"), "{file}:1: version: expected 1, got 2")
bad("version-text", HEAD.replace("1", "'1'"), "{file}:1: version: expected 1, got '1'")
bad("version-true", HEAD.replace("1", "true"), "{file}:1: version: expected 1, got 'True'")
bad(
    "name-with-blanks", HEAD.replace("it", "my pack"), "{file}:2: name: expected a text like", "got 'my pack'"
)
bad("name-in-capitals", HEAD.replace("it", "Pack"), "{file}:2: name: expected a text like")
bad("name-empty", HEAD.replace("it", "''"), "{file}:2: name: expected a text like")
bad("name-a-number", HEAD.replace("it", "3"), "{file}:2: name: expected a text, got 3")
bad("name-a-path", HEAD.replace("it", "../other"), "{file}:2: name: expected a text like")
bad(
    "description-empty",
    HEAD.replace("A test.", "''"),
    "{file}:3: description: expected a text that is not empty",
)
bad("description-null", HEAD.replace("A test.", ""), "{file}:3: description: expected a text, got None")
bad("unknown-key", "checker: []\n", "{file}:4: checker: expected one of", "Did you mean 'checkers'?")
bad("unknown-mode", "mode: strict\n", "{file}:4: mode: expected 'enforce', 'audit' or 'off', got 'strict'")
bad(
    "mode-off-unquoted",
    "mode: off\n",
    "{file}:4: mode: expected 'enforce', 'audit' or 'off', got False. YAML reads on, off,",
    "in quotes",
)
bad("rule-mode-off-unquoted", rule(FORBID + ", mode: off"), "checkers[0].mode: expected", "in quotes")
bad(
    "a-pattern-as-target",
    rule(FORBID + ", target_nodes: [a, 'pay*']"),
    "{file}:5: checkers[0].target_nodes[1]: expected the name of a node, got 'pay*'. Patterns are for `instr",
)
bad(
    "unknown-key-of-an-argument",
    rule("name: x, use: tools, allow: [{tool: a, arguments: {p: {undr: b}}}]"),
    "{file}:5: checkers[0].allow[0].arguments.p.undr: expected one of ",
    "Did you mean 'under'?",
)
bad(
    "unknown-key-of-a-tool",
    rule("name: x, use: tools, allow: [{tool: a, whn: 'true'}]"),
    "{file}:5: checkers[0].allow[0].whn: expected one of arguments, reason, tool, when, got 'whn'",
)
bad("extends-a-text", "extends: base\n", "{file}:4: extends: expected a list, got 'base'")
bad(
    "extends-nobody",
    "extends: [nobody]\n",
    "{file}:4: extends[0]: expected the name of a pack, got 'nobody'. Packs: it.",
)
bad("extends-itself", "extends: [it]\n", "{file}:4: extends[0]", "circle: it → it")
bad(
    "extends-unknown-shipped",
    "extends: ['arbiter:kernl']\n",
    "got 'arbiter:kernl'. Did you mean 'arbiter:kernel'?",
)
bad("extends-a-path", "extends: [../../etc/passwd]\n", "{file}:4: extends[0]: expected the name of a pack")
bad("match-empty", "match: [{}]\n", "{file}:4: match[0]: expected metadata or nodes, got neither")
bad(
    "match-names-only",
    "match: [{nodes: {model: agent}}]\n",
    "{file}:4: match[0].nodes.model: expected where the node's",
)

# Instructions
bad("unknown-instruction", rule("node: a, instruction: GENERTE", "instructions"), "Did you mean 'GENERATE'?")
bad(
    "binding-without-node",
    rule("instruction: GENERATE", "instructions"),
    "instructions[0].node: expected a value",
)
bad(
    "binding-with-more",
    rule("node: a, instruction: LOAD, x: 1", "instructions"),
    "{file}:5: instructions[0].x",
)
bad(
    "binding-to-a-list",
    rule("node: [a], instruction: LOAD", "instructions"),
    "instructions[0].node: expected a text",
)
bad("binding-a-text", "instructions: [LOAD]\n", "{file}:4: instructions[0]: expected a mapping, got 'LOAD'")
bad(
    "core-without-members",
    rule("core: MyCore, members: {}", "instructions"),
    "instructions[0].members: expected at",
)
bad(
    "core-in-small-letters",
    rule("core: my, members: {A: {meaning: a}}", "instructions"),
    "instructions[0].core",
)
bad("core-that-is-ours", rule("core: MemoryCore, members: {A: {meaning: a}}", "instructions"), "Rename yours")
bad(
    "member-in-small-letters",
    rule("core: ACore, members: {a: {meaning: a}}", "instructions"),
    "instructions[0]",
)
bad(
    "member-without-meaning",
    rule("core: BCore, members: {A: {acts: true}}", "instructions"),
    "meaning: expected a value",
)
bad(
    "member-acts-yes",
    rule("core: CCore, members: {A: {meaning: a, acts: 1}}", "instructions"),
    "acts: expected true or",
)

# Rules
bad(
    "a-rule-that-is-a-text", "checkers: [budget]\n", "{file}:4: checkers[0]: expected a mapping, got 'budget'"
)
bad("rules-as-a-mapping", "checkers: {x: {use: budget}}\n", "{file}:4: checkers: expected a list")
bad(
    "rule-without-name",
    rule("use: forbid_sequence"),
    "{file}:5: checkers[0].name: expected a text, got nothing",
)
bad("rule-name-empty", rule("name: '', use: forbid_sequence"), "checkers[0].name: expected a text, got ''")
bad(
    "rule-name-no",
    rule("name: no, use: at_most, times: 1"),
    "checkers[0].name: expected a text, got False. YAML reads on, off, yes and no so unless",
)
bad("rule-name-a-number", rule("name: 3, use: forbid_sequence"), "checkers[0].name: expected a text, got 3")
bad(
    "rule-without-use",
    rule("name: x"),
    "{file}:5: checkers[0]: expected `use`, the kind of the rule, got nothing",
)
bad(
    "a-sequence-with-an-unknown-instruction",
    "checkers:\n  - name: x\n    use: forbid_sequence\n    bad_sequence: [GENERATE, RESPND]\n",
    "{file}:7: checkers[0].bad_sequence: expected the name of an instruction, got 'RESPND'. "
    "Did you mean 'RESPOND'?",
)
bad(
    "the-name-of-an-extended-rule-misspelt",
    "extends: [arbiter:kernel]\n" + rule("name: model_call, times: 10"),
    "{file}:6: checkers[0]: expected `use`, the kind of the rule, got nothing. Did you mean 'model_calls'?",
)
bad(
    "targets-for-a-rule-that-had-none",
    "extends: [arbiter:kernel]\n" + rule("name: model_calls, target_nodes: pay"),
    "{file}:6: checkers[0].target_nodes: expected none, got ['pay']; it changes the rule at",
)
bad(
    "a-weight-of-a-part",
    rule("name: x, use: weighted, weights: {quality: -1}", "evaluators"),
    "{file}:5: evaluators[0].weights.quality: expected a number above 0",
)
bad(
    "a-model-without-a-provider",
    rule("name: x, use: judge, rubric: Good., model: grader", "evaluators"),
    "Write a name like 'openai:gpt-5-mini', or pass models={'grader': ...}.",
)
bad(
    "the-state-in-a-condition-on-an-output",
    rule("name: x, use: condition, pass_when: state.amount > 1", "evaluators"),
    "there is no variable 'state'. Write input.",
)
bad("no-list", "checkers:\n", "{file}:4: checkers: expected a list, got None. Write [] for none")
bad("a-text-for-a-list", "extends: arbiter:kernel\n", "got 'arbiter:kernel'. Write [arbiter:kernel]")
bad("a-mapping-for-a-list", "checkers:\n  x:\n    use: at_most\n", "Begin each entry with '- '")
bad("rule-use-a-list", rule("name: x, use: [budget]"), "checkers[0].use: expected the kind of the rule")
bad("unknown-kind", rule("name: x, use: budgets"), "{file}:5: checkers[0].use", "Did you mean 'budget'?")
bad(
    "a-kind-of-another-section",
    rule("name: x, use: judge"),
    "checkers[0].use: expected one of approval",
    "'judge' is an evaluator; move the rule to `evaluators:`.",
)
bad(
    "a-kind-of-two-other-sections",
    "routers:\n  - {name: x, use: condition}\n",
    "routers[0].use: expected one of ",
    "'condition' is a checker or an evaluator; move the rule to `checkers:` or `evaluators:`.",
)
bad(
    "outside-the-allow-list",
    rule("name: x, use: os.system"),
    "expected a class or function under an allowed prefix (none), got 'os.system'. "
    "Pass allow=['os.'] where the constitution is loaded, or --allow os. in a shell, if you trust it",
)
bad(
    "a-path-with-a-traversal",
    rule("name: x, use: ..os.system"),
    "expected a class or function under an allowed prefix",
)
bad(
    "two-rules-of-one-name",
    rule(FORBID) + f"  - {{{FORBID}}}\n",
    "{file}:6: checkers[1].name: expected a name of its",
)
bad(
    "checker-and-router-of-one-name",
    rule(FORBID) + rule("name: x, use: metric_below, key: a, threshold: 1, target: b", "routers"),
    "{file}:7: routers[0].name: expected a name of its own",
)
bad(
    "unknown-parameter",
    rule(FORBID + ", adjacnt: true"),
    "{file}:5: checkers[0].adjacnt",
    "Did you mean 'adjacent'?",
)
bad(
    "missing-parameter",
    rule("name: x, use: forbid_sequence"),
    "checkers[0].bad_sequence: expected a value, got nothing",
)
bad(
    "wrong-type",
    rule("name: x, use: at_most, times: '1,000', target_nodes: [a]"),
    "checkers[0].times: expected a whole number, got '1,000'. Write 1000",
)
bad(
    "a-number-for-true", rule(FORBID + ", adjacent: 1"), "checkers[0].adjacent: expected true or false, got 1"
)
bad(
    "unknown-target-instruction",
    rule(FORBID + ", target_instructions: [TOLL_CALL]"),
    "target_instructions[0]",
    "Did you mean 'TOOL_CALL'?",
)
bad("no-targets", rule(FORBID + ", target_nodes: []"), "checkers[0].target_nodes: expected at least one")
bad("unknown-on-deny", rule(FORBID + ", on_deny: explode"), "{file}:5: checkers[0].on_deny", "got 'explode'")
bad(
    "unknown-rule-mode",
    rule(FORBID + ", mode: maybe"),
    "checkers[0].mode: expected 'enforce', 'audit' or 'off'",
)
bad("override-of-nothing", rule(FORBID + ", override: true"), "checkers[0].override", "got none to override")
bad(
    "override-yes",
    rule(FORBID + ", override: please"),
    "checkers[0].override: expected true or false, got 'please'",
)
bad(
    "loosened-kernel",
    "extends: ['arbiter:kernel']\ncheckers:\n  - {name: model_calls, times: 100000}\n",
    "{file}:6: checkers[0].times: expected at most",
)
bad(
    "cel-syntax",
    rule('name: x, use: condition, deny_when: "input.amount >"'),
    "{file}:5: checkers[0].deny_when",
)
bad(
    "cel-unknown-variable",
    rule('name: x, use: condition, deny_when: "inptu.amount > 1"'),
    "checkers[0].deny_when",
    "input",
)
bad(
    "cel-not-a-text",
    rule("name: x, use: condition, deny_when: true"),
    "checkers[0].deny_when: expected a text, got True",
)
bad(
    "threshold-a-text",
    rule("name: q, use: threshold, key: a, threshold: high", "evaluators"),
    "evaluators[0].threshold: expected a number, got 'high'",
)
for number in (".nan", ".inf", "-.inf", "'0.5'", "true"):
    bad(
        f"metric-below-{number}",
        rule(f"name: x, use: metric_below, key: a, target: b, threshold: {number}", "routers"),
        "{file}:5: routers[0].threshold: expected a",
    )
bad(
    "deadline-infinite",
    rule("name: x, use: tools, allow: [a], deadline: .inf"),
    "{file}:5: checkers[0].deadline: expected a finite number, got inf",
)
bad(
    "weights-nan",
    rule("name: w, use: weighted, weights: {a: .nan}", "evaluators"),
    "evaluators[0].weights.a: expected a finite number, got nan",
)
bad(
    "schema-with-a-misspelt-keyword",
    rule("name: x, use: schema, input: {type: object, requird: [a]}"),
    "{file}:5: checkers[0].input: expected keywords of JSON Schema, got 'requird'. Did you mean 'required'?",
)
bad(
    "schema-of-fields",
    rule("name: x, use: schema_valid, schema: {answer: {type: string}}", "evaluators"),
    "{file}:5: evaluators[0].schema: expected keywords of JSON Schema, got 'answer'.",
    "under properties",
)
bad("budget-of-nothing", rule("name: x, use: budget"), "{file}:5: checkers[0]")
bad("tools-without-lists", rule("name: x, use: tools"), "{file}:5: checkers[0]")
bad(
    "weights-negative",
    rule("name: w, use: weighted, weights: {a: -1}", "evaluators"),
    "evaluators[0].weights",
)

# A mistake in what every rule may say, beside another one
ON_DENY = "checkers[0].on_deny: expected 'raise', 'redirect:<node>', 'end' or 'audit', got 'explode'"
for other, said in {
    "calls: many": "checkers[0].calls: expected a whole number, got 'many'",
    "calls: -1": "checkers[0].calls: expected a whole number above 0, got -1",
    "cals: 3": "checkers[0].cals: expected one of",
}.items():
    bad(f"on-deny-beside-{other}", rule(f"name: x, use: budget, on_deny: explode, {other}"), said, ON_DENY)
bad("on-deny-alone", rule("name: x, use: budget, calls: 3, on_deny: explode"), ON_DENY)
bad(
    "on-deny-redirects-nowhere",
    rule("name: x, use: budget, on_deny: 'redirect:'"),
    "got 'redirect:'",
    "got none",
)
bad("on-deny-and-no-condition", rule("name: x, use: condition, on_deny: explode"), "deny_when", ON_DENY)
for use in ("budgit", "own.Checker", "''"):
    bad(
        f"common-parameters-of-{use}",
        rule(
            f"name: x, use: {use}, on_deny: explode, deadline: -1, target_nodes: ['a*'], target_instructions: NOPE"
        ),
        "checkers[0].use: expected",
        ON_DENY,
        "checkers[0].deadline: expected seconds above 0, got -1",
        "checkers[0].target_nodes[0]: expected the name of a node, got 'a*'",
        "checkers[0].target_instructions: expected the name of an instruction, got 'NOPE'",
    )
bad(
    "common-parameters-of-an-unknown-router",
    rule("name: x, use: escalat, max_redirects: -1, target_nodes: []", "routers"),
    "Did you mean 'escalate'?",
    "routers[0].max_redirects: expected a whole number from 0, got -1",
    "routers[0].target_nodes: expected at least one, got []",
)
bad(
    "on-reject-and-no-evaluator",
    rule("name: x, use: escalate, on_reject: explode, below: abc, max_redirects: -1", "routers"),
    "routers[0].below: expected a number, got 'abc'",
    "routers[0].max_redirects: expected a whole number from 0, got -1",
    "routers[0].on_reject: expected 'raise', 'redirect:<node>' or 'end', got 'explode'",
)
