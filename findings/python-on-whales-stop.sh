#!/usr/bin/env bash
# A program ends a container at once with python-on-whales: docker.stop("web", time=0); or it waits a minute: time=60.
# "Seconds to wait for stop before killing a container (default 10)", says its documentation of `time`.
#
# One would guess: docker stop --time 0 and --time 60, as docker.restart(time=…) does with --time.
# What happens: a number is dropped without a word, so docker waits 10 seconds, always. A timedelta is passed on, but as
# "60.0s", and docker stop wants a whole number of seconds.
# Seen with python-on-whales 0.81.0; what it calls is caught by a script.
#
#   stop(time=0), stop(time=60): stop web      a timedelta: stop --time 60.0s web      restart(time=60): --time 60
. "$(dirname "$0")/common.bash" || exit 2
pips python-on-whales==0.81.0
cat >catch <<'END_OF_SCRIPT'
#!/bin/sh
echo "$@" >>calls
END_OF_SCRIPT
chmod +x catch
cat >program.py <<'END_OF_PYTHON'
import os
from datetime import timedelta

from python_on_whales import DockerClient

docker = DockerClient(client_call=[os.path.abspath("catch")])
docker.stop("web", time=0)
docker.stop("web", time=60)
docker.stop("web", time=timedelta(minutes=1))
docker.restart("web", time=60)
END_OF_PYTHON
python program.py
expect "stop(time=0)" "container stop web" "$(sed -n 1p calls)"
expect "stop(time=60)" "container stop web" "$(sed -n 2p calls)"
expect "stop(time=timedelta(minutes=1))" "container stop --time 60.0s web" "$(sed -n 3p calls)"
expect "restart(time=60)" "restart --time 60 web" "$(sed -n 4p calls)"
