#!/usr/bin/env bash
# test.sh: everything that has to be green, cheapest first; run by `make test` inside scripts/sandbox.sh. Stops at the first failure.
set -euo pipefail
cd "$(dirname "$0")/.."

integration=github.com/tierfs/tierfs/integration
units=$(go list ./... | grep -v "^$integration\$")
[ -n "$units" ] || { echo "go list found no packages" >&2; exit 1; }

echo "== unit tests, race detector on"
# shellcheck disable=SC2086
go test -race -p 3 -timeout 10m $units

echo "== the file system once more, with writes that the kernel gathers"
TIERFS_FS_TEST_WRITES=writeback go test -timeout 10m ./fs

echo "== fuzz targets"
scripts/fuzz.sh "${FUZZTIME:-1s}"

echo "== a real mount under a real Kafka"
go test -count=1 -timeout 30m -parallel 4 ./integration # they wait for brokers most of the time
