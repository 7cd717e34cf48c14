#!/usr/bin/env bash
# A file for compose has variables with defaults, image: app:${TAG:-stable} and ports: ["${PORT:-80}:80"], and hands
# variables of the same names to the program: environment: {TAG: debug, PORT: "8080"}.
#
# One would guess: app:stable at port 80. `environment` is for the container; what is put into the file comes from the
# shell and .env, in the specification of compose, and so with docker compose.
# What happens: podman-compose takes the values of a service's `environment` for that service: app:debug, at port 8080.
# The same file runs another image elsewhere. What the shell has counts more, so it also depends on who starts it.
# Seen with podman-compose 1.6.0; what it calls is caught by a script.
#
#   without `environment`: app:stable 80:80     with it: app:debug 8080:80     TAG=new in the shell: app:new
. "$(dirname "$0")/common.bash" || exit 2
podman_compose
unset TAG PORT
seen() { # LINE: of the service
	printf '%s\n' 'services:' '  web:' '    image: app:${TAG:-stable}' '    ports: ["${PORT:-80}:80"]' "$1" >compose.yaml
	podman-compose config 2>words | sed -n 's/^ *image: //p; s/^ *- \(.*:80\)$/\1/p' | xargs
}
expect "without" "app:stable 80:80" "$(seen '')"
environment='    environment: {TAG: debug, PORT: "8080"}'
expect "with environment" "app:debug 8080:80" "$(seen "$environment")"
export TAG=new
expect "TAG in the shell" "app:new 8080:80" "$(seen "$environment")"
