#!/usr/bin/env bash
# tools/apiserver.sh DIR [COMMAND...]: a real Kubernetes API server (or the commands named, such as kubelet) and its etcd, into
# DIR/usr/bin: of Debian 12's source package (1.20, the last that it ships a server of), built with its own Go, unpacked and not
# installed. Some eight minutes and 3 GB the first time; the sources and what is between are removed.
set -euo pipefail
mkdir -p "$1"
dir=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- kube-apiserver
missing=
for name in etcd "$@"; do [ -x "$dir/usr/bin/$name" ] || missing+=" $name"; done
[ -n "$missing" ] || exit 0
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$(mktemp -d "$dir/build.XXXXXX")
trap 'rm -rf "$build"' EXIT
"$here/debian.sh" "$build" bookworm golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev \
    etcd-server src:kubernetes

# Its tree is built as of old, in a GOPATH, from the dependencies that it carries: nothing else is fetched.
mkdir -p "$build/go/src/k8s.io"
mv "$build/src/kubernetes" "$build/go/src/k8s.io/kubernetes"
cd "$build/go/src/k8s.io/kubernetes"
# What it carries of this one is older than Go 1.18 and crashes with it.
rm vendor/github.com/modern-go/reflect2/*.{go,s}
cp "$build"/usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} vendor/github.com/modern-go/reflect2/
export GOROOT=$build/usr/lib/go-1.19 GOPATH=$build/go GOCACHE=$build/cache GO111MODULE=off GOPROXY=off CGO_ENABLED=0
go=(nice -n 15 "$GOROOT/bin/go" build -p 1 -trimpath)
# The one file that its own build generates first: the schemas of all kinds.
"${go[@]}" -o "$build/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
kinds=$(grep -rl '+k8s:openapi-gen=' --include='*.go' pkg cmd plugin vendor/k8s.io/*/ |
    grep -v '^vendor/k8s.io/\(code-generator\|sample-apiserver\|kube-openapi\|gengo\)/\|_test.go$' |
    xargs -n1 dirname | LC_ALL=C sort -u | sed 's#^#k8s.io/kubernetes/#' | paste -sd,)
PATH=$GOROOT/bin:$PATH nice -n 15 "$build/openapi-gen" --input-dirs "$kinds" --report-filename "$build/violations" \
    --output-package k8s.io/kubernetes/pkg/generated/openapi --output-file-base zz_generated.openapi \
    --go-header-file vendor/k8s.io/code-generator/hack/boilerplate.go.txt
release=$(sed -n '1s/.*really\([0-9.]*\)-.*/\1/p' debian/changelog)
said=()
for package in component-base/version client-go/pkg/version; do
    package=k8s.io/kubernetes/vendor/k8s.io/$package
    said+=(-X "$package.gitVersion=v$release" -X "$package.gitMajor=${release%%.*}" -X "$package.gitMinor=$(cut -d. -f2 <<<"$release")")
done
for name; do "${go[@]}" -ldflags "-s -w ${said[*]}" -o "$build/usr/bin/$name" "./cmd/$name"; done
mkdir -p "$dir/usr/bin"
for name in etcd "$@"; do mv "$build/usr/bin/$name" "$dir/usr/bin/"; done
chmod -R u+w "$build"
"$dir/usr/bin/$1" --version
