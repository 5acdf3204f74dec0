#!/bin/sh
# Regenerates the Go code of this package from its .proto files.
#
#   generate.sh           write *.pb.go beside this script
#   generate.sh --check   generate into a temporary folder and fail on any difference
#
# Needs protoc with its standard types (Debian: protobuf-compiler libprotobuf-dev) and Go. The two plugins are installed
# at the versions below into a temporary GOBIN, so nothing else is changed.
set -eu

PROTOC_GEN_GO=google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
PROTOC_GEN_GO_GRPC=google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2
PREFIX=mqrouter/rocketmqpb

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT INT TERM

command -v protoc >/dev/null || {
	echo "generate.sh: protoc is not installed (Debian: apt-get install protobuf-compiler libprotobuf-dev)" >&2
	exit 1
}
GOBIN=$tmp/bin GOFLAGS= go install "$PROTOC_GEN_GO"
GOBIN=$tmp/bin GOFLAGS= go install "$PROTOC_GEN_GO_GRPC"

# The files are compiled under a path of their own, so that their names in the
# protobuf registry cannot meet those of another copy of the protocol.
mkdir -p "$tmp/src/$PREFIX" "$tmp/out"
cp "$here"/*.proto "$tmp/src/$PREFIX/"
PATH=$tmp/bin:$PATH protoc -I "$tmp/src" \
	--go_out="$tmp/out" --go_opt=paths=source_relative \
	--go-grpc_out="$tmp/out" --go-grpc_opt=paths=source_relative,require_unimplemented_servers=false \
	"$tmp/src/$PREFIX"/*.proto
# protoc's own version is a comment of the generated files; leave it out, so
# that any protoc that knows proto3 optional gives the same bytes.
for f in "$tmp/out/$PREFIX"/*.pb.go; do
	grep -Ev "^// *(-|	) *protoc +v" "$f" >"$f.new" && mv "$f.new" "$f"
done

if [ "${1:-}" = --check ]; then
	status=0
	for f in "$tmp/out/$PREFIX"/*.pb.go; do
		diff -u "$here/$(basename "$f")" "$f" || status=1
	done
	for f in "$here"/*.pb.go; do
		[ -e "$tmp/out/$PREFIX/$(basename "$f")" ] || { echo "stale: $f"; status=1; }
	done
	[ "$status" = 0 ] || echo "generate.sh: generated code is not current; run internal/rocketmqpb/generate.sh" >&2
	exit "$status"
fi
rm -f "$here"/*.pb.go
cp "$tmp/out/$PREFIX"/*.pb.go "$here/"
