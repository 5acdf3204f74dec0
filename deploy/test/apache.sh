#!/usr/bin/env bash
# Compares mqrouter with Apache RocketMQ: fetches its name server, broker and proxy
# with Maven, once, into the cache, and plays the scenarios of the official clients
# against them. What must be there is said; nothing is skipped.
set -euo pipefail
cd "$(dirname "$0")/../.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/mqrouter/clients
pom=testdata/apache/pom.xml

CI=true deploy/test/needs.sh
home=$cache/apache-$({ sha256sum 2>/dev/null || shasum -a 256; } <$pom | cut -c 1-16)
if ! [ -d "$home" ]; then
	echo "apache: fetching Apache RocketMQ's servers"
	rm -rf "$home.new"
	mvn -B -q -f $pom dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$home.new/lib"
	mv "$home.new" "$home"
fi
MQROUTER_APACHE=1 go test -count=1 -timeout 40m -v -run 'TestApache$' ./cmd/mqrouter/internal/e2e "$@"
