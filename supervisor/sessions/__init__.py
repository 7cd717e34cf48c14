"""What is done with a container while it runs: exec, pause, ps, attach, logs."""
