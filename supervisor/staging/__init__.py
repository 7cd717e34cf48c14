"""Makes a bundle ready where it will run."""
