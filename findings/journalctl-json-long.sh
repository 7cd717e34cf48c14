#!/usr/bin/env bash
# A container's log goes to the journal, and a program reads it as JSON: journalctl -o json. One of the messages is
# long: a stack trace, or a record of JSON, of 4096 bytes and more.
#
# One would guess: the message, as with -o cat, -o short and -o export, and as any other message.
# What happens: "MESSAGE": null, status 0. So whoever joins the messages fails or leaves it out. --all gives it.
# Seen with systemd 252 of Debian 12.
#
#   a message of 5000 bytes:   -o cat: 5000     -o json: null     -o json --all: 5000
. "$(dirname "$0")/common.bash" || exit 2
debs systemd=252.39-1~deb12u2 systemd-journal-remote=252.39-1~deb12u2 libmicrohttpd12=0.9.75-6
export LD_LIBRARY_PATH=$place/root/usr/lib/x86_64-linux-gnu/systemd:$LD_LIBRARY_PATH
printf '__REALTIME_TIMESTAMP=1700000000000000\n_BOOT_ID=0123456789abcdef0123456789abcdef\nMESSAGE=%05000d\n\n' 0 >entry
root/lib/systemd/systemd-journal-remote --output="$place/one.journal" entry 2>words || cannot "$(tail -n 1 words)"
show() { journalctl --file=one.journal --quiet "$@"; }
message() { python3 -c 'import json, sys; m = json.load(sys.stdin)["MESSAGE"]; print(m and len(m))'; }
expect "-o cat" 5000 "$(($(show -o cat | wc -c) - 1))"
expect "-o json" None "$(show -o json | message)"
expect "-o json --all" 5000 "$(show -o json --all | message)"
