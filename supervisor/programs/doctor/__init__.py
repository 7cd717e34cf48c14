"""scrun doctor: checks whether containers can run here, one line per check, with the remedy."""
