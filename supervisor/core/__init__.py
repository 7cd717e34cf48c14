"""What all of the supervisor may use: nurseries, threads, names, locks and limits."""
