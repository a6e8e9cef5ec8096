#!/usr/bin/env bash
# tools/proxies.sh DIR: puts the distribution's own haproxy and nginx into DIR/usr/bin, with the libraries that few systems have.
set -euo pipefail
"$(dirname "${BASH_SOURCE[0]}")/debian.sh" "$1" "" haproxy nginx liblua5.3-0 liblua5.4-0 libopentracing-c-wrapper0 libopentracing1 \
    libpcre2-8-0
for program in haproxy nginx; do
    cat >"$1/usr/bin/$program" <<'EOF'
#!/bin/sh
dir=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
LD_LIBRARY_PATH=$(echo "$dir"/usr/lib/*-linux-gnu*) exec "$dir/usr/sbin/${0##*/}" "$@"
EOF
    chmod +x "$1/usr/bin/$program"
    "$1/usr/bin/$program" -v 2>&1 | sed -n 1p
done
