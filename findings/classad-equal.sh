#!/usr/bin/env bash
# Names and versions are compared in an expression of HTCondor (Requirements, a START of a node, classad in Python).
#
# One would guess: "ABC" == "abc" is false, as in every language with this sign, and so is member("ABC", {"abc"}).
# What happens: both are true: == takes no notice of case, nor do < and member. =?= compares as == does elsewhere, but
# it also wants the same type, so 1 =?= 1.0 is false; and regexp() does look at case. "1" == 1 is an error, not false,
# and stands for no match.
# Seen with the module classad2 of htcondor 25.14.1 of PyPI.
#
#   "ABC" == "abc": True     "ABC" =?= "abc": False     member("ABC", {"abc"}): True     "1" == 1: Error
. "$(dirname "$0")/common.bash" || exit 2
pips htcondor==25.14.1
cat >program.py <<'END'
import sys

import classad2

value = classad2.ExprTree(sys.argv[1]).eval()
print(getattr(value, "name", value))
END
value() { CONDOR_CONFIG=/dev/null python program.py "$1" 2>>words; }
expect "==" True "$(value '"ABC" == "abc"')"
expect "<" False "$(value '"B" < "a"')"
expect "member" True "$(value 'member("ABC", {"abc"})')"
expect "=?=" False "$(value '"ABC" =?= "abc"')"
expect "=?= of numbers" False "$(value '1 =?= 1.0')"
expect "regexp" False "$(value 'regexp("^a", "ABC")')"
expect "text and number" Error "$(value '"1" == 1')"
