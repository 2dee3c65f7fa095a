# Two commands need nothing but Python 3.11 or newer and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NAME ?= post

.DEFAULT_GOAL := help
.PHONY: help demo test lint oracle rights bench soak install clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Made anew only when the requirements change; exact versions come from constraints.txt.
$(VENV)/made: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Tallystick needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}: make PYTHON=...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[warehouse,embedded,dev]'
	@touch $@

install: $(VENV)/made ## make the environment

demo: $(VENV)/made ## real traffic from bytes to bill, from nothing
	@$(BIN)/tallystick demo

# Two processes, each with servers of its own; a file stays whole, as its tests may share what is slow to make. Files come in
# the order of tests/conftest.py, not those of many tests first, which would leave the slowest files to the end.
JOBS ?= 2
test: $(VENV)/made ## every test: make test TESTS=tests/ledger for a part, JOBS=1 for one process
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(TESTS)

lint: $(VENV)/made ## style, types, and the contracts between the rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

oracle: $(VENV)/made ## hold recorded answers and priced expectations against our reading
	@$(BIN)/python -m tests.oracle

rights: $(VENV)/made ## write the pages of rights and the list of views' columns anew, after a change on purpose
	TALLYSTICK_WRITE_RIGHTS=1 $(BIN)/python -m pytest tests/ledger/test_rights.py -k 'page or views'

bench: $(VENV)/made ## a benchmark: make bench NAME=post (or ingest, decode), sizes by KEYS=, EVENTS=, PAIRS=
	@$(BIN)/python -m tests.bench $(NAME)

# What a run of the tests has no time for: SOAK times as many examples, other ones each time; kills, storms and whole
# stories a tenth of that often. SEEDS=1,2,3 names what failed.
SOAK ?= 20
soak: $(VENV)/made ## try far more than the tests do, for hours: make soak SOAK=100, TESTS= for a part
	SOAK=$(SOAK) $(BIN)/python -m pytest --timeout 0 -m 'hypothesis or soak' $(TESTS)

clean: ## forget the environment and the embedded stack's data
	rm -rf $(VENV) .tallystick
