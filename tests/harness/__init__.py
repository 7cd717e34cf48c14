"""What the tests drive scrun with: users, bundles, lives, terminals, the cluster, podman."""
