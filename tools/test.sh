#!/usr/bin/env bash
# tools/test.sh PYTEST [ARGS...]: PYTEST with ARGS; without any every test, in two runs side by side. Tests that start the prober
# as a process mostly wait, so that run has several at a time; what it prints is shown when the other has ended.
set -euo pipefail
pytest=$1
shift
[ $# -eq 0 ] || exec "$pytest" "$@"

waiting=(tests/e2e tests/faults)
output=$(mktemp)
"$pytest" -p no:cacheprovider --numprocesses 2 --dist loadfile "${waiting[@]}" >"$output" 2>&1 &
beside=$!
trap 'kill "$beside" 2>/dev/null || true; rm -f "$output"' EXIT
failed=0
"$pytest" "${waiting[@]/#/--ignore=}" || failed=$?
wait "$beside" || failed=$?
cat "$output"
exit "$failed"
