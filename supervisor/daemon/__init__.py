"""The supervisor as a server: process, socket, requests."""
