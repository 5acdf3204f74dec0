#!/usr/bin/env bash
# unit.sh ARGS...: go test ARGS, and once more the packages in which the race
# detector itself broke off: with Go 1.26 it can, where timers of a synctest bubble
# fire beside each other (golang/go#78156): two threads then use the one race context
# of the bubble, and a check of the detector fails or its C code takes a SIGSEGV (the
# line with PC=: a fault in Go code is a panic instead). A package with a failed test,
# a data race, a panic or any other end fails as ever, and so does one in which it
# happens twice.
set -uo pipefail
out=$(mktemp)
trap 'rm -f "$out"' EXIT
go test "$@" 2>&1 | tee "$out"
status=${PIPESTATUS[0]}
[ "$status" -eq 0 ] && exit 0

# Each package ends with a line of its own; what stands before it is its output.
broken=$(awk -F '\t' '
	/^(ok  |\?   )\t/ { broke = 0; bad = 0; next }
	/^FAIL\t/ { if (broke && !bad) print $2; else other = 1; broke = 0; bad = 0; next }
	/^ThreadSanitizer: CHECK failed/ { broke = 1 }
	/^PC=0x/ && before == "SIGSEGV: segmentation violation" { broke = 1 }
	{ before = $0 }
	/^ *--- FAIL|^WARNING: DATA RACE|^panic:|^fatal error:/ { bad = 1 }
	END { if (other) exit 1 }
' "$out") && [ -n "$broken" ] || exit "$status"

args=()
for a in "$@"; do case $a in github.com/*) ;; *) args+=("$a") ;; esac; done
echo "unit: the race detector broke off by itself (golang/go#78156) in" $broken "- running that once more"
# shellcheck disable=SC2086 # one word a package
exec go test "${args[@]}" $broken
