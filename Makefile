# `make demo` and `make test` do all the set-up on a fresh machine with Python 3.11 and pip.
PYTHON ?= python3
BIN = .venv/bin

.PHONY: demo test format docs prices dist clean

demo: .venv
	$(BIN)/fngd demo

# The files in tests/ are tested with torch's own threads. The folders hold many tests of small tensors or of processes:
# two at a time with one thread each take a third of the time.
test: .venv
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest tests/test_*.py
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --ignore-glob 'tests/test_*.py'

format: .venv
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# What is generated in docs/: the reference, from the docstrings.
docs: .venv
	$(BIN)/python tools/api_reference.py

# The tables of prices in the README, one for each processor, from the records; compiled models have a page of their own.
PRICED = small-cnn resnet32 resnet110 vgg11 resnet18 resnet34 resnet50 transformer
PROCESSORS = cascade-lake zen5
prices: .venv
	$(BIN)/fngd bench table $(wildcard $(foreach P,$(PROCESSORS),$(PRICED:%=records/price/$P/%.json))) \
		records/price/import.json --readme README.md

# The source distribution, and the wheel built from it.
dist: .venv
	$(BIN)/python -m build --no-isolation

# torch comes first and alone: the constraints file pins it to the build that needs no accelerator. The oracle of KFAC's
# factors comes last and alone: one of its dependencies has no build for this torch, and the tests do without it.
.venv: .venv/installed
.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench,tensorboard,trainers,dev]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps curvlinops-for-pytorch
	touch $@

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
