# `make` lists what there is. Each target makes the environment it needs, in .venv, when it first runs.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# A python3.11 that is only a name (a version manager's shim, say) does not count.
PYTHON ?= $(shell python3.11 -c "" 2>/dev/null && echo python3.11 || echo python3)
BIN := .venv/bin
RUN := $(BIN)/python
# Quiet twice: of an installation, only its errors are worth reading. Python compiles what is imported; most of the
# 14,000 files never are.
INSTALL := $(RUN) -m pip install -qq --no-compile --disable-pip-version-check
# Passed on to what a target runs, as in: make test ARGS="-k redirect"
ARGS ?=
# How large the slow tests are: small (minutes) or full.
ARBITER_STRESS ?= small
# One more than there are cores, as tests also wait, and not more than four, because a container may show the cores of its host.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 4 ? n + 1 : 4)))

.PHONY: help
help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: .venv/.plain ## watch a real graph being governed
	@$(RUN) examples/stdlib_assistant.py $(ARGS)

.PHONY: view
view: .venv/.dev ## see recorded payments in the browser, and answer the one that waits
	@$(RUN) examples/payments/viewer.py --open $(ARGS)

# Without its bytecode each process compiles all files at each run, which takes longer than most of them.
export PYTHONDONTWRITEBYTECODE :=
# Databases of tests wait for the disk: they are in memory where there is room.
test quick stress bounds: export TMPDIR := $(or $(TMPDIR),$(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 { print $$6 }'))

.PHONY: test
test: .venv/.dev ## run the tests (not the slow ones)
	@ARBITER_STRESS= $(RUN) -m pytest -n $(WORKERS) $(ARGS)

.PHONY: quick
quick: .venv/.dev ## run a case of each test that takes little: the whole suite in a minute
	@ARBITER_STRESS= $(RUN) -m pytest -n $(WORKERS) -m "not slow and not lengthy" --cases 1 $(ARGS)

.PHONY: check
check: .venv/.dev ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(RUN) -m mypy & mypy=$$!; $(RUN) -m pyright --project pyproject.toml --pythonpath $(RUN); pyright=$$?; \
		wait $$mypy && exit $$pyright

.PHONY: bench
bench: .venv/.dev ## measure what governing and rules cost, against bare LangGraph
	@failed=0; $(RUN) benchmarks/overhead.py $(ARGS) || failed=1; \
	for name in rules conditions constitution personas memory growth gate harness ledger telemetry store viewer; do $(RUN) benchmarks/$$name.py || failed=1; done; exit $$failed

.PHONY: wheel
wheel: .venv/.dev ## build the wheel, install it alone, run the demo from it
	@$(RUN) -m tests.wheel_check

.PHONY: docs
docs: .venv/.dev ## run the Python examples of README.md and docs/
	@$(RUN) -m tests.docs_check $(ARGS)

.PHONY: eval
eval: .venv/.dev ## measure the suites of the examples, and compare them with their baselines
	@$(RUN) -m arbiter eval run --ci suites/payments.yaml $(ARGS)
	@$(RUN) -m arbiter eval run --ci --mock suites/assistant.yaml $(ARGS)

.PHONY: stress
stress: .venv/.dev ## run the slow tests and more examples of each property (ARBITER_STRESS=full for full size)
	@ARBITER_STRESS=$(ARBITER_STRESS) $(RUN) -m pytest -n $(WORKERS) -m "slow or hypothesis" --timeout 1800 $(ARGS)

# This ray leaves files open.
OLD_WARNINGS := -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning
OLDEST := alembic==1.13.0 jinja2==3.1.4 pyarrow==17.0.0 ray==2.48.0 sqlalchemy==2.0.30 'datasets<4'

.PHONY: bounds
bounds: .venv/.oldest ## run the tests of the extras on the oldest releases that they allow
	@PYTHONPATH=$(CURDIR)/.venv/oldest $(RUN) -m pytest -n $(WORKERS) --dist loadfile -m "slow or not slow" $(OLD_WARNINGS) \
		tests/store tests/ledger/test_upgrades.py tests/harness/test_forms.py tests/harness/test_exports.py \
		tests/harness/test_distributed.py tests/web/test_pages.py $(ARGS)

.PHONY: clean
clean: ## remove the environment and everything that was built
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

# The package with nothing but its dependencies: all that the demo needs.
.venv/.plain: pyproject.toml | .venv/bin/python
	@echo "installing arbiteros into .venv (once)"
	@$(INSTALL) -e .
	@touch $@

# The same, and the tools of a developer. It counts as the plain one too.
.venv/.dev: pyproject.toml | .venv/bin/python
	@echo "installing arbiteros[dev] into .venv (once, a minute or two)"
	@$(INSTALL) -e '.[dev]'
	@touch .venv/.plain $@

# The oldest releases of the packages of extras that pyproject.toml allows, in a folder that hides the newer ones. Without
# their dependencies, which are there: to find a set of releases that fit takes pip minutes. datasets reads files of its
# own pyarrow.
.venv/.oldest: Makefile .venv/.dev
	@echo "installing the oldest releases of the extras into .venv/oldest (once)"
	@rm -rf .venv/oldest
	@$(INSTALL) --no-deps --target .venv/oldest $(OLDEST)
	@touch $@
