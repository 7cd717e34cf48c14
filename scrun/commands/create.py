"""scrun create: ask for a job, make the bundle ready there, and leave an anchor behind.

Wire: `create PID UMASK CWD COUNT ARGUMENT... NAME=VALUE...` with four descriptors: the
container's standard input, output and error, and the supervisor's end of the anchor's socket.
PID is that of this process; the anchor's follows in a line of its own.
The answer comes when the container is *created*: allocated and staged. Messages may come before
it (`scrun.protocol.progress`). It is confirmed by one more byte: a `create` that is killed before
it has made the pid file leaves no container behind that nobody knows.

Errors: whatever can be known without a job is refused before one is asked for; then there is no
container, no anchor and no pid file.

The making of the anchor begins before the supervisor is asked, and goes on beside that: its pid
follows the request, and no job is asked for before. When this process is killed half-way the
supervisor sees the connection close, ends what it began, and the anchor with it.
"""

from scrun.cli.parse import Parsed
from scrun.client.anchored import Anchored
from scrun.client.submit import submit
from scrun.oci.ids import check_id


def run(parsed: Parsed, argv: "list[str]") -> int:
    """Create a container.

    Args:
        parsed: The parsed command line.
        argv: The same as it came; the supervisor reads it again, with the same table.

    Raises:
        ScrunError: In words for the caller; the container does not exist then.
        OSError: The pid file, the console socket or the root directory is at fault.
    """
    check_id(parsed.id or "")
    with Anchored(parsed) as anchored:
        anchored.begin(leave=True)
        status, answer, reason_shown = submit(parsed, argv, anchored)
    if status:
        from scrun.cli.failure import report_failure

        return report_failure(answer, status, parsed, reason_shown=reason_shown)
    return 0
