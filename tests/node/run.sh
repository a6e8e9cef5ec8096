#!/usr/bin/env bash
# tests/node/run.sh DIR [pytest arguments]: the image and the manifests on a cluster with nodes, scene by scene, with a real Prometheus.
#   KUBECONFIG=FILE NODE_IMAGE=NAME:TAG   a cluster of yours (kind, k3s), and an image that its nodes have or can pull
#   else                             a node in DIR (node.sh), and the image built (tools/image.sh) or given: IMAGE_ARCHIVE=FILE
# Half an hour; building Debian's Kubernetes takes ten minutes more, once. At most 4 GB of memory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
mkdir -p "$1"
dir=$(cd "$1" && pwd)
shift
export PATH="$PWD/.tools/usr/bin:$PATH"
kubectl kustomize deploy/kustomize/overlays/fleet >/dev/null 2>&1 || tools/kubectl.sh .tools
test -x .tools/usr/bin/helm || PYTHON=.venv/bin/python tools/helm.sh .tools
test -x .tools/newer/usr/bin/prometheus || tools/prometheus.sh .tools/newer sid
if [ -n "${KUBECONFIG:-}" ]; then
    : "${NODE_IMAGE:?KUBECONFIG is set, so set NODE_IMAGE to an image that the nodes of that cluster have or can pull}"
else
    tests/node/node.sh install "$dir"
    NODE_IMAGE=localhost/llm-slo-prober:node
    if [ -z "${IMAGE_ARCHIVE:-}" ]; then
        mkdir -p "$dir/image"
        printf '[storage]\ndriver = "vfs"\ngraphroot = "%s"\nrunroot = "%s"\n' "$dir/image/store" "$dir/image/run" >"$dir/image/storage.conf"
        export CONTAINERS_STORAGE_CONF="$dir/image/storage.conf"
        tools/image.sh "$NODE_IMAGE" | tail -1
        IMAGE_ARCHIVE=$dir/image.tar
        rm -f "$IMAGE_ARCHIVE"
        "$(command -v podman || command -v buildah)" push "$NODE_IMAGE" "docker-archive:$IMAGE_ARCHIVE:$NODE_IMAGE"
    fi
    export NODE_DIR=$dir
    tests/node/node.sh start "$dir"
    trap 'tests/node/node.sh stop "$dir"' EXIT
    tests/node/node.sh in "$dir" ctr -n k8s.io images import "$IMAGE_ARCHIVE" >/dev/null
fi
export NODE_IMAGE
.venv/bin/pytest -p no:cacheprovider --override-ini=timeout=0 tests/node/test_node.py "$@"
