#!/usr/bin/env bash
# tests/node/node.sh install|start|in|stop DIR: a real Kubernetes of one node (etcd, API server, controllers, scheduler, kubelet,
# containerd, runc, a bridge) in namespaces and control groups of its own; the system keeps its addresses, mounts, logs and settings.
#   install DIR       unpacks, of the distribution: etcd, kubectl, containerd, runc, network plugins (tools/debian.sh). Kubernetes' own four
#                     come from the folder $KUBERNETES (one release, 1.20 or later), else tools/apiserver.sh builds Debian's 1.20: ten minutes.
#   start DIR         a new, empty cluster; returns when its node is ready
#   in DIR COMMAND…   runs a command in there:  in DIR kubectl get pods -A    in DIR ctr -n k8s.io images import image.tar
#   stop DIR          ends it and all that it started; containerd's images are kept for the next start
# Needs root, overlayfs, openssl, util-linux, iproute2, procps. No kube-proxy: of all Services only the API server's answers; pods and the
# node reach each other by address, and nothing beyond. Pods ask the node's address for names, where a test may answer (names.py). One
# node at a time.
set -euo pipefail
usage="usage: tests/node/node.sh install|start|in|stop DIR [COMMAND...]"
verb=${1:?$usage}
mkdir -p "${2:?$usage}"
dir=$(cd "$2" && pwd)
self=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/$(basename "${BASH_SOURCE[0]}")
tools=${self%/tests/*}/tools
node=prober-node address=10.99.0.1 api=10.96.0.1 pods=10.244.0.0/24 four=(kube-apiserver kube-controller-manager kube-scheduler kubelet)
export PATH=$dir/bin:$dir/usr/bin:$dir/usr/sbin:$PATH KUBECONFIG=$dir/etc/admin.conf

install() {
    [ ! -e "$dir/installed" ] || return 0
    [ -n "${KUBERNETES:-}" ] || "$tools/apiserver.sh" "$dir/built" "${four[@]}"
    "$tools/debian.sh" "$dir" trixie etcd-server kubectl
    "$tools/debian.sh" "$dir" "" containerd runc containernetworking-plugins busybox-static # of this system, for its libraries
    mkdir -p "$dir/bin"
    for name in "${four[@]}"; do cp -aL "${KUBERNETES:-$dir/built/usr/bin}/$name" "$dir/bin/"; done
    # The image that holds a pod's namespaces open: one static program, in Docker's archive format.
    local work
    work=$(mktemp -d) && mkdir "$work/bin"
    cp "$(command -v busybox)" "$work/bin/"
    tar -C "$work" --owner=0 --group=0 -cf "$work/layer.tar" bin
    echo '{"architecture": "'"$(dpkg --print-architecture)"'", "os": "linux", "config": {"Entrypoint": ["/bin/busybox", "sleep", "2147483647"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:'"$(sha256sum <"$work/layer.tar" | cut -d' ' -f1)"'"]}}' >"$work/config.json"
    echo '[{"Config": "config.json", "RepoTags": ["localhost/pause:1"], "Layers": ["layer.tar"]}]' >"$work/manifest.json"
    tar -C "$work" -cf "$dir/pause.tar" manifest.json config.json layer.tar && rm -r "$work"
    touch "$dir/installed"
}

certificate() { # NAME SUBJECT [NAMES]
    openssl req -new -newkey rsa:2048 -nodes -keyout "$1.key" -subj "$2" -out "$1.csr" 2>/dev/null
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out "$1.crt" 2>/dev/null -extfile <(
        printf 'extendedKeyUsage=clientAuth,serverAuth\nsubjectAltName=%s\n' "${3:-DNS:$1}")
}

configure() {
    rm -rf --one-file-system "${dir:?}"/{etc,log,state,upper,work,kubelet,volumes}
    mkdir -p "$dir"/{etc/pki,etc/cni,log,state,upper/{etc,var},work/{etc,var},kubelet,volumes}
    cd "$dir/etc/pki"
    openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -subj /CN=prober-node-ca -days 30 2>/dev/null
    openssl genrsa -out accounts.key 2048 2>/dev/null
    certificate kube-apiserver /CN=kube-apiserver "IP:$api,IP:$address,IP:127.0.0.1,DNS:kubernetes.default.svc"
    certificate admin /O=system:masters/CN=admin
    certificate kubelet "/O=system:nodes/CN=system:node:$node" "IP:$address,DNS:$node"
    for name in "${four[@]:1:2}"; do certificate "$name" "/CN=system:$name"; done
    for name in admin "${four[@]:1}"; do
        conf=(kubectl config --kubeconfig="$dir/etc/$name.conf")
        "${conf[@]}" set-cluster it --server="https://$api" --certificate-authority=ca.crt --embed-certs
        "${conf[@]}" set-credentials me --client-certificate="$name.crt" --client-key="$name.key" --embed-certs
        "${conf[@]}" set-context me --cluster=it --user=me && "${conf[@]}" use-context me
    done >/dev/null
    cat >"$dir/etc/cni/pods.conflist" <<EOF
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "pods", "isDefaultGateway": true,
    "ipam": {"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": "$pods"}]]}}]}
EOF
    cat >"$dir/etc/containerd.toml" <<EOF
version = 2
root = "$dir/containerd"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true # where the system lets nobody lower it
  cni = {bin_dir = "$dir/usr/lib/cni", conf_dir = "$dir/etc/cni"}
[plugins."io.containerd.internal.v1.opt"]
  path = "/run/opt"
EOF
    # syncFrequency: a changed ConfigMap is in its pods within seconds, and not within two minutes.
    cat >"$dir/etc/kubelet.yaml" <<EOF
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $dir/etc/pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $dir/etc/pki/kubelet.crt
tlsPrivateKeyFile: $dir/etc/pki/kubelet.key
cgroupDriver: cgroupfs
cgroupRoot: /$node # of its own, so that all of it can be removed
failSwapOn: false
$([ "$(minor)" -lt 31 ] || echo "failCgroupV1: false")
resolvConf: ""
clusterDNS: [$address] # nobody answers there until a test does
clusterDomain: cluster.local
syncFrequency: 5s
imageGCHighThresholdPercent: 100 # no image can be fetched again
evictionHard: {memory.available: 100Mi, nodefs.available: 500Mi, imagefs.available: 500Mi}
EOF
}

minor() { kubelet --version | sed 's/.*v1\.\([0-9]*\).*/\1/'; }
running() { [ -e "$dir/pid" ] && tr '\0' ' ' 2>/dev/null <"/proc/$(cat "$dir/pid")/cmdline" | grep -q " inside $dir "; } # its number may be another's by now
daemon() { "$@" >"$dir/log/$1.log" 2>&1 & } # COMMAND…

inside() { # the first process of the namespaces: when it ends, everything in them does
    hostname "$node" && mount -t tmpfs -o mode=755 tmpfs /run
    for part in etc var; do mount -t overlay -o "lowerdir=/$part,upperdir=$dir/upper/$part,workdir=$dir/work/$part" overlay "/$part"; done
    mount --make-rshared /
    # A kubelet sets these for the whole machine: it finds them set, in files that only it sees.
    for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 kernel/keys/root_max{keys=1000000,bytes=25000000}; do
        file=${setting%=*}
        mkdir -p "/run/sysctl/${file%/*}" && echo "${setting#*=}" >"/run/sysctl/$file"
        mount --bind "/run/sysctl/$file" "/proc/sys/$file"
    done
    ip link add node0 type veth peer name node1
    for link in lo node0 node1; do ip link set "$link" up; done
    ip address add "$address/24" dev node0
    ip address add "$api/32" dev lo # the Service `kubernetes`, in place of kube-proxy
    ip route add default dev node0
    cd "$dir/state" && pki=$dir/etc/pki
    [ "$(minor)" -ge 23 ] && gates=() || gates=(--feature-gates=TTLAfterFinished=true) # on by itself from 1.21, and for good from 1.23
    daemon etcd --unsafe-no-fsync --log-level=warn
    daemon containerd --config="$dir/etc/containerd.toml"
    daemon kube-apiserver --etcd-servers=http://127.0.0.1:2379 --secure-port=443 --advertise-address="$address" --allow-privileged --cert-dir=. \
        --service-cluster-ip-range=10.96.0.0/16 --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
        --client-ca-file="$pki/ca.crt" --tls-cert-file="$pki/kube-apiserver.crt" --tls-private-key-file="$pki/kube-apiserver.key" \
        --kubelet-client-certificate="$pki/admin.crt" --kubelet-client-key="$pki/admin.key" --kubelet-preferred-address-types=InternalIP \
        --service-account-issuer=https://kubernetes.default.svc --service-account-{signing-,}key-file="$pki/accounts.key" \
        "${gates[@]}"
    echo $! >"$dir/apiserver.pid"
    until kubectl get --raw=/readyz && ctr version; do sleep 1; done >/dev/null 2>&1
    daemon kube-controller-manager --kubeconfig="$dir/etc/kube-controller-manager.conf" --leader-elect=false --root-ca-file="$pki/ca.crt" \
        --use-service-account-credentials --service-account-private-key-file="$pki/accounts.key" --cert-dir=. "${gates[@]}"
    daemon kube-scheduler --kubeconfig="$dir/etc/kube-scheduler.conf" --leader-elect=false
    ctr -n k8s.io images import "$dir/pause.tar" >/dev/null
    [ "$(minor)" -ge 24 ] && more=() || more=(--container-runtime=remote)
    daemon kubelet --config="$dir/etc/kubelet.yaml" --kubeconfig="$dir/etc/kubelet.conf" --root-dir="$dir/kubelet" --hostname-override="$node" \
        --node-ip="$address" --container-runtime-endpoint=unix:///run/containerd/containerd.sock "${more[@]}"
    wait -n || echo "a daemon of the node ended by itself" >&2
}

case $verb in
install | inside) "$verb" ;;
start)
    ! running || { echo "$dir/pid: it runs already; tests/node/node.sh stop $dir ends it" >&2; exit 1; }
    "$self" stop "$dir" # what is left of one that was cut off
    configure
    awk '$3 ~ /^cgroup/ {print $2}' /proc/mounts | while read -r tree; do mkdir -p "$tree/$node"; done
    setsid unshare --mount --net --uts --pid --fork --kill-child --mount-proc bash "$self" inside "$dir" >"$dir/log/node.log" 2>&1 </dev/null &
    echo $! >"$dir/pid"
    for ((i = 0; i < 300; i++)); do
        sleep 1
        kill -0 "$(cat "$dir/pid")" 2>/dev/null || break
        if "$self" in "$dir" kubectl get nodes 2>/dev/null | grep -w Ready; then exit; fi
    done
    "$self" stop "$dir"
    echo "no node is ready after 5 minutes: see $dir/log" >&2 && exit 1 ;;
in) exec nsenter --target "$(pgrep --parent "$(cat "$dir/pid")")" --mount --net --uts --pid --wd="$PWD" "${@:3}" ;;
stop)
    [ -e "$dir/pid" ] || exit 0
    ! running || kill -KILL "$(cat "$dir/pid")"
    rm "$dir/pid"
    for ((i = 0; i < 50; i++)); do # the last of its processes take a moment
        find /sys/fs/cgroup -depth -type d -path "*/$node*" -exec rmdir {} + 2>/dev/null && break
        sleep 0.2
    done
    rm -rf --one-file-system "${dir:?}"/{kubelet,state,upper,work,volumes} ;;
*) echo "$usage" >&2; exit 2 ;;
esac
