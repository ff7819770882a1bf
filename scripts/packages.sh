#!/usr/bin/env bash
# Installs the Debian packages that the build, the tests and the benchmarks run, but only those that are missing.
set -euo pipefail

missing=()
need() { # need COMMAND PACKAGE...: the packages, if the command is not there
  local command=$1
  shift
  command -v "$command" >/dev/null 2>&1 || missing+=("$@")
}
need gcc gcc libc6-dev # the race detector links with cgo
need javac openjdk-17-jdk-headless
need java openjdk-17-jdk-headless
need mvn maven
need fio fio
need strace strace
need mkfs.ext4 e2fsprogs
[ -e /usr/include/stdlib.h ] || missing+=(libc6-dev)

if [ ${#missing[@]} -gt 0 ]; then
  echo "installing: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get -q -o DPkg::Lock::Timeout=300 update
  apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "${missing[@]}"
fi

for command in gcc javac java mvn fio strace mkfs.ext4; do
  command -v "$command" >/dev/null 2>&1 || { echo "$command is missing and no package brought it" >&2; exit 1; }
done
[ -c /dev/fuse ] || { echo "/dev/fuse is missing: this kernel or container has no FUSE" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "the tests mount file systems: run them as root" >&2; exit 1; }
