# The commands of the project. `make help` lists them.

SHELL := /bin/bash
GO    ?= go
BIN   := bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
LDFLAGS := -X 'main.version=$(VERSION) ($(COMMIT))'
FUZZTIME ?= 20s
TESTS := $(GO) tool gotestsum --format pkgname-and-test-fails --format-hide-empty-pkg --
# The lab's tests build networks of namespaces, take minutes and need root: they are `make e2e`.
LAB := ./e2e/lab ./e2e/patterns ./e2e/agents
PACKAGES = $(shell $(GO) list ./... | grep -v -e /e2e/lab$$ -e /e2e/patterns$$ -e /e2e/agents$$)

.DEFAULT_GOAL := help
.PHONY: help build run test check race e2e fuzz bench bench-peers bench-agents golden capacity geodb demo-certs deb test-packages clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## compile gslbd, gslb-agent and gslbctl into bin/
	@mkdir -p $(BIN)
	$(GO) build -trimpath -ldflags "$(LDFLAGS)" -o $(BIN)/ ./cmd/...

run: build ## serve config.example.yaml on 127.0.0.1:5300 (Ctrl-C stops it)
	$(BIN)/gslbd --config config.example.yaml

test: ## run every test; those that need root or programs of the system say what they skip
	$(TESTS) $(PACKAGES)

race: ## run every test under the race detector
	$(TESTS) -race $(PACKAGES)

check: ## what to run before a push: format, vet, other systems, staticcheck, tests under the race detector, import graph
	@unformatted=$$($(GO) tool gofumpt -l .); test -z "$$unformatted" || { echo "not formatted, run 'go tool gofumpt -w .':"; echo "$$unformatted"; exit 1; }
	$(GO) vet ./...
	@for os in darwin freebsd; do GOOS=$$os CGO_ENABLED=0 $(GO) build ./... || exit 1; done
	$(GO) tool staticcheck ./...
	$(TESTS) -race $(PACKAGES)

e2e: ## run the system between continents: namespaces, real resolvers, faults, the floating address patterns (needs root)
	LAB_OWNER=$$PPID $(TESTS) -count=1 -parallel 4 -timeout 15m $(LAB)

fuzz: ## run each fuzz target for FUZZTIME (20s)
	@set -e; for pkg in $$($(GO) list ./...); do \
	  for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "== $$pkg $$target"; $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 5x $$pkg; \
	  done; done

BENCHCOUNT ?= 6
bench: ## run the benchmarks; BENCHCOUNT (6) times, for go tool benchstat OLD NEW
	$(GO) test -run '^$$' -bench . -benchmem -count $(BENCHCOUNT) ./...

bench-peers: ## measure gslbd and other DNS servers side by side into docs/performance.md (needs root, half an hour)
	$(GO) run ./e2e/peers -write docs/performance.md

bench-agents: ## run 200 agents against three gslbd, and print what they cost one another (needs root, two minutes)
	LAB_OWNER=$$PPID $(GO) test ./e2e/agents -count 1 -v -timeout 15m -agents 200 -real 3 -resolvers 10000 -ask 30s -refresh 1m -time 60s

golden: ## write the golden files and docs/reference.md anew; read the diff before you commit it
	$(GO) test ./policy ./sitereport ./config ./e2e -run 'Golden|HAProxyCases|Imports|Reference' -update

capacity: ## rehearse all of docs/capacity.md again, and write its tables and plots anew
	$(GO) test ./cmd/gslbctl -run CapacityPage -update

geodb: ## get a full city database (DB-IP, CC BY 4.0) into geodb/
	testdata/geo/geodb

demo-certs: ## make certificates for trying TLS with config.example.yaml, into demo-certs/
	$(GO) run ./testdata/certs/demo config.example.yaml demo-certs

deb: ## build the Debian packages and their SBOMs into dist/
	packaging/build

test-packages: ## install, upgrade and purge the packages in a Debian that is really booted (needs root, a mirror of Debian, minutes)
	packaging/test-booted

clean: ## remove what was built
	rm -rf $(BIN) demo-certs dist
