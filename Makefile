# Everything a person needs is a target here; `make` alone lists them. All set-up happens by itself.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TOOLS := $(CURDIR)/.tools
DIR ?= $(TOOLS)/engines

.PHONY: help install tools demo test test-slow check generated bench audit release test-cluster test-image test-engines test-ray test-clients test-node lock clean

help: ## list the targets: what each does (time on two idle processors; disk; what has to be there beside a C compiler and Python)
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-14s %s\n", $$1, $$2}'

install: $(VENV)/installed ## the prober and what it is developed with, into .venv (1 to 3 min, 670 MB)

$(VENV)/installed: requirements.lock pyproject.toml hatch_build.py prober/simulation/serving.c
	@tools/python.sh $(PYTHON)
	@tools/packages.sh cc:build-essential
	@echo "Installing the prober and its development tools into $(VENV) (670 MB on disk, one to three minutes, once)…"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q prober
	@touch $@

tools: install ## Prometheus with promtool, Alertmanager with amtool, HAProxy, nginx, kubectl and Helm where they are missing, into .tools (1 min, 750 MB; Debian)
	@tools/parts.sh $(TOOLS) $(BIN)/python
	@echo "The programs that were missing are in $(TOOLS)/usr/bin, where make finds them"

demo: install ## four mock engines, the prober, and Prometheus where there is one; runs until Ctrl-C
	@PATH="$(TOOLS)/usr/bin:$$PATH" $(BIN)/python -m prober demo

test: tools ## every test but the slow ones (8 min)
	@tools/test.sh $(BIN)/pytest $(ARGS)

test-slow: tools ## statistical proofs, scenes of minutes, and constants that no test sees, which `make test` leaves out (2 h)
	@$(BIN)/pytest -m slow --numprocesses 2 --max-worker-restart 0 -o timeout=1200 $(ARGS)
	@$(BIN)/python -m tools.mutants --sample 40 --most 15

check: install ## format, lint, types, layers, generated files unchanged, dashboards (1 to 4 min)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_layers.py
	$(BIN)/python docs/generate.py --check
	$(BIN)/python -m prober dashboards check
	$(BIN)/python -m tools.dashboard_lint

generated: tools ## write the files that are generated from the code again (15 s)
	$(BIN)/python docs/generate.py
	$(BIN)/python -m prober dashboards write
	$(BIN)/python -m tests.deploy.renders

bench: tools ## the measured goals; each prints one JSON object (hours; ARGS=drift runs one; chromium for `page`)
	$(BIN)/python -m bench $(ARGS)

test-clients: ## the official clients of OpenAI and Anthropic read the streams that the cases of tests/traffic are about (1 min, 110 MB)
	PYTHON=$(PYTHON) tests/traffic/clients/run.sh $(TOOLS)/clients

test-ray: ## workers on the nodes of a real Ray cluster, of which one is killed (3 min, 900 MB)
	PYTHON=$(PYTHON) tests/ray/run.sh $(TOOLS)/ray $(ARGS)

test-cluster: tools ## the manifests, discovery and leases against a real API server, which is built once (4 to 8 min and 3 GB, then 1 min and 130 MB; Debian)
	tests/cluster/run.sh $(TOOLS)/cluster $(ARGS)

test-image: tools ## the image, built and run for real (5 min, then 3 while nothing of it changes; 450 MB; root, Debian for Podman, runc and debootstrap)
	@tools/packages.sh podman runc debootstrap
	IMAGE_DIR=$(TOOLS)/image $(BIN)/pytest -o timeout=0 tests/deploy/test_image_built.py $(ARGS)

test-engines: install ## real vLLM and llama.cpp on the CPU, probed; DIR=… keeps them (10 min, and 10 to install; 2.5 GB; Debian for cmake and ninja)
	@tools/packages.sh cmake ninja:ninja-build c++:build-essential
	tests/engines/run.sh $(DIR)

test-node: tools ## image, sidecar and fleet on a real Kubernetes node, fault by fault (40 min, and 10 to build Kubernetes once; 4 GB; root, Debian)
	@tools/packages.sh podman debootstrap openssl ip:iproute2 ps:procps
	tests/node/run.sh $(TOOLS)/node $(ARGS)

$(TOOLS)/release/installed: requirements.release.lock
	@tools/python.sh $(PYTHON)
	$(PYTHON) -m venv --clear $(TOOLS)/release
	$(TOOLS)/release/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.release.lock
	@touch $@

release: tools $(TOOLS)/release/installed ## all that a release publishes, made and checked but not published; ARGS=--dry-run to try (1 min, 400 MB)
	@PACKAGER=$(TOOLS)/release/bin/python PYTHON=$(BIN)/python tools/release.sh $(ARGS)

audit: install ## known weaknesses of every locked package, by pip-audit; fails where it cannot ask (1 min)
	$(BIN)/python tools/audit.py

$(TOOLS)/uv/installed: requirements.uv.lock
	@tools/python.sh $(PYTHON)
	$(PYTHON) -m venv --clear $(TOOLS)/uv
	$(TOOLS)/uv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.uv.lock
	@touch $@

lock: $(TOOLS)/uv/installed ## pin the dependencies of pyproject.toml again, with hashes; ARGS=--upgrade for newer ones (1 min, 80 MB)
	$(TOOLS)/uv/bin/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --quiet \
		--output-file requirements.lock $(ARGS)
	$(TOOLS)/uv/bin/uv pip compile pyproject.toml --extra grafana --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --quiet \
		--constraints requirements.lock --output-file requirements.image.lock $(ARGS)
	printf "hatchling\nziglang" | $(TOOLS)/uv/bin/uv pip compile - --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --quiet \
		--constraints requirements.lock --output-file requirements.build.lock $(ARGS)
	printf "auditwheel\nhatchling\ntwine\nziglang" | $(TOOLS)/uv/bin/uv pip compile - --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --quiet \
		--constraints requirements.lock --constraints requirements.build.lock --output-file requirements.release.lock $(ARGS)
	echo uv | $(TOOLS)/uv/bin/uv pip compile - --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --quiet \
		--output-file requirements.uv.lock $(ARGS)

clean: ## remove what make made, but not what lies in .tools
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find prober bench tests -name __pycache__ -type d -prune -exec rm -rf {} +
