#!/usr/bin/env bash
# A job has a tmux or screen session with its number, job12, and a script ends that of job 1, which has none any more:
# `tmux kill-session -t job1`, `screen -S job1 -X quit`.
#
# One would guess: there is no session "job1": an error, and nothing ends. Names are names.
# What happens: both take the beginning of a name if just one session begins so. has-session and kill-session end with
# 0, and job12's session is gone, with all that runs in it. For tmux "=job1" means this name alone; screen has no such
# sign, only the number of its process before the name (-S 123.job1).
# Seen with tmux 3.3a and screen 4.9.0 of Debian 12.
#
#   sessions after job1's was to end: none     with tmux's -t =job1: job12
. "$(dirname "$0")/common.bash" || exit 2
debs tmux=3.3a-3 screen=4.9.0-4 libutempter0=1.2.1-3 libevent-core-2.1-7=2.1.12-stable-8
unset TMUX TMUX_PANE STY
ours() { tmux -S "$place/socket" -f /dev/null "$@"; }
on_exit+=("ours kill-server 2>/dev/null" "screen -S job -X quit >/dev/null")
sessions() { ours list-sessions -F "#{session_name}" 2>/dev/null || true; }
ours new-session -d -s job12 cat
status=0
ours has-session -t =job1 2>/dev/null || status=$?
expect "has-session -t =job1" 1 "$status"
ours has-session -t job1
ours kill-session -t job1
expect "left by kill-session -t job1" "" "$(sessions)"
mkdir -m 700 screens
export SCREENDIR=$place/screens
screen -dmS job12 cat
screens() { find screens -mindepth 1 | sed 's/.*\.//'; }
for ((try = 0; try < 100; try++)); do
	[[ -z $(screens) ]] || break
	sleep 0.1
done
expect "screen has" job12 "$(screens)"
screen -S job1 -X quit
for ((try = 0; try < 100; try++)); do
	[[ -n $(screens) ]] || break
	sleep 0.1
done
expect "left by screen -S job1 -X quit" "" "$(screens)"
