#!/usr/bin/env bash
# A command runs in new namespaces with the small tools of LXC, `lxc-usernsexec -m MAP -- COMMAND` or `lxc-unshare -s
# MOUNT COMMAND`, as scripts do that make or remove the root file system of a container of a user.
#
# One would guess: the exit status of COMMAND, and 137 if it is killed (for want of memory), as with a shell, nsenter
# and lxc-attach.
# What happens: of lxc-usernsexec a killed COMMAND has the status 0, as if it had succeeded. lxc-unshare has 1 for
# everything but 0, and says that it failed to wait for the process, and "No such file or directory".
# Seen with LXC 5.0.2 of Debian 12. Needs root.
#
#   COMMAND ends with 3: lxc-usernsexec 3, lxc-unshare 1      is killed: lxc-usernsexec 0, lxc-unshare 1
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs lxc=1:5.0.2-1+deb12u4 liblxc1=1:5.0.2-1+deb12u4 libseccomp2=2.5.4-1+deb12u1 libcap2=1:2.66-4+deb12u3+b1 \
	libapparmor1=3.0.8-3
status() { "$@" 2>words && echo 0 || echo $?; }
killed=(sh -c 'kill -KILL $$')
expect "lxc-usernsexec, 3" 3 "$(status lxc-usernsexec -m b:0:0:1 -- sh -c 'exit 3')"
expect "lxc-usernsexec, killed" 0 "$(status lxc-usernsexec -m b:0:0:1 -- "${killed[@]}")"
expect "lxc-unshare, 0" 0 "$(status lxc-unshare -s MOUNT true)"
expect "lxc-unshare, 3" 1 "$(status lxc-unshare -s MOUNT -- sh -c 'exit 3')"
expect "its words" 1 "$(grep -c 'No such file or directory - Failed to wait for' words)"
expect "lxc-unshare, killed" 1 "$(status lxc-unshare -s MOUNT -- "${killed[@]}")"
