"""The container's files where its pid leads engines to: in the namespaces of its anchor."""
