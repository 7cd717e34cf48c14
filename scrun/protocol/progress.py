"""What the supervisor says about a container while its `create` waits for the answer.

Wire: any number of messages before the reply, if the call asked for them (`--debug`, `-v`,
SCRUN_STDERR_DEBUG, …): one byte that says where to, which is no exit status, text, NUL. The text
for standard error is as it is shown; that for `--log` has its level (runc's name) and a blank
before it. LIVE is one line of a terminal that takes the place of the one before, and goes away.
CALL is no message, but something that `create` is to do (`scrun.client.call`). TOLD says that
the reason in the reply is on standard error already.
"""

TOLD = b"\xfb"
CALL = b"\xfc"
LIVE = b"\xfd"
TO_LOG = b"\xfe"
TO_STDERR = b"\xff"
