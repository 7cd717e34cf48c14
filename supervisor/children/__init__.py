"""Child processes: each is started, read and reaped here."""
