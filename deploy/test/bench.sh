#!/usr/bin/env bash
# Prints the figures of the README as a Markdown table, each with its command. It
# starts a deployment of its own, in a temporary folder and on ports of its own,
# and ends it. The figures of a machine that does something else meanwhile mean
# nothing.
#
#   MQROUTER_BENCH_SECONDS    length of each run (5)
#   MQROUTER_BENCH_RETAINED   retained messages of the recovery run (10000000)
#   MQROUTER_BENCH_DELAYED    delayed messages whose memory is measured (1000000)
#   MQROUTER_BENCH_TOPICS     topics whose memory is measured (10000)
#   MQROUTER_BENCH_REST       seconds that a broker rests before its memory is read (5)
#   MQROUTER_BENCH_OFFSET     added to the ports of the sample topology (21000)
#   MQROUTER_BENCH_DIR        folder on the disk to measure (TMPDIR, else /tmp)
set -euo pipefail
cd "$(dirname "$0")/../.."

seconds=${MQROUTER_BENCH_SECONDS:-5}
retained=${MQROUTER_BENCH_RETAINED:-10000000}
delayed=${MQROUTER_BENCH_DELAYED:-1000000}
topics=${MQROUTER_BENCH_TOPICS:-10000}
offset=${MQROUTER_BENCH_OFFSET:-21000}
dir=$(mktemp -d "${MQROUTER_BENCH_DIR:-${TMPDIR:-/tmp}}/mqrouter-bench-XXXXXX")
bin=$dir/mqrouter
dev=

