# Every target does its own set-up: .venv with the pinned releases, on a machine that has python3, git and make.
# The first time takes minutes (it downloads about 1 GB, the CUDA build of torch more), later runs a fraction of a second.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

# An installation counts while its interpreter runs and folder, pyproject.toml and constraints.txt are the same.
KEY := $(shell (pwd; cat pyproject.toml constraints.txt) | cksum | cut -d' ' -f1)
$(shell $(BIN)/python -c 'import pip' 2>/dev/null || rm -f $(VENV)/.ready-*)

.PHONY: help quickstart results/quickstart muse-mini results/muse-mini results results-all test test-full lint type docs
help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 20

quickstart: $(VENV)/.ready-quant-$(KEY) ## seven methods on the embedded benchmark: models, scores, tables, plots
	@$(BIN)/unlearnbench run quickstart

results/quickstart: quickstart ## the committed results of the quickstart, and the table in the README
	@$(BIN)/python -m unlearnbench.publish quickstart --out results/quickstart --readme README.md

muse-mini: $(VENV)/.ready-quant-$(KEY) ## the same seven methods on the embedded news
	@$(BIN)/unlearnbench run muse-mini

results/muse-mini: muse-mini ## the committed results of muse-mini
	@$(BIN)/python -m unlearnbench.publish muse-mini --out results/muse-mini

RESULTS := masc-tofu-mini masc-muse-news-mini masc-muse-books-mini masc-quantisation-mini masc-scaling-mini
MORE := stop-rule-ablation masc-ablation-mini open-unlearning-tofu-mini open-unlearning-muse-mini
PUBLISH = for name in $(1); do $(BIN)/unlearnbench reproduce $$name && \
	$(BIN)/python -m unlearnbench.publish $$name --out results/$$name || exit 1; done

results: $(VENV)/.ready-quant-$(KEY) ## the MASC paper in miniature: tables, pictures, verdicts and records, into results/
	@$(call PUBLISH,$(RESULTS))

results-all: results ## and the ablations and OpenUnlearning's tables in miniature
	@$(call PUBLISH,$(MORE))

test: $(VENV)/.ready-dev,quant-$(KEY) ## the test suite
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile tests

test-full: $(VENV)/.ready-dev,quant,ray-$(KEY) ## the test suite with the tests that take minutes or need Ray
	@$(BIN)/python -m pytest -q -m '' tests

lint: $(VENV)/.ready-dev,quant-$(KEY) ## ruff, and who may import whom
	@$(BIN)/ruff check . && $(BIN)/ruff format --check --quiet . && $(BIN)/lint-imports

type: $(VENV)/.ready-dev,quant-$(KEY) ## mypy, strict
	@$(BIN)/mypy

docs: $(VENV)/.ready-docs-$(KEY) ## the documentation site, into site/, its pages made from the code
	@$(BIN)/python -m unlearnbench.pages --out docs
	@$(BIN)/mkdocs build --strict --quiet && echo "site/index.html"

# .ready-EXTRAS-KEY: the package and its extras are installed. A venv that is broken, half made or was made in another
# folder is made anew. torch comes first and alone, so that its download shows a progress bar.
$(VENV)/.ready-%-$(KEY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "Python 3.10 or newer is needed, and $(PYTHON) is $$($(PYTHON) -V 2>&1); try: make PYTHON=python3.12" >&2; exit 2; }
	@echo "Setting up $(VENV) with the extras $*: minutes the first time."
	@grep -qsF '$(CURDIR)/$(VENV)' $(BIN)/activate && $(BIN)/python -m pip --version >/dev/null 2>&1 \
		|| $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt torch
	@$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[$*]'
	@find $(VENV) -maxdepth 1 -name '.ready-*' ! -name '*-$(KEY)' -delete
	@touch $@
