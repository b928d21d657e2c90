# make quickstart   install, then sweep -> fit -> allocate on real text into results/quickstart/ (a few minutes)
# make test         install, then ruff, mypy and the quick tests
# make test-slow    the slow tests as well
# Needs Python >= 3.11 and make, nothing else. Every step can be run again and is quick the second time.

PYTHON ?= python3
VENV   ?= .venv
OUT    ?= results/quickstart
BUDGET ?= 1e14
BIN    := $(VENV)/bin

# One thread a process: the sweep and the tests run one process per core.
export OMP_NUM_THREADS ?= 1

.PHONY: quickstart test test-slow lint install clean
.DELETE_ON_ERROR:

quickstart: install
	@# a fresh copy ships the table of the run shown in the README; this machine trains its own beside it
	@if [ -f $(OUT)/runs.csv ] && [ ! -d $(OUT)/runs ]; then mv $(OUT)/runs.csv $(OUT)/runs.shipped.csv; fi
	$(BIN)/scale sweep results/quickstart/grid.toml --out $(OUT)
	$(BIN)/scale fit $(OUT)/runs.csv --out $(OUT)/fit.json --plot $(OUT)/fit.png
	$(BIN)/scale allocate --budget $(BUDGET) --law $(OUT)/fit.json --vocab 256 --context 128 --plot $(OUT)/allocation.png
	@echo "Figures: $(OUT)/fit.png, $(OUT)/allocation.png"

test: lint
	$(BIN)/python -m pytest -q -n 2

test-slow: install
	$(BIN)/python -m pytest -q -m "slow and not gpu"

lint: install
	$(BIN)/ruff check .
	$(BIN)/mypy

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml .ci/install
	PYTHON="$(PYTHON)" VENV="$(VENV)" bash .ci/install
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis
