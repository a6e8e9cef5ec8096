#!/usr/bin/env bash
# tools/test.sh PYTEST [ARGS...]: PYTEST with ARGS; without any every test, in two runs side by side: tests that start the
# prober as a process mostly wait. What the second run says is shown when the first has ended.
set -euo pipefail
pytest=$1
shift
[ $# -eq 0 ] || exec "$pytest" "$@"

waiting=(tests/e2e tests/faults)
said=$(mktemp)
trap 'rm -f "$said"' EXIT
"$pytest" -p no:cacheprovider "${waiting[@]}" >"$said" 2>&1 &
beside=$!
trap 'kill $beside 2>/dev/null || true; rm -f "$said"' EXIT
failed=0
"$pytest" "${waiting[@]/#/--ignore=}" || failed=$?
wait "$beside" || failed=$?
cat "$said"
exit "$failed"
