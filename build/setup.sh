#!/usr/bin/env bash
# Copyright The kubeproxy Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Installs what the tests need besides Go, on Debian and similar systems: nft, which
# must accept and print our tables, both variants of iptables, a C compiler for
# the race detector, Wine with its C compiler, which the Windows program runs
# under, what virtual machines with other kernels are made of, the compiler of
# programs for the kernel, a browser, and what the nodes and the images of a cluster need.
# It does nothing where all is there, and only says what is missing where it
# is not run by root.
set -euo pipefail

# Its arguments name the purposes: packets, race, wine, machine, bpf, page, cluster. Without
# for all but the last.
# "packets" is what make test needs.
missing=()

# need COMMAND PACKAGE...
need() { PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null || missing+=("${@:2}"); }

for_packets() {
	need nft nftables
	[[ -x /usr/sbin/iptables-nft && -x /usr/sbin/iptables-legacy ]] || missing+=(iptables)
	need ipset ipset
	need ip iproute2
	need conntrack conntrack
	need socat socat
	[[ -e /etc/ssl/certs/ca-certificates.crt ]] || missing+=(ca-certificates)
}

for_race() {
	need "${CC:-gcc}" gcc
	[[ -e /usr/include/stdlib.h ]] || missing+=(libc6-dev)
}

for_wine() {
	[[ -x /usr/lib/wine/wine64 ]] || need wine64 wine64
	need x86_64-w64-mingw32-gcc gcc-mingw-w64-x86-64-win32
}

for_machine() {
	need qemu-system-x86_64 qemu-system-x86
	need busybox busybox-static
	need ipvsadm ipvsadm
	need depmod kmod
	need xz xz-utils
	need zstd zstd
	need pgrep procps
	need mkfs.ext4 e2fsprogs
}

for_bpf() {
	need clang-14 clang-14
	need llvm-strip-14 llvm-14
	[[ -e /usr/include/bpf/bpf_helpers.h ]] || missing+=(libbpf-dev)
	[[ -e /usr/include/linux/bpf.h ]] || missing+=(linux-libc-dev)
}

for_page() {
	need chromium-headless-shell chromium-headless-shell fonts-dejavu-core
}

for_cluster() {
	for_packets
	need nsenter util-linux
	need runc runc
	[[ -x /usr/lib/cni/ptp ]] || missing+=(containernetworking-plugins)
	need busybox busybox-static
	need curl curl
	need wget wget
	need nc.openbsd netcat-openbsd
	need dig bind9-dnsutils
	need iperf iperf
}

for what in "${@:-packets race wine machine bpf page}"; do
	for one in $what; do "for_$one"; done
done
if ((${#missing[@]} == 0)); then
	exit 0
fi

if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
	echo "missing for the tests: ${missing[*]} (Debian's names); going on without" >&2
	exit 0
fi

echo "installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update -qq && apt-get install -qq -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
	cat "$log" >&2
	echo "could not install ${missing[*]}" >&2
	exit 1
fi
