#!/usr/bin/env bash
# Runs every fuzz target of the tree for the given time each (default 10s).
set -euo pipefail
cd "$(dirname "$0")/../.."
time=${1:-10s}
grep -rlE '^func Fuzz' --include='*_test.go' . | while read -r file; do
	dir=$(dirname "$file")
	grep -oE '^func Fuzz[A-Za-z0-9_]*' "$file" | awk '{print $2}' | while read -r target; do
		echo "fuzz: $dir $target $time"
		go test -run '^$' -fuzz "^${target}\$" -fuzztime "$time" "$dir"
	done
done
