#!/usr/bin/env bash
# tools/prometheus.sh DIR [SUITE]: puts the distribution's own prometheus, promtool, alertmanager and amtool into DIR/usr/bin;
# with SUITE (say, sid) those of that suite of the same distribution.
set -euo pipefail
# promtool is a package of its own in newer releases only.
"$(dirname "${BASH_SOURCE[0]}")/debian.sh" "$1" "${2:-}" prometheus promtool prometheus-alertmanager
# The distribution calls it prometheus-alertmanager, and has it read its templates from /usr/share. Where they are not installed it
# starts in a mount namespace of its own that has them there: no root, and the system stays as it is.
if [ ! -e /usr/share/prometheus/alertmanager/default.tmpl ]; then
    mkdir -p "$1/lib"
    mv -f "$1/usr/bin/prometheus-alertmanager" "$1/lib/"
    cat >"$1/usr/bin/prometheus-alertmanager" <<'EOF'
#!/bin/sh
dir=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
[ "$(id -u)" = 0 ] || user="--user --map-root-user"
exec unshare --mount $user sh -c 'mount -t overlay overlay -o lowerdir="$0/usr/share:/usr/share" /usr/share &&
    exec "$0/lib/prometheus-alertmanager" "$@"' "$dir" "$@"
EOF
    chmod +x "$1/usr/bin/prometheus-alertmanager"
fi
[ -x "$1/usr/bin/alertmanager" ] || ln -sf prometheus-alertmanager "$1/usr/bin/alertmanager"
"$1/usr/bin/prometheus" --version 2>&1 | sed -n 1p
