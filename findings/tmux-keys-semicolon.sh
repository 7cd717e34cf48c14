#!/usr/bin/env bash
# A script types a command line into a window of tmux: tmux send-keys 'for i in 1 2; do echo $i; done;' Enter
#
# One would guess: these are the keys, and Enter after them; they are one word in quotes for the shell, as for ssh.
# What happens: a ";" at the very end of a word parts commands of tmux, whatever the quotes. It is not typed, and what
# follows is a command of its own: "unknown command: Enter", and then no key at all is sent. Where nothing follows, only
# the last ";" is lost, without a word, also with -l, which means letters. "\;" at the end of the word is a ";".
# Seen with tmux 3.3a of Debian 12.
#
#   send-keys 'a;' Enter: status 1, nothing typed     send-keys -l 'a;': a     send-keys -l 'a\;': a;
. "$(dirname "$0")/common.bash" || exit 2
debs tmux=3.3a-3 libutempter0=1.2.1-3 libevent-core-2.1-7=2.1.12-stable-8
unset TMUX TMUX_PANE
ours() { tmux -S "$place/socket" -f /dev/null "$@"; }
on_exit+=("ours kill-server 2>/dev/null")
typed() { # KEYS…: the status of send-keys, and what a program has got when Enter comes
	local status=0 line
	mkfifo out
	ours new-session -d -s keys "head -n 1 >'$place/out'"
	ours send-keys -t keys "$@" 2>words || status=$?
	ours send-keys -t keys Enter
	read -r -t 20 line <out
	rm out
	while ours has-session -t =keys 2>/dev/null; do sleep 0.1; done
	echo "$status $line"
}
expect "a; Enter" "1 " "$(typed 'a;' Enter)"
expect "words" "unknown command: Enter" "$(cat words)"
expect "-l a;" "0 a" "$(typed -l 'a;')"
expect "-l a\\;" "0 a;" "$(typed -l 'a\;')"
expect "-l a;b" "0 a;b" "$(typed -l 'a;b')"
