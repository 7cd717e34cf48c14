#!/usr/bin/env bash
# `module load lib`, where there are lib/2.0, its beta lib/2.0b1 and lib/2.0-rc1, and nothing says which is the
# default.
#
# One would guess: 2.0; versions are compared as sort -V and packages do, so that 1.10 is after 1.9, and what comes
# before a release is less than it.
# What happens: 1.10 is after 1.9, but the highest of all is 2.0b1: the beta, on each load without a version, and no
# word of it. Only an entry "default" in .modulerc or .version helps.
# Seen with Environment Modules 5.2.0 of Debian 12.
#
#   1.9 1.10: 1.10      2.0 2.0-rc1: 2.0-rc1      2.0 2.0b1: 2.0b1
. "$(dirname "$0")/common.bash" || exit 2
debs environment-modules=5.2.0-1
command -v tclsh >words || cannot "it needs tclsh"
loaded() { # VERSION…: which one is loaded
	rm -rf modules
	mkdir -p modules/lib
	local version
	for version; do printf '#%%Module\nsetenv LIB %s\n' "$version" >"modules/lib/$version"; done
	env -i PATH="$PATH" HOME="$place" MODULEPATH="$place/modules" \
		tclsh "$place/root/usr/lib/$(uname -m)-linux-gnu/modulecmd.tcl" bash load lib 2>words |
		grep -oE '\bLIB=[^;]*' | cut -d= -f2
}
expect "numbers" 1.10 "$(loaded 1.9 1.10)"
expect "a candidate" 2.0-rc1 "$(loaded 2.0 2.0-rc1)"
expect "a beta" 2.0b1 "$(loaded 2.0 2.0b1)"
