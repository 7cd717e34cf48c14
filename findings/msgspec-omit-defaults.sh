#!/usr/bin/env bash
# A msgspec.Struct with omit_defaults=True is written as JSON: a configuration, or a key under which results are kept.
#
# One would guess: a member that equals its default is left out, so equal structs become the same text.
# What happens: a value is compared by `is`; only empty lists, sets and dicts are compared by what they hold. A port of
# 8080 that comes from the default is left out, and the same 8080 read from JSON or computed is written. So it is with
# all floats and other larger numbers; those that Python keeps once (up to 256) are left out.
# Seen with msgspec 0.23.0 and Python 3.11.
#
#   C() == decode(b'{"port":8080}', type=C), but one is {} and the other {"port":8080}
. "$(dirname "$0")/common.bash" || exit 2
pips msgspec==0.23.0
cat >program.py <<'END'
import msgspec


class C(msgspec.Struct, omit_defaults=True):
    port: int = 8080
    factor: float = 1.5
    small: int = 5
    names: list[str] = []


one = C()
two = msgspec.json.decode(b'{"port": 8080, "factor": 1.5, "small": 5, "names": []}', type=C)
print(one == two, msgspec.json.encode(one).decode(), msgspec.json.encode(two).decode())
END
expect "equal, and their texts" 'True {} {"port":8080,"factor":1.5}' "$(python program.py)"
