#!/usr/bin/env bash
# A message in tmux's status line with a percent sign, or a format for list-windows that a program puts together:
# tmux display-message '50%Slots used'.
#
# One would guess: only #{…} and #(…) mean something in tmux's formats.
# What happens: display-message first gives the text to strftime: %S is the second, %d the day, so that 50%Slots becomes
# 5037lots. list-windows -F leaves the same text alone. "%%" is a sign for itself in the one, two in the other.
# Seen with tmux 3.3a of Debian 12.
#
#   display-message -p '%Y %%': 2026 %     list-windows -F '%Y %%': %Y %%
. "$(dirname "$0")/common.bash" || exit 2
debs tmux=3.3a-3 libutempter0=1.2.1-3 libevent-core-2.1-7=2.1.12-stable-8
unset TMUX TMUX_PANE
ours() { tmux -S "$place/socket" -f /dev/null "$@"; }
on_exit+=("ours kill-server 2>/dev/null")
ours new-session -d cat
expect "display-message" "$(date '+%Y %%')" "$(ours display-message -p '%Y %%')"
expect "list-windows" "%Y %%" "$(ours list-windows -F '%Y %%')"
