#!/usr/bin/env bash
# sandbox.sh COMMAND...: runs a command with a temporary directory of its own as TMPDIR and leaves nothing of it behind:
# a tierfs mount below it that a killed test could not take down is detached, then the directory is removed.
set -uo pipefail

root=$(mktemp -d "${TMPDIR:-/tmp}/tierfs-run-XXXXXXXX") || exit 1
root=$(cd "$root" && pwd -P)
chmod 755 "$root" # tests act as other users, too

mounts() { # the mount points below our own root, the deepest first
  awk -v root="$root/" 'index($5, root) == 1 { print $5 }' /proc/self/mountinfo | sort -r
}
clean_up() {
  trap '' PIPE # nobody may be left to read what it says
  local left
  left=$(mounts)
  if [ -n "$left" ]; then
    while read -r point; do
      echo "left mounted, detached now: $point" >&2
      umount -f -- "$point" 2>/dev/null || umount -l -- "$point" || true # by force: who waits for a dead daemon can go
    done <<<"$left"
  fi
  [ -n "$(mounts)" ] || rm -rf --one-file-system -- "$root"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

TMPDIR=$root "$@"
status=$?
if [ "$status" = 0 ] && [ -n "$(mounts)" ]; then
  echo "the command succeeded but left a mount behind" >&2
  status=1
fi
exit "$status"