finish() {
	trap - EXIT INT TERM
	if [ -n "$dev" ]; then
		kill -TERM "$dev" 2>/dev/null || true
		wait "$dev" 2>/dev/null || true
	fi
	rm -rf "$dir"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

start() { # ARGS...
	"$bin" dev --dir "$dir/dev" --port-offset "$offset" "$@" >"$dir/dev.out" 2>&1 &
	dev=$!
	for _ in $(seq 600); do
		grep -q '^ready\.' "$dir/dev.out" && return
		kill -0 "$dev" 2>/dev/null || break
		sleep 0.1
	done
	cat "$dir/dev.out" >&2
	echo "bench: the deployment did not start" >&2
	exit 1
}

stop() {
	kill -TERM "$dev"
	wait "$dev" || true
	dev=
}

# Memory of a broker's process, when it has come to rest.
resident() {
	sleep "${MQROUTER_BENCH_REST:-5}"
	ps -o rss= -p "$(cat "$dir/dev/pids/rz02-a-1")" | awk '{ printf "%.0f MiB", $1 / 1024 }'
}

row() { printf '| %s | %s | `%s` |\n' "$1" "$2" "$3"; } # WHAT FIGURE COMMAND

# Runs 'mqrouter bench ARGS' and has an awk program make "WHAT|FIGURE" lines of the
# rows behind the heading.
bench() { # AWK ARGS...
	local program=$1 out
	shift
	out=$("$bin" bench "$@")
	tail -n +2 <<<"$out" | sed 's/ \([KMG]iB\)/\1/g' | awk "$program" | while IFS='|' read -r what figure; do
		row "$what" "$figure" "mqrouter bench ${*/$dir/.}"
	done
}

go build -o "$bin" ./cmd/mqrouter
start
export MQROUTER_ADMIN=127.0.0.1:$((5101 + offset))

echo "$(nproc) cores, $(uname -sr), load $(cut -d' ' -f1-3 /proc/loadavg 2>/dev/null || uptime) at the start, $(go env GOVERSION), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
echo
echo "| what | figure | command |"
echo "| --- | --- | --- |"

bench '{ printf "raw loop, %s records of 1 KiB for each fdatasync|%s records/s (%s syncs/s)\n", $1, $3, $4 }' \
	raw --dir "$dir" --duration "${seconds}s" --batch 1,16,256
bench '{ printf "durable publish, %s publishers, %s a request|%s messages/s, p50 %s, p99 %s\n", $1, $2, $4, $6, $7 }' \
	publish --zone rz01 --duration "${seconds}s" --publishers 1,16,256 --batch 1,32
bench '{ printf "durable publish at 1,000 messages/s|mean %s, p99 %s, max %s\n", $5, $7, $8 }' \
	publish --zone rz01 --duration "${seconds}s" --publishers 16 --batch 1 --rate 1000
bench '{ printf "publish in one city to receive in another, 1,000 messages/s|p50 %s, p99 %s\n", $5, $6 }' \
	latency --zone rz01 --to rz04 --topic transfer --group transfer-credit --property userId=1065 --rate 1000 --duration "${seconds}s"
for body in random json; do
	bench '{ printf "cross-city flow, '"$body"' bodies|%s landed/s while %s/s are published; %s bytes on the link a body byte\n", $5, $4, $8 }' \
		flow --zone rz01 --topic transfer --property userId=1060..1079 --publishers 64 --batch 32 --duration "${seconds}s" --body "$body"
done
bench '{ printf "broadcast to three cities, random bodies|%s landings/s; %s bytes on the two links together a body byte\n", $5, $8 }' \
	flow --zone rz01 --topic member --publishers 16 --batch 32 --duration "${seconds}s"

while read -r kind topic group property; do
	"$bin" group reset "$group" --topic "$topic" --to latest --yes --zone rz01 >/dev/null # what the rows above have left
	bench '{ printf "'"$kind"' messages in a zone, 1,000 messages/s, from send to receive|p50 %s, p99 %s; send p50 %s\n", $5, $6, $8 }' \
		latency --zone rz01 --to rz01 --topic "$topic" --group "$group" --property "$property" --kind "$kind" --delay 1s --rate 1000 --duration "${seconds}s"
	bench '{ printf "'"$kind"' messages in a zone, %s publishers, %s a request|%s messages/s, p50 %s, p99 %s\n", $1, $2, $4, $6, $7 }' \
		publish --zone rz01 --topic "$topic" --property "$property" --kind "$kind" --publishers 16 --batch 1 --duration "${seconds}s"
done <<-END
	normal orders orders-billing userId=1001..1019
	fifo ledger-entries ledger-entries-book accountId=1001..1019
	delay reminders reminders-send memberId=1001..1019
	transaction payments payments-settle payerId=1001..1019
END
stop

rm -rf "$dir/dev"
start --processes
row "memory of a broker that has nothing to do" "$(resident)" "mqrouter dev --processes"
hold="publish --zone rz02 --topic reminders --property memberId=1021..1039 --kind delay --delay 12h --publishers 32 --batch 32 --duration 10m --messages $delayed"
# shellcheck disable=SC2086 # words
"$bin" bench $hold >/dev/null
row "memory of a broker with $delayed delayed messages of 1 KiB" "$(resident)" "mqrouter bench $hold"
stop
rm -rf "$dir/dev"
"$bin" topology sample | awk -v n="$topics" '{ print } $0 == "topics:" { for (i = 1; i <= n; i++) printf "  - {name: bench-%d, route: local}\n", i }' >"$dir/topics.yaml"
start --processes --topology "$dir/topics.yaml"
row "memory of a broker with $topics topics that nobody has used" "$(resident)" "mqrouter dev --processes --topology topics.yaml"
"$bin" bench topics --zone rz02 --topics "$topics" >/dev/null
row "memory of a broker with $topics topics and a message in each" "$(resident)" "mqrouter bench topics --zone rz02 --topics $topics"
stop

resolve='go test -run ^$ -bench ^BenchmarkResolve$ -benchmem ./zone'
$resolve | awk '/^BenchmarkResolve/ { sub(/^BenchmarkResolve\/?/, "", $1); sub(/-[0-9]+$/, "", $1); printf "%s|%s %s, %s %s\n", $1, $3, $4, $(NF-1), $NF }' |
	while IFS='|' read -r what figure; do row "resolve, 10,000 zones, 100,000 shards ${what:+($what)}" "$figure" "$resolve"; done

shipped='go test -run ^$ -bench ^BenchmarkShippedAppend$ ./broker/commitlog'
$shipped | awk '/^BenchmarkShippedAppend/ { split($1, p, /[\/=-]/); printf "shipped append of 1 KiB in one process, %s publishers, %s copies|%.0f appends/s (%.3f ms each)\n", p[3], p[5], 1e9 / $3, $3 / 1e6 }' |
	while IFS='|' read -r what figure; do row "$what" "$figure" "$shipped"; done
catchup='go test -run ^$ -bench ^BenchmarkCatchUp$ -benchtime 1x ./broker/commitlog'
$catchup | awk '/^BenchmarkCatchUp/ { printf "%s %s\n", $5, $6 }' |
	while read -r figure; do row "catch-up of an empty replica, 128 MiB in one process" "$figure" "$catchup"; done

row "open a broker with $retained messages of 200 bytes" \
	"$("$bin" bench recovery --dir "$dir" --messages "$retained" --size 200 | sed 's/^.*bytes: //')" \
	"mqrouter bench recovery --messages $retained --size 200"
