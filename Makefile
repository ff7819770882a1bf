# Everything a developer or a CI machine needs. Set-up steps are done once; their stamps lie under build/.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
GOFLAGS_BUILD := -trimpath -ldflags "-X main.version=$(VERSION)"

KAFKA_LIBS := build/kafka/libs
DRIVER_SRC := $(wildcard integration/kafka/driver/*.java)

.PHONY: build setup lint test demo bench soak fuzz clean

build:
	go build $(GOFLAGS_BUILD) -o bin/tierfs ./cmd/tierfs

# Packages, Kafka's jars and the compiled client driver.
setup: build/packages.stamp build/kafka/libs.stamp build/kafka/classes.stamp

build/packages.stamp: scripts/packages.sh
	@mkdir -p $(@D)
	scripts/packages.sh
	@touch $@

build/kafka/libs.stamp: integration/kafka/pom.xml scripts/kafka.sh | build/packages.stamp
	@mkdir -p $(@D)
	scripts/kafka.sh $(KAFKA_LIBS)
	@touch $@

build/kafka/classes.stamp: $(DRIVER_SRC) build/kafka/libs.stamp
	@rm -rf build/kafka/classes
	javac -Xlint:all,-serial,-processing -Werror -cp '$(KAFKA_LIBS)/*' -d build/kafka/classes $(DRIVER_SRC)
	@touch $@

lint:
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	if [ -n "$$unformatted" ]; then echo "not formatted by gofmt:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	go tool staticcheck ./...
	go test ./internal/imports

# What CI runs: lint, unit tests, fuzz targets, and a real mount under a real Kafka.
test: setup
	@$(MAKE) --no-print-directory lint
	FUZZTIME=$(or $(FUZZTIME),1s) scripts/sandbox.sh scripts/test.sh

# The story in words: a broker's directory adopted in place, tiered, evicted, read back. Leaves nothing behind.
demo: setup
	@scripts/sandbox.sh go run ./integration/demo

# The ratios of BENCHMARKS.md, as a markdown table on stdout.
bench: setup
	@scripts/sandbox.sh go run ./integration/bench

# The races with all of their interleavings, and the integration tests with longer outages and more rounds.
soak: setup
	TIERFS_SOAK=1 scripts/sandbox.sh go test -race -count=1 -timeout 60m ./tier ./upload ./fs ./holder
	TIERFS_SOAK=1 TIERFS_FS_TEST_WRITES=writeback scripts/sandbox.sh go test -race -count=1 -timeout 60m ./fs
	TIERFS_SOAK=1 scripts/sandbox.sh go test -count=1 -timeout 80m -v ./integration
	TIERFS_SOAK=1 scripts/sandbox.sh go test -race -count=1 -timeout 60m -v ./integration/crash
	TIERFS_SOAK=1 scripts/sandbox.sh go test -race -count=1 -timeout 60m -v ./integration/powercut

# Each fuzz target for FUZZTIME (60s here, 1s in `make test`).
fuzz: build/packages.stamp
	scripts/sandbox.sh scripts/fuzz.sh $(or $(FUZZTIME),60s)

clean:
	rm -rf bin build
