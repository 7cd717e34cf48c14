"""Holds what containers need to outlive their supervisor. RUNS IN: the keeper.

It receives descriptors from its supervisor, and holds them in its own table. When the supervisor
has died, it calls another one, and gives all of it to that.

It is a bare interpreter only as long as there is something to do. Then it becomes a shell that
reads from a pipe, with the same descriptors, and the interpreter again at a line in that pipe, or
at its end: a shell has a twentieth of the memory. Both programs are files in memory, which it has
open, so it can be begun again while scrun is being installed.

Its standard input is the pipe, LINE a socket (SOCK_SEQPACKET); after each message there, the
supervisor writes a line to the pipe. The messages are:

    +  NUL NAME NUL CONTENT NUL GONE NUL NEW    with the descriptors NEW: the content of NAME
    .  NUL NAME NUL CONTENT NUL GONE NUL NEW    likewise
    .                                           all messages that began with + are complete
    all                                         give everything
    next                                        give the next one
    end                                         let all go, and exit

GONE and NEW are the names of descriptors, separated by spaces. CONTENT, a line, replaces that of
before; if it is empty, all that is held under NAME goes. A message with `+` counts only with the
next `.`, together. `all` is answered by a message NAME NUL CONTENT NUL NAMES for each, with its
descriptors, and at last by one without a name. After each one it waits for `next`, so that few are
on their way. At the end of file it still has everything.
"""
