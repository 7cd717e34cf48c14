#!/usr/bin/env bash
# The exit status of srun when its program does not exist, or cannot be executed.
#
# One would guess: 127 and 126, as with a shell, env, nohup and timeout.
# What happens: the number of the error of execve(2): 2 (ENOENT), 8 (ENOEXEC), 13 (EACCES). It looks like
# a status of the program's own.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   missing: 2    an executable text without #!: 8    a directory: 13
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
printf 'words\n' >text
chmod 755 text
status() { local seen=0; srun -Q -n1 "$1" 2>>messages || seen=$?; echo "$seen"; }
expect "missing" 2 "$(status /no/such/program)"
expect "text without #!" 8 "$(status "$place/text")"
expect "directory" 13 "$(status /etc)"
