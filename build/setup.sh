#!/usr/bin/env bash
# Copyright The kubeproxy Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Installs what the tests need beyond Go, on Debian and its like: nft, which
# must accept and print our tables, both variants of iptables, a C compiler for
# the race detector, Wine with its C compiler, which the Windows program runs
# under, and what virtual machines with other kernels are made of.
# It does nothing where all is there, and only says what is missing where it
# is not run by root.
set -euo pipefail

missing=()
command -v nft >/dev/null || [[ -x /usr/sbin/nft ]] || missing+=(nftables)
[[ -x /usr/sbin/iptables-nft && -x /usr/sbin/iptables-legacy ]] || missing+=(iptables)
command -v "${CC:-gcc}" >/dev/null || missing+=(gcc)
[[ -e /usr/include/stdlib.h ]] || missing+=(libc6-dev)
[[ -e /etc/ssl/certs/ca-certificates.crt ]] || missing+=(ca-certificates)
[[ -x /usr/lib/wine/wine64 ]] || command -v wine64 >/dev/null || missing+=(wine64)
command -v x86_64-w64-mingw32-gcc >/dev/null || missing+=(gcc-mingw-w64-x86-64-win32)
# What virtual machines are made of: each program, and its package.
while read -r program package; do
	PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null || missing+=("$package")
done <<-'LIST'
	qemu-system-x86_64 qemu-system-x86
	busybox            busybox-static
	ip                 iproute2
	ipset              ipset
	ipvsadm            ipvsadm
	conntrack          conntrack
	depmod             kmod
	xz                 xz-utils
	zstd               zstd
LIST
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
