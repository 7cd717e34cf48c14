"""The version of scrun, and of the runtime specification that it speaks."""

VERSION = "0.2.0"
SPEC = "1.0.2"
