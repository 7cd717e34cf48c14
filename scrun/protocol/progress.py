"""Messages from the supervisor while a `create` waits for its reply.

Wire: any number of messages precede the reply. Each is one byte, which no exit status uses, then
text and NUL; CALL has a format of its own.

* TO_STDERR: a line for standard error, as it is shown; TO_LOG: a level (in runc's words), a blank
  and a line for `--log`. They come if the call asked for them (`--debug`, `-v`,
  SCRUN_STDERR_DEBUG, …).
* LIVE: a line for a terminal, which replaces the last one; an empty one clears it.
* CALL: a command for `create` to run (`scrun.client.submit`).
* REASON_SHOWN: standard error already shows the reason that the reply gives.
"""

REASON_SHOWN = b"\xfb"
CALL = b"\xfc"
LIVE = b"\xfd"
TO_LOG = b"\xfe"
TO_STDERR = b"\xff"
