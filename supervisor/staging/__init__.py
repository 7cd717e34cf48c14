"""Staging: prepares a bundle for the machine where it will run."""
