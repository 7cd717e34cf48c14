#!/usr/bin/env bash
# Old names of images are removed by a pattern: podman images --filter reference=team/app --format
# '{{.Repository}}:{{.Tag}}' | xargs podman rmi.
#
# One would guess: the list has the names that the pattern fits, as with docker. And a pattern without a registry means
# names without one: localhost/ or the default.
# What happens: the pattern selects images, and then all names of each of them are in the list, also those that have
# nothing to do with it. The release of the same build goes with it. A pattern without a registry fits in every
# registry, and after any number of parts of the path: app is registry.example.org/team/app, too.
# Seen with podman 4.3.1 of Debian 12. Needs root.
#
#   an image localhost/release:1, registry.example.org/team/app:1:
#   reference=team/app, reference=app: both names      reference=registry.example.org/app: none
. "$(dirname "$0")/common.bash" || exit 2
. "$here/podman.bash"
podman_engine buildah=1.28.2+ds1-3+deb12u1+b3
image localhost/release:1 'COPY file /'
engine tag localhost/release:1 registry.example.org/team/app:1
names() { engine images --filter "reference=$1" --format '{{.Repository}}:{{.Tag}}' | sort | xargs; }
both="localhost/release:1 registry.example.org/team/app:1"
expect "team/app" "$both" "$(names team/app)"
expect "app" "$both" "$(names app)"
expect "registry.example.org/app" "" "$(names registry.example.org/app)"
engine rmi $(names team/app) >>words
expect "after rmi of these names" "" "$(engine images --format '{{.Repository}}:{{.Tag}}')"
