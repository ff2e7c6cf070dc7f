# `make demo` and `make test` need Python 3.11 or newer and make; all else is installed into .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Arguments for pip; an index of PyTorch without CUDA saves 3 GB: PIP_ARGS="--extra-index-url URL".
PIP_ARGS ?=
# Python compiles the modules that are imported, pip would compile all.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt $(PIP_ARGS)
INSTALLED := $(VENV)/.installed
DEMO_OUTPUT ?= demo-output
# Three processes, also on two cores: a third of the time tests wait for servers. PARALLEL= runs all tests in one.
PARALLEL ?= --numprocesses 3 --dist loadgroup --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help install demo test test-fast test-image test-hadoop check lint format docs reference bench bench-large bench-gpu constraints release clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[dev]'
	touch $@

install: $(INSTALLED) ## install everything into .venv

demo: $(INSTALLED) ## raw ids in, embeddings out: the Debian package graph
	$(BIN)/python demo/run.py $(DEMO_OUTPUT)

test: lint ## style, types, and the whole suite; parts that need java and mvn skip without them
	$(BIN)/pytest $(PARALLEL)

test-fast: $(INSTALLED) ## the quick tests, without servers; a minute and a half on two cores
	$(BIN)/pytest $(PARALLEL) -m "not slow and not hdfs and not yarn and not interop and not gpu and not image"

test-image: $(INSTALLED) ## build the Dockerfile and run its image, as root, with debootstrap and buildah; minutes
	$(BIN)/pytest -m image tests/whole/test_image.py

test-hadoop: $(INSTALLED) ## all of HDFS and YARN, with failover and Kerberos, which `test` tries once; minutes
	$(BIN)/pytest -m "hdfs or yarn"

check: lint ## style, types, and the layers of the house
	$(BIN)/pytest --quiet tests/whole/test_architecture.py

lint: $(INSTALLED)
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --num-workers 2
	$(BIN)/hadolint Dockerfile

format: $(INSTALLED) ## put the code in its one format
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --quiet --fix .

docs: $(INSTALLED) ## build the documentation into build/site; broken links and warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the site is build/site/index.html"

reference: $(INSTALLED) ## write the pages that are made from code and figures, and the schema of a configuration
	$(BIN)/graphmill schema > conf/graphmill.schema.json
	$(BIN)/graphmill schema --format markdown > docs/reference/configuration.md
	$(BIN)/python docs/commands_page.py > tests/graphmill/cli/help.txt
	$(BIN)/python docs/rooms_page.py
	$(BIN)/python -m bench.page docs/benchmarks/figures.json > docs/benchmarks/figures.md
	$(BIN)/python -m bench.page docs/benchmarks/large.json > docs/benchmarks/large.md

bench: $(INSTALLED) ## speed against PyTorch-BigGraph, DuckDB and the machine's own limits
	$(PIP) --editable '.[dev,bench]'
	$(BIN)/python -m bench --json docs/benchmarks/figures.json
	$(BIN)/python -m bench.page docs/benchmarks/figures.json > docs/benchmarks/figures.md

bench-large: $(INSTALLED) ## a billion edges, in 40 minutes and 70 GB of disk
	$(PIP) --editable '.[dev,bench]'
	$(BIN)/python -m bench billion --add --json docs/benchmarks/large.json
	$(BIN)/python -m bench.page docs/benchmarks/large.json > docs/benchmarks/large.md

bench-gpu: $(INSTALLED) ## training on a GPU, against its own limits; after the cases that gpu.json has; TRIPLES=folder of FB15k-237
	$(PIP) --editable '.[dev,bench]'
	$(BIN)/python -m bench gpu --add --json docs/benchmarks/gpu.json $(if $(TRIPLES),--triples $(TRIPLES))

constraints: ## pin the newest versions that fit pyproject.toml
	rm -rf $(VENV)-new && $(PYTHON) -m venv $(VENV)-new
	$(VENV)-new/bin/pip install --quiet 'torch==2.11.*' 'dask-cuda==26.10.*' --editable '.[dev,bench]'
	$(VENV)-new/bin/pip freeze --exclude-editable > constraints.txt
	rm -rf $(VENV)-new

release: check ## build wheel and sdist into dist/, and run a tiny pipeline from the wheel
	PYTHON=$(PYTHON) BIN=$(BIN) .ci/release

clean: ## remove what make made
	rm -rf $(VENV) $(VENV)-* .hadoop build dist $(DEMO_OUTPUT) .pytest_cache .mypy_cache .ruff_cache .hypothesis
