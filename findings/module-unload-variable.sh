#!/usr/bin/env bash
# A module of Environment Modules sets a variable that the user has set (CC, OMP_NUM_THREADS, a licence server), and
# is unloaded again, as `module switch` and `module purge` do too.
#
# One would guess: it is as it was before; unload undoes what load did, and a path that the user had in PATH stays
# there.
# What happens: the variable is gone. setenv keeps nothing of before; only pushenv in the modulefile does. So a script
# that loads and unloads a module for one step leaves the rest without the user's setting.
# Seen with Environment Modules 5.2.0 of Debian 12.
#
#   CC=mine; load: CC=module; unload: CC is not set     with pushenv: CC=mine
. "$(dirname "$0")/common.bash" || exit 2
debs environment-modules=5.2.0-1 tcl8.6=8.6.13+dfsg-2 libtcl8.6=8.6.13+dfsg-2
mkdir -p modules/{set,push}
printf '#%%Module\nsetenv CC module\nprepend-path PATH /opt/tool/bin\n' >modules/set/1
printf '#%%Module\npushenv CC module\nprepend-path PATH /opt/tool/bin\n' >modules/push/1
export MODULEPATH=$place/modules
module() { eval "$(tclsh8.6 "$place/root/usr/lib/x86_64-linux-gnu/modulecmd.tcl" sh "$@")"; }
try() { # MODULE: the variable after load and after unload, and how often the user's path is there then
	export CC=mine PATH=$PATH:/opt/tool/bin
	module load "$1"
	local loaded=$CC
	module unload "$1"
	echo "$loaded, ${CC-not set}, $(tr : '\n' <<<"$PATH" | grep -c opt/tool)"
}
expect "setenv" "module, not set, 1" "$(try set)"
expect "pushenv" "module, mine, 1" "$(try push)"
