"""What makes a supervisor start sooner: a user's first container waits for its imports."""
