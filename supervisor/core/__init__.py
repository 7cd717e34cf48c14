"""Used by all of the supervisor: nurseries, threads, user names, locks and limits."""
