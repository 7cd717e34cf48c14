#!/usr/bin/env bash
# A program runs a command with pexpect and wants its output: pexpect.run("scontrol show job 1", timeout=10).
#
# One would guess: an exception if the command takes longer, as from expect() of the same module (TIMEOUT) and from
# subprocess.run (TimeoutExpired); and no limit if no timeout is given.
# What happens: what the command has written so far is returned, as if that were all; without `timeout`, after 30
# seconds. With withexitstatus=True the status is None then, and so it is for a command that a signal has ended.
# Seen with pexpect 4.9.0.
#
#   echo first; sleep 3; echo last, timeout=1: first, no exception      killed: None
. "$(dirname "$0")/common.bash" || exit 2
pips pexpect==4.9.0
cat >program.py <<'END'
import pexpect

command = "sh -c 'echo first; sleep 3; echo last'"
print(pexpect.run(command, timeout=1).split())
print(pexpect.run(command, timeout=10).split())
print(pexpect.run("sh -c 'kill -KILL $$'", withexitstatus=True)[1])
print(pexpect.run("sleep 3", timeout=1, withexitstatus=True)[1])
print(pexpect.spawn("true").timeout)
END
python program.py >out
expect "timeout=1" "[b'first']" "$(sed -n 1p out)"
expect "timeout=10" "[b'first', b'last']" "$(sed -n 2p out)"
expect "status, killed" None "$(sed -n 3p out)"
expect "status, timeout" None "$(sed -n 4p out)"
expect "seconds by default" 30 "$(sed -n 5p out)"
