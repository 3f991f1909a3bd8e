PYTHON ?= python3
VENV := .venv
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
EXE := .exe
else
BIN := $(VENV)/bin
endif
STAMP := $(VENV)/.installed
SOURCES := pyproject.toml papers/pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*/*)

# which C++ libraries to build: native, all, or a list such as "portable;v3"
export HOLDFAST_VARIANTS ?= native

.PHONY: help install reproduce test suite suite-torch test-cpp test-slow lint types coverage bench docs look notebooks sdist wheels papers-wheel check-tag try-wheel clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(BIN)/python$(EXE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "holdfast needs Python >= 3.11; set PYTHON=..."; exit 2; }
	$(PYTHON) -m venv $(VENV)

# the constraints reach the build environment too: without them a package that asks for torch brings CUDA along
$(STAMP): $(BIN)/python$(EXE) $(SOURCES)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet -e ".[dev]" -e "./papers[cluster]"
	@touch $@

install: $(STAMP)  ## make .venv and install holdfast with the tools to test it

reproduce: $(STAMP)  ## reproduce the papers' figures and tables at the quick preset, and write the page
	$(BIN)/holdfast doctor
	$(BIN)/holdfast reproduce --preset quick

lint: $(STAMP)  ## formatting and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)  ## static types
	$(BIN)/mypy

# COVERAGE=1 reports the share of lines that run, by file; it takes half as long again
COVER := $(if $(COVERAGE),--cov=holdfast --cov=holdfast_papers --cov-report=term:skip-covered --cov-fail-under=90)

test: lint types suite  ## lint, types and the test suite; with COVERAGE=1 also the share of lines that it runs

suite: $(STAMP)  ## the test suite alone
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow" $(COVER)

# past the constraints, which pin one torch: TORCH is what pip calls it, such as "torch==2.6.*" or "torch"
suite-torch: $(STAMP)  ## the test suite on another torch, which TORCH names; it stays in .venv
	$(BIN)/pip install --quiet --upgrade "$(TORCH)"
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

test-cpp:  ## the C++ tests of what the kernels share, without Python
	cmake -S . -B build/cpp -DHOLDFAST_TESTS=ON -DHOLDFAST_VARIANTS=native >/dev/null
	cmake --build build/cpp -j 2 --target holdfast_tests
	ctest --test-dir build/cpp --output-on-failure

test-slow: $(STAMP)  ## the tests that take long: twenty kills, a real Ray, sanitizers
	$(BIN)/pytest -n 2 --dist loadfile -m slow

coverage:  ## make test with the share of lines that it runs; below 90% is an error
	$(MAKE) test COVERAGE=1

bench: $(STAMP)  ## compare the kernels with their rooflines
	$(BIN)/holdfast bench

$(VENV)/.docs: $(STAMP)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet -e ".[docs]"
	@touch $@

docs: $(VENV)/.docs  ## build the documentation into build/site, with the page of our results; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/site
	$(BIN)/holdfast report --store docs/results --out build/site/results
	$(BIN)/python tools/check_site.py build/site
	$(BIN)/pytest -q tests/test_docs.py
	@echo "open build/site/index.html"

look: $(STAMP)  ## open the built site in Chromium, light and dark, desktop and phone, and say what is wrong with it
	$(BIN)/python tools/check_site.py build/site --browser --shots build/shots

notebooks: $(STAMP)  ## rewrite notebooks/ from the examples that they are made of
	$(BIN)/python tools/write_notebooks.py

# in place, as everything else: a copy of the package would hide the clone's own
$(VENV)/.release: $(STAMP)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet -e ".[release]"
	@touch $@

sdist: $(VENV)/.release  ## the source distribution of holdfast, into dist/holdfast
	$(BIN)/python -m build --sdist --outdir dist/holdfast

wheels: $(VENV)/.release  ## the wheel of holdfast for this system, into dist/holdfast
	$(BIN)/cibuildwheel --output-dir dist/holdfast

papers-wheel: $(VENV)/.release  ## wheel and source distribution of holdfast-papers, into dist/papers
	$(BIN)/python -m build --outdir dist/papers papers

check-tag:  ## whether TAG, such as v0.3.0, is the version of both distributions
	@for file in pyproject.toml papers/pyproject.toml; do \
		grep -qx 'version = "$(TAG:v%=%)"' $$file || { echo "$$file has another version than the tag $(TAG)"; exit 1; }; \
	done

try-wheel:  ## a wheel, and a source distribution without a compiler, each tried in an empty environment
	$(PYTHON) tools/try_distributions.py

clean:  ## remove everything that make made
	rm -rf $(VENV) build dist results docs/results/page docs/api docs/gallery docs/_figures .pytest_cache .mypy_cache .ruff_cache .hypothesis
