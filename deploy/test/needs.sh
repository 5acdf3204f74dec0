#!/usr/bin/env bash
# Installs what the tests need besides Go: Redis and protoc from the system's
# packages, the official Node.js client from npm. Where a part cannot be had,
# its tests are skipped and this says so; with CI=true that is a failure.
set -uo pipefail
cd "$(dirname "$0")/../.."

missing() { # NAME WHAT-IS-SKIPPED
	if [ "${CI:-}" = true ]; then
		echo "needs: $1 is missing and CI=true: failing" >&2
		exit 1
	fi
	echo "needs: $1 is missing; skipped: $2"
}

debian() { # COMMAND PACKAGE
	command -v "$1" >/dev/null 2>&1 && { echo "needs: $1 is there"; return 0; }
	command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ] || return 1
	echo "needs: installing $2"
	if [ -z "${updated:-}" ]; then apt-get update -qq >/dev/null 2>&1; updated=1; fi
	# The tests start servers of their own; the package must not start one.
	local policy=/usr/sbin/policy-rc.d made=
	if [ ! -e "$policy" ]; then printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && made=1; fi
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$2" >/dev/null 2>&1
	[ -n "$made" ] && rm -f "$policy"
	command -v "$1" >/dev/null 2>&1
}

debian redis-server redis-server || missing redis-server "the Redis suites"
debian protoc protobuf-compiler || missing protoc "the check that generated code is current"

if command -v node >/dev/null 2>&1 && command -v npm >/dev/null 2>&1; then
	( cd testdata/clients/node && { [ -d node_modules/rocketmq-client-nodejs ] || { echo "needs: installing the Node.js client"; npm ci --silent --no-audit --no-fund >/dev/null; }; } ) \
		&& echo "needs: the Node.js client is there" \
		|| missing "npm package rocketmq-client-nodejs" "the Node.js client's suite"
else
	missing "Node.js (node and npm)" "the Node.js client's suite"
fi
exit 0
