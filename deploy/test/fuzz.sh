#!/usr/bin/env bash
# Runs every fuzz target of the tree, or those whose name matches the second
# argument, for the given time or number of inputs each (10s, 2000x; default 10s).
# Each package is built once; two targets run at a time with half of the processors
# each. With MQROUTER_FUZZ_PLAIN=1 nothing is instrumented: inputs are varied
# without a look at what they reach, and no third build of all dependencies is
# needed, which takes longer than a short run is worth. A target may use
# MQROUTER_FUZZ_MEMORY kB of memory (default 4 GB of address space): more is a
# failure like a panic. What fails stands in testdata/fuzz of its package then:
# mend the code and commit the file with it.
set -euo pipefail
cd "$(dirname "$0")/../.."
time=${1:-10s}
match=${2:-.}
memory=${MQROUTER_FUZZ_MEMORY:-4194304}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

targets=$(grep -rE '^func Fuzz[A-Za-z0-9_]*\(' --include='*_test.go' . |
	sed -E 's#^\./(.*)/[^/]*_test\.go:func (Fuzz[A-Za-z0-9_]*)\(.*#\1 \2#' | grep -E "$match" | sort)
[ -n "$targets" ] || { echo "fuzz: no target matches $match"; exit 1; }

build() {
	go test -c ${instrument:+-fuzz=Fuzz} -o "$work/$(tr / - <<<"$1").test" "./$1"
}
run() {
	local dir=$1 target=$2 log
	log="$work/$(tr / - <<<"$dir").$target.log"
	if ( (ulimit -v "$memory") 2>/dev/null && ulimit -v "$memory"; cd "$dir" && "$work/$(tr / - <<<"$dir").test" -test.run='^$' -test.fuzz="^$target\$" \
		-test.fuzztime="$time" -test.parallel="$share" -test.fuzzcachedir="$cache/$dir") >"$log" 2>&1; then
		echo "fuzz: $dir $target: $(grep -E '^fuzz: elapsed' "$log" | tail -1 | sed 's/^fuzz: elapsed: //')"
	else
		echo "fuzz: $dir $target FAILED"
		cat "$log"
		return 1
	fi
}
export -f build run
[ "${MQROUTER_FUZZ_PLAIN:-}" = 1 ] && instrument= || instrument=1
export work time memory instrument
cpus=$(getconf _NPROCESSORS_ONLN)
export share=$(((cpus + 1) / 2))
cache=${MQROUTER_FUZZ_CACHE:-$(go env GOCACHE)/fuzz/mqrouter}
export cache

# One build after the other: the first one, which may have to instrument the
# standard library and all dependencies, fills the cache for the others.
awk '{print $1}' <<<"$targets" | uniq | xargs -I{} bash -euc 'build {}'
xargs -P 2 -L 1 bash -euc 'run "$0" "$1"' <<<"$targets"
