#!/usr/bin/env bash
# Copyright The kubeproxy Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Compiles the source of the file that its argument names, such as socketlb.o, into it. One version of clang
# makes the same file everywhere. build/setup.sh bpf installs it.
set -euo pipefail
out=$(realpath "$1")
cd "$(dirname "$0")" # the file has the name of its source, and no path
headers=(/usr/include/*-linux-gnu)
clang-14 -O2 -g -Wall -Wextra -Werror -target bpfel -isystem "${headers[0]}" -fdebug-compilation-dir=. -c "$(basename "$out" .o).c" -o "$out"
llvm-strip-14 --strip-debug "$out" # BTF stays
