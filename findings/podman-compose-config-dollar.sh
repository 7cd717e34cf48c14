#!/usr/bin/env bash
# Several files for compose become one, to be kept or handed on: podman-compose -f a.yaml -f b.yaml config >one.yaml. A
# command has "$$HOME", which stands for a "$" that the shell in the container is to see.
#
# One would guess: one.yaml does the same as the two: it is a file for compose again, with $$HOME. docker compose writes
# it so.
# What happens: it has $HOME. So when it is used, the variable of whoever starts it is put in, or nothing: the shell in
# the container gets another home directory, and a password with "$$" loses its end.
# Seen with podman-compose 1.6.0; what it calls is caught by a script.
#
#   echo $$HOME: in one.yaml echo $HOME; in what is made of that: echo /home/user
. "$(dirname "$0")/common.bash" || exit 2
podman_compose
export HOME=/home/user
printf '%s\n' 'services:' '  web:' '    image: app' '    command: ["sh", "-c", "echo $$HOME"]' >compose.yaml
words_of() { sed -n 's/^ *- \(echo .*\)/\1/p' "$1"; }
podman-compose config >one.yaml 2>words
expect "one.yaml" 'echo $HOME' "$(words_of one.yaml)"
podman-compose -f one.yaml config >two.yaml 2>words
expect "made of one.yaml" "echo /home/user" "$(words_of two.yaml)"
