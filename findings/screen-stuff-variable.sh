#!/usr/bin/env bash
# A script types a command line into a window of screen: screen -S NAME -X stuff 'echo $USER \101
# '. It is in single quotes, so that the shell there puts the variable's value in.
#
# One would guess: these letters are typed, as with `tmux send-keys -l`.
# What happens: screen puts variables in before it types, and those of the session's start, not those of who calls or
# of the shell in the window; what is not set is nothing. "\101" becomes A. "\$" and "\\" are typed as $ and \.
# Seen with screen 4.9.0 of Debian 12.
#
#   stuff 'a $WHO \101': a server A    (WHO=server where the session began, WHO=caller where stuff is called)
. "$(dirname "$0")/common.bash" || exit 2
debs screen=4.9.0-4 libutempter0=1.2.1-3
mkdir -m 700 sockets
mkfifo out
export SCREENDIR=$place/sockets
on_exit+=('screen -S typed -X quit >/dev/null')
cat >program <<END
exec >'$place/out'
echo begun
while read -r line; do printf '%s\n' "\$line"; done
END
WHO=server screen -dmS typed sh program
exec 3<out
read -r -t 20 _ <&3
typed() { # TEXT: what a program in the window has got
	local line
	WHO=caller screen -S typed -X stuff "$1"$'\n'
	read -r -t 20 line <&3
	echo "$line"
}
expect "variable" "a server A" "$(typed 'a $WHO \101')"
expect "not set" "b  x" "$(typed 'b $NO_SUCH_NAME x')"
expect "with backslashes" 'c $WHO \101' "$(typed 'c \$WHO \\101')"
