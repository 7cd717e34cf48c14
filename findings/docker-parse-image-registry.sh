#!/usr/bin/env bash
# A program in JavaScript takes an image's name apart with docker-parse-image, and asks the registry for its `fullname`:
# registry.example.org/app, localhost:5000/app:1, or one with a digest.
#
# One would guess: names without a registry get what docker gives them (library/), the others stay as they are; a digest
# is told from a tag.
# What happens: every name of one part gets library/, with the registry before it, where no such image is. A digest is
# the tag, and its "@" has become ":", which no registry takes; nor is docker.io put before anything.
# Seen with docker-parse-image 3.0.1 of npm.
#
#   localhost:5000/app:1 -> localhost:5000/library/app:1      app@sha256:… -> library/app:sha256:…
. "$(dirname "$0")/common.bash" || exit 2
npms docker-parse-image@3.0.1
fullname() { node -p 'require("docker-parse-image")(process.argv[1]).fullname' "$1"; }
digest=sha256:$(printf '' | sha256sum | cut -d ' ' -f 1)
expect "app" library/app:latest "$(fullname app)"
expect "a registry" localhost:5000/library/app:1 "$(fullname localhost:5000/app:1)"
expect "a registry with a dot" registry.example.org/library/app:latest "$(fullname registry.example.org/app)"
expect "two parts" registry.example.org/team/app:1 "$(fullname registry.example.org/team/app:1)"
expect "a digest" "library/app:$digest" "$(fullname "app@$digest")"
