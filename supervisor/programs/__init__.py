"""Short-lived helper programs. RUNS IN: each in a process of its own."""
