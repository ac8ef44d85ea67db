# Every target sets up first: a virtual environment in .venv with rf (editable) and all that it needs, at the versions of
# constraints.txt. Set-up runs again only after a change of what it depends on.
#
#   make profile   the main job: profile one training step
#   make test      all tests, on both cores
#   make tiny      the tests that take seconds
#   make check     format, lint, types, layering
#   make format    put everything into format
#   make bench     time each op against the backend's own call
#   make bench-check  count instructions of the frontend, and compare with tools/budget.toml
#   make debug     tests of the core on a build with address and undefined-behavior sanitizers
#   make clean     remove what builds made, .venv included
#
# Variables: PYTHON (makes the .venv), CXX (compiler of the native core), JOBS (test processes), PYTEST_FLAGS.

PYTHON ?= python3
JOBS ?= $(shell nproc 2>/dev/null || echo 1)
PYTEST_FLAGS ?=
# What `make test` repeats on the Python core: all but what is about builds, or starts other processes to measure them.
PYTHON_CORE_TESTS ?= tests $(addprefix --ignore=tests/test_,\
	bench_core.py bench_keras.py bench_models.py import.py native_fused.py native_lstm.py native_torch.py packaging.py)
# What `make debug` runs on the sanitizer build.
DEBUG_TESTS ?= $(wildcard tests/core tests/test_core*.py tests/test_native*.py)

VENV := .venv
BIN := $(VENV)/bin
EXTRAS := torch,profile,audio,test,dev
NATIVE := $(wildcard rf/_native/*.cpp rf/_native/*.h)
NATIVE_ALL = $(shell find rf -name '*.cpp' -o -name '*.h')
PY_SOURCES := rf tests tools setup.py

STAMP := $(VENV)/.rf-installed
TENSORFLOW := $(VENV)/.rf-tensorflow
COMPILER := $(VENV)/.rf-compiler
# make itself always defines CXX; only one that the user gave counts, and reaches the build through the environment.
USER_CXX := $(if $(filter default,$(origin CXX)),,$(CXX))
ifneq ($(USER_CXX),)
export CXX
endif

DEBUG := build/debug
PYTEST := $(BIN)/python -m pytest -n $(JOBS) $(PYTEST_FLAGS)

.PHONY: profile test tiny check format bench bench-check debug clean setup FORCE
.DELETE_ON_ERROR:

profile: setup
	$(BIN)/rf profile

setup: $(STAMP)
	@$(BIN)/python tools/core_notice.py || true

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Holds the compiler of the last install, and is touched only when that changes.
$(COMPILER): FORCE | $(BIN)/python
	@printf '%s\n' '$(USER_CXX)' | cmp -s - $@ || printf '%s\n' '$(USER_CXX)' > $@

# No build isolation: the native core is built with the pinned setuptools, and into rf/_native.
$(STAMP): pyproject.toml setup.py constraints.txt $(NATIVE) $(COMPILER) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt setuptools
	$(BIN)/python -m pip install -c constraints.txt --no-build-isolation -e '.[$(EXTRAS)]'
	@touch $@

# For the tests alone, as it is large. Not every platform has it: its tests are then skipped (in CI they fail).
$(TENSORFLOW): pyproject.toml constraints.txt $(STAMP)
	@$(BIN)/python -m pip install -c constraints.txt --no-build-isolation -e '.[tensorflow]' \
		|| echo "rf: TensorFlow cannot be installed here, see above; the tests that need it are skipped"
	@touch $@

test: setup $(TENSORFLOW)
	@if $(BIN)/python tools/core_notice.py >/dev/null; then \
		echo "== tests on the native core" && RF_CORE=native $(PYTEST) && \
		echo "== tests on the Python core" && RF_CORE=python $(PYTEST) $(PYTHON_CORE_TESTS); \
	else \
		echo "== tests on the Python core only: the native core was not built, see the notice above" && \
		RF_CORE=python $(PYTEST); \
	fi

tiny: setup
	$(BIN)/python -m pytest $(PYTEST_FLAGS) tests/test_tiny.py

check: setup
	$(BIN)/ruff format --check $(PY_SOURCES)
	$(BIN)/ruff check $(PY_SOURCES)
	$(BIN)/pyright
	@if [ -n "$(NATIVE_ALL)" ]; then echo "clang-format --dry-run" && $(BIN)/clang-format --dry-run -Werror $(NATIVE_ALL); fi
	$(BIN)/python -m pytest $(PYTEST_FLAGS) tests/test_layering.py

format: setup
	$(BIN)/ruff format $(PY_SOURCES)
	$(BIN)/ruff check --fix $(PY_SOURCES)
	@if [ -n "$(NATIVE_ALL)" ]; then $(BIN)/clang-format -i $(NATIVE_ALL); fi

bench: setup
	$(BIN)/rf bench ops

# Renew the budgets: .venv/bin/python -m rf.bench.budget tools/budget.toml --update
bench-check: setup
	$(BIN)/python -m rf.bench.budget tools/budget.toml

# The sanitizer build is a whole copy of the package, found before the editable one. The sanitizer's runtime has to be
# loaded before Python, and libstdc++ with it, so that exceptions are seen. Python itself leaks at exit by design.
debug: setup
	@rm -rf $(DEBUG)
	RF_SANITIZE=1 $(BIN)/python setup.py --quiet build --build-base $(DEBUG) --build-lib $(DEBUG)/lib
	@grep -q '^native' $(DEBUG)/lib/rf/_native/_build_note.txt
	PYTHONPATH=$(abspath $(DEBUG)/lib) RF_CORE=native PYTHONMALLOC=malloc \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	$(BIN)/pytest -p no:cacheprovider $(PYTEST_FLAGS) $(DEBUG_TESTS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	rm -f rf/_native/*.so rf/_native/_build_note.txt
	find rf tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
