#!/usr/bin/env bash
# composerize makes a file for compose of a `docker run` line, in which a directory is given for reading only and
# volumes come from another container: --mount type=bind,source=/x,target=/y,readonly --volumes-from data:ro.
#
# One would guess: the same container; what it cannot say is a comment at the end, as it has for -P and --annotation.
# What happens: `readonly` is gone, so the container may write to the host's directory, and nothing says so. The
# volumes stand under volume_from, a name that compose does not have (volumes_from). With -v /x:/y:ro it is right.
# Seen with composerize 1.7.6.
#
#   --mount …,readonly: type, source, target      --volumes-from data: volume_from
. "$(dirname "$0")/common.bash" || exit 2
npms composerize@1.7.6
cat >program.js <<'END_OF_PROGRAM'
const composerize = require("composerize");
console.log(composerize(`docker run ${process.argv[2]} image`));
END_OF_PROGRAM
lines() { # OPTIONS: what is said of volumes, and comments
	node program.js "$1" | grep -E 'volume|type|source|target|read|ro$|^#' | xargs
}
expect "-v" "volumes: - /x:/y:ro" "$(lines '-v /x:/y:ro')"
mount=type=bind,source=/x,target=/y,readonly
expect "--mount" "volumes: - type: bind source: /x target: /y" "$(lines "--mount $mount")"
expect "--volumes-from" "volume_from: - data:ro" "$(lines '--volumes-from data:ro')"
ignored="# ignored options for image # --annotation=a=b"
expect "what it does not know" "$ignored" "$(lines '--annotation a=b')"
