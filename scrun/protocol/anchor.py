"""What an anchor and its supervisor say to each other (see `scrun.anchor.shell`).

The anchor sends the name of each signal that it gets, as a line; the supervisor sends the exit
status, as a line, and then the anchor ends with that.
"""

LOST = 125
"""Exit status of an anchor whose supervisor died, as docker and podman have it for own faults."""


PASSED_ON = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "WINCH")
