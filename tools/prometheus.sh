#!/usr/bin/env bash
# tools/prometheus.sh DIR [SUITE]: puts the distribution's own prometheus, promtool, alertmanager and amtool into DIR/usr/bin;
# with SUITE (say, sid) those of that suite of the same distribution.
set -euo pipefail
# promtool is a package of its own in newer releases only.
"$(dirname "${BASH_SOURCE[0]}")/debian.sh" "$1" "${2:-}" prometheus promtool prometheus-alertmanager
# The distribution calls it prometheus-alertmanager.
[ -x "$1/usr/bin/alertmanager" ] || ln -sf prometheus-alertmanager "$1/usr/bin/alertmanager"
"$1/usr/bin/prometheus" --version 2>&1 | sed -n 1p
