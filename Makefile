# Every target works on a fresh clone with Go 1.26 and make; `make test`
# installs or builds what else the tests need (see scripts named below).
SHELL := /bin/bash
GOLANGCI_VERSION := v2.12.2
CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/mqrouter
GOLANGCI := $(CACHE)/bin/golangci-lint-$(GOLANGCI_VERSION)

.PHONY: build test unit e2e lint fmt generate generate-check needs fuzz fuzz-short soak rounds failover copies apache bench wan clean

build: ## the binary, into bin/
	go build -o bin/mqrouter ./cmd/mqrouter

test: needs lint generate-check unit fuzz-short e2e ## everything that a change must pass

unit: ## every package's tests, with the race detector, shuffled
	deploy/test/unit.sh -race -shuffle=on -timeout 15m $$(go list ./... | grep -v /cmd/mqrouter/internal/e2e)
	go test -count=1 -timeout 10m ./replication/flow -seeds 300 # the race detector runs fewer
	go test -count=1 -timeout 10m ./replication/ship -seeds 80 -mutant-seeds 60 # likewise, and no broken rules
	go test -count=1 -timeout 20m ./cmd/mqrouter/internal/sim -seeds 80 # likewise, and fewer tests
	go test -count=1 -timeout 10m ./router -run TestPathsSurviveFaults -seeds 20 # likewise

e2e: needs ## real processes, official clients, Redis, and the README's commands
	go test -count=1 -parallel 3 -timeout 30m ./cmd/mqrouter/internal/e2e/...

needs: ## what the tests need besides Go; says what is skipped
	@deploy/test/needs.sh

# The linter's cache holds absolute paths: one for each checkout.
lint: $(GOLANGCI)
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "gofmt: run 'make fmt'"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	GOLANGCI_LINT_CACHE=$(CURDIR)/.cache/golangci-lint $(GOLANGCI) run

$(GOLANGCI):
	@mkdir -p $(dir $@)
	GOBIN=$(dir $@)tmp go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	mv $(dir $@)tmp/golangci-lint $@ && rmdir $(dir $@)tmp

fmt:
	gofmt -w $$(git ls-files '*.go')

generate: ## the protobuf code, from the .proto files
	internal/rocketmqpb/generate.sh

generate-check: ## fails when the committed protobuf code is not current
	internal/rocketmqpb/generate.sh --check

fuzz: ## every fuzz target for a minute each
	deploy/test/fuzz.sh 60s

# By number: a second on a busy machine may end before the corpus was read.
fuzz-short: ## every fuzz target with 2,000 inputs; unit runs their corpus too
	MQROUTER_FUZZ_PLAIN=1 deploy/test/fuzz.sh 2000x

soak: ## the long fault suite: more seeds, more kills
	MQROUTER_LONG=1 go test -count=1 -timeout 8h ./replication/flow/... ./broker/... ./cmd/mqrouter/internal/sim ./cmd/mqrouter/internal/e2e/...
	MQROUTER_LONG=1 go test -count=1 -timeout 8h ./replication/ship -seeds 10000
	MQROUTER_RACE=1 go test -count=1 -timeout 1h -run 'TestFaults|TestLongCut' ./cmd/mqrouter/internal/e2e

rounds: ## 200 rounds of faults on a replicated group; ARGS='-seed N -rounds N' replays, '-coordinator consul' runs it under Consul
	MQROUTER_LONG=1 go test -count=1 -timeout 4h -v -run 'TestRoundsOfFaults$$' ./cmd/mqrouter/internal/e2e $(ARGS)

failover: ## for how long nobody publishes when a master dies, 50 times; ARGS='-coordinator consul' runs it under Consul
	MQROUTER_LONG=1 go test -count=1 -timeout 1h -v -run 'TestTimeWithoutAPublish$$' ./cmd/mqrouter/internal/e2e $(ARGS)

copies: ## publishes to one, two and three copies, and what an empty replica costs them
	MQROUTER_LONG=1 go test -count=1 -timeout 1h -v -run 'TestCopies$$' ./cmd/mqrouter/internal/e2e

apache: ## the clients' scenarios against Apache RocketMQ itself, and what differs
	deploy/test/apache.sh

bench: ## the figures of the README's table
	deploy/test/bench.sh

wan: ## what links carry over emulated long paths, beside the kernel's TCP; needs root, says so without
	MQROUTER_WAN=1 go test -count=1 -timeout 8h -v -run '^TestWAN' ./router/link

clean:
	rm -rf bin mqrouter-dev mqrouter-replicas .cache
