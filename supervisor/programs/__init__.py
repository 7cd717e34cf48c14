"""Programs that end by themselves. RUNS IN: each in a process of its own."""
