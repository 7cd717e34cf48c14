"""The supervisor: one trio nursery tree for the containers of a group."""
