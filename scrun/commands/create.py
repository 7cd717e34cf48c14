"""scrun create: request a job, stage the bundle in, and leave an anchor behind.

Wire: `create PID UMASK CWD COUNT ARGUMENT... NAME=VALUE...` with four descriptors: the
container's standard input, output and error, and the supervisor's end of the anchor's socket.
PID is that of this process; the anchor's follows in a line of its own. The answer comes when the
container is *created*: it has its job and its staged bundle, or has waited `create_timeout` for
them. Messages may precede it (`scrun.protocol.wire`). One more byte confirms it: if `create`
is killed before it has published the pid file, the supervisor removes the container again.

Errors: whatever can be checked without a job is refused before one is requested; then there is no
container, no anchor and no pid file.

The anchor is being made while the supervisor gets the request; no job is requested before its pid
has followed. If this process is killed halfway, the supervisor sees the connection close and ends
the container and the anchor.
"""

from scrun.cli.failure import report_failure
from scrun.cli.parse import Parsed
from scrun.client.anchored import Anchored
from scrun.client.submit import submit
from scrun.oci.ids import check_id


def run(parsed: Parsed) -> int:
    check_id(parsed.id or "")
    with Anchored(parsed) as anchored:
        anchored.begin(leave=True)
        status, answer, reason_shown = submit(parsed, anchored)
    if status:
        return report_failure(answer, status, parsed, reason_shown=reason_shown)
    return 0
