#!/usr/bin/env bash
# Copyright The kubeproxy Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs each fuzz test for some time, 5m if none is given, one after the other, with a
# line for each. The others run even if one finds something. With
# the time "none" it says what it would run.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
time=${1:-5m}
failed=0
count=0
for file in $(grep -rl --include='*_test.go' '^func Fuzz' cmd common config platform test | sort); do
	package=./$(dirname "$file")
	for target in $(grep -o '^func Fuzz[A-Za-z0-9_]*' "$file" | cut -d' ' -f2); do
		count=$((count + 1))
		echo "fuzz: $target of $package, $time"
		if [ "$time" != none ] && ! go test "$package" -run '^$' -fuzz "^$target\$" -fuzztime "$time" | tail -n 30; then
			failed=$((failed + 1))
		fi
	done
done
echo "fuzz: $count tests, $failed failed"
[ "$count" -gt 0 ] && [ "$failed" -eq 0 ]
