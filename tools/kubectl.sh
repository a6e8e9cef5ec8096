#!/usr/bin/env bash
# tools/kubectl.sh DIR [SUITE]: puts kubectl, for its `kustomize`, into DIR/usr/bin. The manifests need 1.27 or later; where the
# distribution's own is older it comes from SUITE (trixie, with 1.32), unpacked and not installed.
set -euo pipefail
"$(dirname "${BASH_SOURCE[0]}")/debian.sh" "$1" "${2:-trixie}" kubectl
"$1/usr/bin/kubectl" version --client 2>&1 | sed -n 1p
