"""What is said of a container whose supervisor has died."""

LOST = {"org.scrun.reason": "scrun-failure", "org.scrun.message": "the supervisor was lost"}
"""Annotations of a container that ended because its supervisor died."""
