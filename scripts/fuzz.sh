#!/usr/bin/env bash
# fuzz.sh DURATION: runs every native fuzz target of the module for DURATION each. The targets are found, not listed: a new one runs by itself.
set -euo pipefail
duration=$1
cd "$(dirname "$0")/.."

count=0
while IFS=: read -r file target; do
  echo "fuzz $target in ./$(dirname "$file") for $duration"
  go test -run '^$' -fuzz "^$target\$" -fuzztime "$duration" -parallel 2 "./$(dirname "$file")"
  count=$((count + 1))
done < <(grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed -E 's/^\.\/([^:]*):[0-9]+:func /\1:/' | sort)
[ "$count" -gt 0 ] || { echo "there is no fuzz target: something is wrong with the search" >&2; exit 1; }
echo "$count fuzz targets ran"
