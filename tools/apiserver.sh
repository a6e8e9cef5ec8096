#!/usr/bin/env bash
# tools/apiserver.sh DIR: a real Kubernetes API server and its etcd, into DIR/usr/bin: kube-apiserver of Debian 12's source
# package (1.20, the last that it ships a server of), built with its own Go, both unpacked and not installed. Some eight minutes
# and 3 GB the first time; the sources and what is between are removed. A newer server is used where APISERVER names one.
set -euo pipefail
mkdir -p "$1"
dir=$(cd "$1" && pwd)
[ -x "$dir/usr/bin/kube-apiserver" ] && [ -x "$dir/usr/bin/etcd" ] && exit
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
"${go[@]}" -ldflags "-s -w ${said[*]}" -o "$build/kube-apiserver" ./cmd/kube-apiserver
mkdir -p "$dir/usr/bin"
mv "$build/kube-apiserver" "$build/usr/bin/etcd" "$dir/usr/bin/"
chmod -R u+w "$build"
"$dir/usr/bin/kube-apiserver" --version
