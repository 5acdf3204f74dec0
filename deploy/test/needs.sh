#!/usr/bin/env bash
# Installs what the tests need besides Go: Redis and protoc from the system's
# packages, the official RocketMQ clients for Node.js, Python and Java with the
# npm, pip and Maven that are set up here, and a Consul server built by Go. What was
# fetched once is not fetched again. Where a part cannot be had, its tests are
# skipped and this says so; with CI=true that is a failure.
set -uo pipefail
cd "$(dirname "$0")/../.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/mqrouter/clients

missing() { # NAME WHAT-IS-SKIPPED
	if [ "${CI:-}" = true ]; then
		echo "needs: $1 is missing and CI=true: failing" >&2
		exit 1
	fi
	echo "needs: $1 is missing; skipped: $2"
}

debian() { # COMMAND CHECK PACKAGE...: CHECK says whether the command can be used
	local command=$1 check=$2
	shift 2
	$check && { echo "needs: $command is there"; return 0; }
	command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ] || return 1
	echo "needs: installing $*"
	if [ -z "${updated:-}" ]; then apt-get update -qq >/dev/null 2>&1; updated=1; fi
	# The tests start servers of their own; the package must not start one.
	local policy=/usr/sbin/policy-rc.d made=
	if [ ! -e "$policy" ]; then printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && made=1; fi
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1
	[ -n "$made" ] && rm -f "$policy"
	$check
}

redis_there() { command -v redis-server >/dev/null 2>&1; }

# The compiler comes without the standard types in a package of its own.
protoc_there() {
	command -v protoc >/dev/null 2>&1 || return 1
	local tmp rc
	tmp=$(mktemp -d)
	printf 'syntax = "proto3";\nimport "google/protobuf/duration.proto";\nmessage M { google.protobuf.Duration d = 1; }\n' >"$tmp/there.proto"
	protoc -I "$tmp" -o /dev/null "$tmp/there.proto" 2>/dev/null
	rc=$?
	rm -rf "$tmp"
	return $rc
}

debian redis-server redis_there redis-server || missing redis-server "the Redis suites"
debian protoc protoc_there protobuf-compiler libprotobuf-dev || missing protoc "the check that generated code is current"

# digest names what a folder of the cache was made from; the tests find it by the
# same name.
digest() { { sha256sum 2>/dev/null || shasum -a 256; } <"$1" | cut -c 1-16; }

node_client() {
	command -v node >/dev/null 2>&1 && command -v npm >/dev/null 2>&1 || return 1
	cd testdata/clients/node || return 1
	[ -d node_modules/rocketmq-client-nodejs ] && return
	echo "needs: installing the Node.js client"
	npm ci --silent --no-audit --no-fund >/dev/null
}

python_client() {
	command -v python3 >/dev/null 2>&1 || return 1
	local lock=testdata/clients/python/requirements.txt home
	home=$cache/python-$(digest "$lock")
	[ -d "$home" ] && return
	echo "needs: installing the Python client"
	rm -rf "$home.new"
	python3 -m venv "$home.new" \
		&& "$home.new/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r "$lock" \
		&& mv "$home.new" "$home"
}

java_client() {
	command -v java >/dev/null 2>&1 && command -v javac >/dev/null 2>&1 || return 1
	local from=testdata/clients/java home classes
	home=$cache/java-$(digest $from/pom.xml)
	if ! [ -d "$home" ]; then
		command -v mvn >/dev/null 2>&1 || return 1
		echo "needs: fetching the Java client"
		rm -rf "$home.new"
		mvn -B -q -f $from/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$home.new/lib" >/dev/null \
			&& mv "$home.new" "$home" || return 1
	fi
	classes=$home/driver-$(digest $from/Driver.java)
	[ -d "$classes" ] && return
	rm -rf "$classes.new"
	javac -d "$classes.new" -cp "$home/lib/*" $from/Driver.java && mv "$classes.new" "$classes"
}

client() { # FUNCTION LANGUAGE WHAT-IT-TAKES
	if ("$1"); then echo "needs: the $2 client is there"; else missing "the $2 client ($3)" "its suite"; fi
}

# The Consul server is built once, which takes some minutes, from a module of its own.
consul_server() {
	local from=deploy/test/consul bin=${XDG_CACHE_HOME:-$HOME/.cache}/mqrouter/bin binary
	binary=$bin/consul-$(digest $from/go.mod)
	[ -x "$binary" ] && return
	command -v go >/dev/null 2>&1 || return 1
	echo "needs: building a Consul server, which takes some minutes"
	mkdir -p "$bin" && (cd $from && go build -trimpath -o "$binary.new" github.com/hashicorp/consul) && mv "$binary.new" "$binary"
}

mkdir -p "$cache"
if consul_server; then echo "needs: a Consul server is there"; else missing "a Consul server (Go and the module proxy)" "the suites against a real Consul"; fi
client node_client Node.js "node and npm, npm package rocketmq-client-nodejs"
client python_client Python "python3 with venv, PyPI package rocketmq-python-client"
client java_client Java "a JDK 17 and Maven, artifact org.apache.rocketmq:rocketmq-client-java"
exit 0
