#!/usr/bin/env bash
# tests/cluster/run.sh DIR [pytest arguments]: builds a real API server into DIR where there is none, and asks it. APISERVER and ETCD
# name other programs, such as those of a newer Kubernetes; kubectl of the PATH.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[ -n "${APISERVER:-}" ] && [ -n "${ETCD:-}" ] || tools/apiserver.sh "$1"
export PATH="$PWD/.tools/usr/bin:$PATH"
kubectl kustomize deploy/kustomize/overlays/fleet >/dev/null 2>&1 || tools/kubectl.sh .tools
APISERVER=${APISERVER:-$(realpath "$1")/usr/bin/kube-apiserver}
ETCD=${ETCD:-$(realpath "$1")/usr/bin/etcd}
export APISERVER ETCD
shift
exec .venv/bin/pytest --override-ini=timeout=0 tests/cluster/test_cluster.py "$@"
