# make demo [ARGS=--once]   the example project under real traffic
# make check                style, types, imports and the unit tests: in seconds, without Redis or Django
# make test [ARGS=…]        all tests; ARGS: names of environments (tox.toml), such as "lint mariadb"; --strict fails if
#                           any had to be left out; --long searches for much longer, as one does by night
# make soak [ARGS=…]        an hour of traffic with edits and outages: does memory grow? --minutes N
# make bench [ARGS=--brief] what a decision costs here and elsewhere; --write puts the tables into docs/
# make coverage [ARGS=…]    which lines and branches no test runs; ARGS: which tests, such as tests/rules
# make linkcheck            are the links out of docs/ still good? Needs the internet, and no other target does this
#
# Needs Python 3.11 or later with venv, and the package index; no root. Outside this folder only temporary files
# are written, and the caches of pip and uv.

export UV_PYTHON_DOWNLOADS := manual
unexport VIRTUAL_ENV PIP_REQUIRE_VIRTUALENV

# Where the system trusts a company's own certificates, so do we.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt),)
export UV_SYSTEM_CERTS := true
endif

UV := .cache/uv/bin/uv
PYTHON := $(shell for name in python3 python3.15 python3.14 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v "$$name" && break; done)

.PHONY: bench check coverage demo linkcheck soak test
.DEFAULT_GOAL := test

demo: .venv/bin/python
	$(UV) sync --quiet --frozen --inexact --no-default-groups --group demo
	exec .venv/bin/python -m example_project.demo $(ARGS)

check: .venv/bin/python
	$(UV) sync --quiet --frozen --inexact
	exec .ci/tox run-parallel --quiet --parallel-no-spinner -e lint,unit

test: .venv/bin/python
	$(UV) sync --quiet --frozen --inexact --no-default-groups --group tox
	exec .venv/bin/python .ci/tests.py $(ARGS)

soak: .venv/bin/python
	$(UV) sync --quiet --frozen --inexact
	exec .venv/bin/python -m tests.soak $(ARGS)

coverage: .venv/bin/python
	$(UV) sync --quiet --frozen --inexact
	rm -rf .cache/coverage
	@failed=0; COVERAGE=1 .ci/tox run -e suite $(and $(ARGS),-- $(ARGS)) || failed=$$?; \
		.venv/bin/coverage combine -q && .venv/bin/coverage html -q && .venv/bin/coverage report && exit $$failed

linkcheck: .venv/bin/python
	$(UV) sync --quiet --frozen --inexact --all-extras --no-default-groups --group docs
	exec .venv/bin/sphinx-build -q -b linkcheck docs .cache/linkcheck

# An environment of its own: nobody else needs what we compare with.
bench: .venv/bin/python
	UV_PROJECT_ENVIRONMENT=.cache/bench $(UV) sync --frozen --no-default-groups --group bench --python .venv/bin/python
	exec .cache/bench/bin/python -m benchmarks $(ARGS)

.venv/bin/python: | $(UV)
	$(UV) venv --quiet --allow-existing --python "$(PYTHON)" .venv

# uv installs exactly what uv.lock pins; it is pinned itself, in a folder of its own.
.cache/uv/bin/uv:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed, and none was found on PATH." >&2; exit 1; }
	@"$(PYTHON)" -m venv .cache/uv || \
		{ echo "$(PYTHON) has no working venv module; on Debian: apt-get install python3-venv" >&2; exit 1; }
	.cache/uv/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
