#!/usr/bin/env bash
# A health check of a container asks runit, `sv status SERVICE`, or daemontools, `svstat SERVICE`, by the exit status.
#
# One would guess: other than 0 where the service is down, as with systemctl status, supervisorctl status and the
# init scripts of the LSB (3). sv's manual says its status is the number of services that failed.
# What happens: 0, whether it is up or down. What counts as failed is that runsv does not run. `sv check SERVICE` is
# 0, too, with "ok: down", when it has been put down by `sv down` or a file "down".
# Seen with runit 2.1.2 and daemontools 0.76 of Debian 12.
#
#   down:   sv status 0   sv check 0   svstat 0        no runsv: sv status 1
. "$(dirname "$0")/common.bash" || exit 2
debs runit=2.1.2-54 daemontools=1:0.76-8.1
mkdir -p services/{one,two}
printf '#!/bin/sh\nexec sleep 100\n' >services/one/run
cp services/one/run services/two/run
chmod +x services/*/run
touch services/one/down
runsv services/one &
on_exit+=('sv exit "$place/services/one" >/dev/null; wait')
status() { # COMMAND…: its status, and the first word of what it says
	local status=0
	"$@" >words || status=$?
	echo "$status $(sed -e "s|: .*||" -e q words)"
}
for ((try = 0; try < 100; try++)); do
	[[ ! -p services/one/supervise/ok ]] || break
	sleep 0.05
done
for ((try = 0; try < 100; try++)); do
	[[ $(sv status "$place/services/one") != fail* ]] || { sleep 0.05; continue; }
	break
done
expect "sv status" "0 down" "$(status sv status "$place/services/one")"
expect "sv check" "0 ok" "$(status sv check "$place/services/one")"
expect "svstat" "0 services/one" "$(status svstat services/one)"
expect "what svstat says" "down" "$(grep -o down words | head -n 1)"
expect "no runsv" "1 warning" "$(status sv status "$place/services/two")"
