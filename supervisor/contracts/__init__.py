"""What parts of the supervisor promise each other: engines, stagers, plugins, requests."""
