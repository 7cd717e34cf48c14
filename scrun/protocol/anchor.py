"""The protocol between an anchor and its supervisor (see `scrun.anchor.shell`).

For each signal that it receives, the anchor sends a line with the signal's name. The supervisor
sends one line, the exit status, and the anchor exits with it.
"""

LOST = 125
"""Exit status of an anchor whose supervisor died: that of docker and podman for own faults."""


PASSED_ON = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "WINCH")
