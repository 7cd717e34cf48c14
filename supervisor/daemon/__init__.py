"""The supervisor as a server: its process, its socket, its requests."""
