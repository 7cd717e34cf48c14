"""The embedded engine: this machine, an OCI runtime, no daemon."""
