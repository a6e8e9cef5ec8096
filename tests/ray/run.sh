#!/usr/bin/env bash
# tests/ray/run.sh FOLDER [ARGS]: the tests of workers on a real Ray cluster, in an environment of their own in FOLDER (900 MB), as
# Ray is not among the locked dependencies. It is kept until the lock changes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=$1
shift
tools/python.sh "${PYTHON:-python3}"
if [ ! "$folder/installed" -nt requirements.lock ]; then
    "${PYTHON:-python3}" -m venv --clear "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
    "$folder/bin/pip" uninstall --quiet --yes amdsmi # Ray imports it where it is installed, and fails without AMD's library
    "$folder/bin/pip" install --quiet --disable-pip-version-check "ray>=2.40"
    touch "$folder/installed"
fi
PYTHONPATH=$PWD exec "$folder/bin/pytest" -q tests/ray "$@"
