#!/usr/bin/env bash
# tools/parts.sh DIR PYTHON: fetches into DIR the real programs that tests run and that are missing here, at the same time. A
# program that cannot be had is no failure: the tests that need it are skipped with its name, and fail under CI=true.
set -euo pipefail
dir=$1
python=$2
tools=$(dirname "${BASH_SOURCE[0]}")
export PATH="$dir/usr/bin:$PATH"
fetching=()

fetch() { # fetch NAME COMMAND...
    echo "Fetching $1…"
    "${@:2}" >"$logs/${1// /-}" 2>&1 &
    fetching+=("$1:$!")
}

has() { local program; for program; do command -v "$program" >/dev/null || return 1; done; }

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
has prometheus promtool amtool && { has prometheus-alertmanager || has alertmanager; } ||
    fetch "Prometheus and Alertmanager (180 MB on disk)" "$tools/prometheus.sh" "$dir"
[ -x "$dir/newer/usr/bin/promtool" ] || fetch "Prometheus 3 (240 MB)" "$tools/prometheus.sh" "$dir/newer" sid
has haproxy nginx || fetch "HAProxy and nginx (8 MB)" "$tools/proxies.sh" "$dir"
[ -d "$dir/helm4" ] || fetch "Helm (250 MB)" env PYTHON="$python" "$tools/helm.sh" "$dir"
kubectl kustomize deploy/kustomize/overlays/fleet >/dev/null 2>&1 || fetch "kubectl (60 MB)" "$tools/kubectl.sh" "$dir"
# Many packages, which on anybody's own machine are theirs to install.
has chromium || [ "${CI:-}" != true ] || fetch "Chromium (300 MB)" "$tools/packages.sh" chromium

for part in "${fetching[@]}"; do
    wait "${part##*:}" || { echo "Not fetched: ${part%:*}. Tests that need it are skipped, or fail under CI=true."; cat "$logs/$(tr ' ' - <<<"${part%:*}")"; } >&2
done
