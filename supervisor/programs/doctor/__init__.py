"""scrun doctor: whether containers can run here, one line for each thing, with the remedy."""
