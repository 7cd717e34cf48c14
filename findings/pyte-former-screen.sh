#!/usr/bin/env bash
# pyte keeps what a terminal shows, for tests and for recordings. A full-screen program (vim, less, htop, a TUI) runs in
# it and ends: it changes to the other screen (smcup of terminfo's xterm and screen) and back (rmcup).
#
# One would guess: after its end the shell's lines are there again, as in any terminal that has these sequences.
# What happens: pyte has one screen, and ignores both sequences without a word. The program's last picture stays, and
# the shell's lines are lost.
# Seen with pyte 0.8.2 and the terminfo of xterm-256color in Debian 12.
#
#   "line", smcup, clear, "program", rmcup: program
. "$(dirname "$0")/common.bash" || exit 2
pips pyte==0.8.2
cat >program.py <<'END'
import curses

import pyte

curses.setupterm("xterm-256color", 1)
screen = pyte.Screen(20, 2)
stream = pyte.ByteStream(screen)
shown = []
stream.feed(b"line")
shown.append(screen.display[0].strip())
stream.feed(b"".join(map(curses.tigetstr, ("smcup", "clear"))) + b"program" + curses.tigetstr("rmcup"))
shown.append(screen.display[0].strip())
print(*shown)
END
expect "before and after" "line program" "$(python program.py)"
