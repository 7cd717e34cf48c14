"""The local engine: containers on this machine, by an OCI runtime, without a daemon."""
