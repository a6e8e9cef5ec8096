#!/usr/bin/env bash
# tools/python.sh PYTHON: exits 0 when PYTHON is new enough and can make virtual environments.
# Debian and Ubuntu keep the latter in a package of its own, python3-venv, which is installed where root or sudo allows.
set -euo pipefail
python=$1

fail() { echo "$*" >&2; exit 1; }

command -v "$python" >/dev/null || fail "no $python on the PATH: install Python 3.11 or newer, or say make PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old: Python 3.11 or newer is needed; say make PYTHON=/path/to/python3.11"
"$python" -c 'import ensurepip, venv' 2>/dev/null && exit 0

package=python$("$python" -c 'import sys; print("{}.{}".format(*sys.version_info))')-venv
exec "$(dirname "${BASH_SOURCE[0]}")/packages.sh" "$package"
