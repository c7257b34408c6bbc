# All targets work from a clean clone with python3 >= 3.11 and make; `make help` lists them.
PYTHON  ?= python3
PROFILE ?= quick
JOBS    ?= 2
SECONDS ?= 60
EXAMPLES ?= 3000
SEED    ?= 1
SELECT  ?=
NOTEBOOK ?=
SET     ?=
RELEASE ?=
BASE    ?= HEAD

VENV      := .venv
BIN       := $(VENV)/bin
INSTALLED := $(VENV)/installed.stamp
OLDEST    := _build/oldest
VALIDATORS := _build/validators
FUZZ      := _build/fuzz
# All tests but the long ones, which have targets of their own.
QUICK     := not book and not chaos and not dask and not exact and not flower and not liars and not load and not readers and not soak
NOTEBOOKS := $(wildcard notebooks/*.ipynb)
STUDY := PYTHONPATH=notebooks $(BIN)/python -m study
DOIT      := $(BIN)/python -m doit run --parallel-type thread --process $(JOBS) --continue
SELECTED  := $(if $(SELECT),-k '$(SELECT)')
PIP       := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# uv is several times as fast as pip, but does not read pip's configuration: pip is the second choice.
UV        := VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet
PINS      := sed -n 's/ *\\$$//; /^[a-z0-9]/p'
EXPORT    := $(BIN)/uv export --quiet --frozen --all-extras --no-extra peers --no-emit-project

ifeq ($(filter quick full,$(PROFILE)),)
$(error PROFILE must be quick or full, got $(PROFILE))
endif

# Containers often switch the bytecode off; then every process compiles every module that it imports.
export PYTHONDONTWRITEBYTECODE :=
# Use the kernel of this environment, not one called python3 in the user's home.
export JUPYTER_PREFER_ENV_PATH := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help install book pdf run verify crate check-crate record test test-audit test-book test-dask test-flower test-oldest test-exact test-locked test-liars test-models test-readers test-fuzz test-chaos test-load test-soak coverage lab format check lock build clean

help: ## list the targets
	@echo "usage: make TARGET [PROFILE=quick|full] [JOBS=2] [PYTHON=python3]"
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r target text; \
	  do printf '  %-12s %s\n' "$$target" "$$text"; done

install: $(INSTALLED) ## create .venv and install the locked packages and the project into it

$(INSTALLED): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not on the PATH: install Python 3.11 or later, or set PYTHON: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "fedlib needs Python 3.11 or later, but $(PYTHON) is $$($(PYTHON) -V 2>&1); set PYTHON to another one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: install its venv module (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing the locked packages into $(VENV); this takes minutes the first time"
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock >$(VENV)/uv.txt
	@$(PIP) --require-hashes -r $(VENV)/uv.txt
	@$(UV) --require-hashes -r requirements.lock || $(PIP) --require-hashes -r requirements.lock
	@$(PIP) --no-deps --no-build-isolation --editable .
	@$(BIN)/python -c 'import matplotlib.font_manager' # builds the font cache now, not in the output of a notebook
	@$(STUDY).building.compile_kernels # compiles them now, not in a page or a test
	@touch $@

book: $(INSTALLED) ## run the notebooks that changed and build the book (PROFILE=full: all experiments in full)
	@$(DOIT) book:$(PROFILE)
	@echo "the book is ready; open this page in a browser:"
	@echo "$(CURDIR)/_build/$(PROFILE)/html/index.html"

pdf: $(INSTALLED) ## print the whole book to one PDF with Chromium (PROFILE as for book)
	@$(DOIT) pdf:$(PROFILE)
	@echo "$(CURDIR)/_build/$(PROFILE)/book.pdf"

run: $(INSTALLED) ## run one notebook with other parameters or your own table: NOTEBOOK=kmeans SET="dataset=mine.csv"
	@$(STUDY).building.run notebooks/$(NOTEBOOK).ipynb _build/run/$(NOTEBOOK).ipynb \
	  --results-dir _build/run/results --set $(SET)
	@$(BIN)/jupyter nbconvert --to html --log-level ERROR _build/run/$(NOTEBOOK).ipynb
	@echo "the page is ready; open it in a browser:"
	@echo "$(CURDIR)/_build/run/$(NOTEBOOK).html"

verify: $(INSTALLED) ## measure one claim again (CLAIM=M1:passive:10:II:AMI), or list claims (LIST='K:*')
	@$(STUDY).claims.verify $(if $(LIST),--list '$(LIST)') $(if $(CLAIM),'$(CLAIM)')

crate: $(INSTALLED) ## write the records of all claims and the articles as an RO-Crate to _build/crate
	@$(STUDY).building.export --crate _build/crate
	@echo "the crate is ready: $(CURDIR)/_build/crate/ro-crate-metadata.json"

check-crate: crate ## validate the crate and CITATION.cff, in an environment of their own
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VALIDATORS)
	@VIRTUAL_ENV=$(VALIDATORS) $(BIN)/uv pip install --quiet "roc-validator==0.13.*" "cffconvert==2.0.*"
	@$(VALIDATORS)/bin/python notebooks/study/building/check_crate.py _build/crate CITATION.cff \
	  "$$($(BIN)/python -c 'from importlib.resources import files; print(files("rocrate") / "data/ro-crate.jsonld")')"

record: $(INSTALLED) ## compare all conversations, models, error texts, help texts and times with those of a commit (BASE=HEAD)
	@rm -rf _build/record && git worktree prune && git worktree add --quiet --detach _build/record/base $(BASE)
	@cd _build/record/base && ../../../$(BIN)/python ../../../tests/record.py ../base.json
	@git worktree remove --force _build/record/base
	@$(BIN)/python tests/record.py _build/record/now.json
	@$(BIN)/python tests/record.py --compare _build/record/base.json _build/record/now.json

# One process more than JOBS, because tests wait for servers and sites a quarter of the time.
test: $(INSTALLED) ## run the tests and doctests
	@$(BIN)/python -m pytest -m "$(QUICK)" --numprocesses $$(($(JOBS) + 1)) --dist loadfile

test-book: $(INSTALLED) ## check the pages of a built book in Chromium; takes minutes
	@$(BIN)/python -m pytest -m book --numprocesses $(JOBS) --dist loadgroup tests/book

test-readers: $(INSTALLED) ## run every page that takes a table with tables of a reader, and others with other parameters; takes a quarter of an hour
	@$(BIN)/python -m pytest -m readers --numprocesses $(JOBS) tests/book/test_examples.py

test-flower: $(INSTALLED) ## run every protocol in Flower's simulation, and one deployment (at most 20 minutes)
	@timeout --foreground --signal=INT --kill-after=60 1200 $(BIN)/python -m pytest -m flower tests/transports

test-locked: $(INSTALLED) ## compare every objective and parameter of boosting with the locked XGBoost, node by node
	@$(BIN)/python -m pytest -m exact --numprocesses $(JOBS) tests/boosting

# The releases are in tests/boosting/xgboost_releases.txt; each has an environment of its own.
test-exact: $(INSTALLED) ## compare every objective and parameter of boosting with three releases of XGBoost (RELEASE=newest: one), node by node; takes minutes
	@tests/boosting/compare_releases.sh $(BIN) $(JOBS) $(RELEASE)

test-dask: $(INSTALLED) ## run protocols on worker processes of Dask and kill some of them; takes minutes
	@timeout --foreground --signal=INT --kill-after=60 900 $(BIN)/python -m pytest -m dask tests/transports/dask

test-liars: $(INSTALLED) ## run every protocol with 1,000 random runs (LIARS_EXAMPLES=1000), every fault and malformed calls; takes hours
	@$(BIN)/python -m pytest -m liars $(SELECTED) --numprocesses $(JOBS) \
	  tests/test_random_replies.py tests/test_liars.py tests/book/test_faults.py tests/transports/http/test_attacks.py

# Kernels compiled anew check every index, so they do not use those kept in __pycache__.
test-models: $(INSTALLED) ## load and use 100,000 changed model files (MODEL_MUTATIONS=100000) with kernels that check their indices
	@NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(CURDIR)/.venv/checked MODEL_MUTATIONS=$${MODEL_MUTATIONS:-100000} \
	  $(BIN)/python -m pytest --numprocesses $(JOBS) tests/sites/test_mutated_models.py

# Atheris has wheels for few versions of Python, so it has an environment of its own.
test-fuzz: $(INSTALLED) ## run the decoder, the sessions and the web server under a coverage-guided fuzzer (SECONDS=60)
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(FUZZ)
	@VIRTUAL_ENV=$(FUZZ) $(BIN)/uv pip install --quiet --editable ".[http]" "atheris>=3" "hypothesis>=6.150"
	@for target in decode sessions http; do NUMBA_CACHE_DIR=$(CURDIR)/$(FUZZ)/numba $(FUZZ)/bin/python tests/fuzz/run.py $$target $$(($(SECONDS) / 3)) || exit 1; done

test-audit: $(INSTALLED) ## send hostile requests for neighbouring tables (EXAMPLES=3000 per protocol, SEED=1); takes an hour
	@AUDIT_EXAMPLES=$(EXAMPLES) AUDIT_SEED=$(SEED) $(BIN)/python -m pytest --numprocesses $(JOBS) tests/protection/test_audit.py

test-chaos: $(INSTALLED) ## kill servers and sites at every step of every protocol (SELECT=both: in fewer runs)
	@$(BIN)/python -m pytest -m chaos $(SELECTED) --numprocesses $(JOBS) tests/cli

test-soak: $(INSTALLED) ## run mixed protocols over HTTP with random kills (SOAK_RUNS=200); takes a quarter of an hour
	@$(BIN)/python -m pytest -m soak tests/cli/test_soak.py

test-load: $(INSTALLED) ## run 10,000 sites on this machine and compare their memory with what is promised
	@$(BIN)/python -m pytest -m load tests/transports tests/tables/test_files.py

# Each version of Numba has a cache of its own. Numba writes an index before the files that the index
# names, so in a shared cache a process could load a file that another version left.
test-oldest: $(INSTALLED) ## run the promises of all protocols, the core and the kernels with the oldest dependencies that pyproject.toml allows
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(OLDEST)
	@VIRTUAL_ENV=$(OLDEST) $(BIN)/uv pip install --quiet --resolution lowest-direct --editable ".[http,xgboost,test]"
	@NUMBA_CACHE_DIR=$(CURDIR)/$(OLDEST)/numba $(OLDEST)/bin/python -m pytest -m "$(QUICK)" --numprocesses $(JOBS) \
	  tests/test_conformance.py tests/core tests/kernels -W default::DeprecationWarning -W default::FutureWarning

# Plain Python warns when a kernel's 64-bit hash overflows, which is intended.
coverage: $(INSTALLED) ## run the tests with the kernels as plain Python and list the lines not reached
	@NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -m "not jit and $(QUICK)" \
	  -W "ignore:overflow encountered in scalar:RuntimeWarning" \
	  -W "ignore:invalid value encountered in divide:RuntimeWarning" \
	  -W "ignore:divide by zero encountered in divide:RuntimeWarning" --cov --cov-report=term-missing:skip-covered

lab: $(INSTALLED) ## open the notebooks in JupyterLab
	@$(BIN)/python -m jupyterlab --notebook-dir=notebooks

format: $(INSTALLED) ## format the code, apply ruff's fixes, strip the outputs of notebooks
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .
	@$(if $(NOTEBOOKS),$(BIN)/nbstripout $(NOTEBOOKS))

check: $(INSTALLED) ## check style, types, notebooks without outputs, and the lock
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(if $(NOTEBOOKS),$(BIN)/nbstripout --verify $(NOTEBOOKS))
	@$(BIN)/uv lock --check
	@mkdir -p _build
	@$(EXPORT) --no-header --output-file _build/requirements.lock >/dev/null
	@grep -v '^#' requirements.lock | diff - _build/requirements.lock >/dev/null || { echo "requirements.lock does not match uv.lock: run make lock" >&2; exit 1; }

lock: $(INSTALLED) ## resolve pyproject.toml into uv.lock, requirements.lock and environment.lock, and rewrite codemeta.json
	@$(BIN)/uv lock
	@$(EXPORT) --output-file requirements.lock
	@$(PINS) requirements.lock >environment.lock
	@$(STUDY).building.export --codemeta

build: $(INSTALLED) ## build the wheel and the source distribution into dist/
	@$(BIN)/python -m build --no-isolation

clean: ## remove everything built, except .venv
	rm -rf _build dist .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find fedlib tests book notebooks -name __pycache__ -prune -exec rm -rf {} +
