# Each target makes what it needs: an environment in .venv, from any Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 2
TESTS ?=
# SHAPES=1 checks every annotated shape and type at every call, which takes a fifth longer.
SHAPES ?=
PARITY ?= parity and not slow
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 15 \
	$(if $(SHAPES),--jaxtyping-packages=flax_transformer$(comma)beartype.beartype)
comma := ,
# Modules that are compiled once serve all the processes that tests start; some containers set it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test slow soak lint format parity matrix docs clean

$(BIN)/.demo: pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"Python 3.11 or newer is needed, {sys.executable} is {v[0]}.{v[1]}; try make PYTHON=python3.12 ...")'
	@echo "installing into $(VENV) (once, about a minute)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e . 2>$(VENV)/install.log || { cat $(VENV)/install.log; exit 1; }
	@touch $@

$(BIN)/.dev: $(BIN)/.demo
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' 2>$(VENV)/install.log || { cat $(VENV)/install.log; exit 1; }
	@touch $@

# Large pages for the C library's allocator: a training step on CPU then spends far less time in page faults.
demo: export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
demo: $(BIN)/.demo  ## train a translator of number words and try it
	@$(BIN)/python experiments/translate_numbers.py --workdir runs/translate_numbers

# A sixtieth of the long tests is among them, another one every day; TURN=3 asks for one.
test: $(BIN)/.dev  ## all tests that need no torch, but for the slow ones
	@$(PYTEST) -m "not parity and not slow and not soak" $(TESTS)

slow: $(BIN)/.dev  ## the slow tests that need no torch
	@$(PYTEST) -m "(slow or rotates) and not parity" $(TESTS)

soak: $(BIN)/.dev  ## kill, preempt and resume a run again and again; TRIALS=24
	@$(BIN)/python -m pytest -n 0 -m soak tests/reliability

# Those that take long take turns as above, and a third of the cases of others runs; PARITY=parity asks for all of them.
parity: $(BIN)/.dev  ## the tests against torch and transformers; Python 3.11
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,parity]' 2>$(VENV)/install.log || { cat $(VENV)/install.log; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps 'jax2onnx>=0.17' 2>$(VENV)/install.log || { cat $(VENV)/install.log; exit 1; }
	@$(PYTEST) -m "$(PARITY)" $(TESTS)

lint: $(BIN)/.dev  ## formatting, style, and who may import whom
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports

format: $(BIN)/.dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

matrix: $(BIN)/.dev  ## docs/matrix.md, of what the tests say they prove
	@PYTHONPATH=. $(BIN)/python tests/matrix.py

docs: export NO_MKDOCS_2_WARNING = 1
docs: $(BIN)/.dev  ## the documentation site, in site/; a warning is an error, and so is a link that leads nowhere
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,docs]' 2>$(VENV)/install.log || { cat $(VENV)/install.log; exit 1; }
	@$(BIN)/python -m mkdocs build --quiet --strict --config-file website/mkdocs.yml
	@$(BIN)/python -m website.link site

clean:
	rm -rf $(VENV) runs site .programs .pytest_cache .ruff_cache
