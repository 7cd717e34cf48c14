"""Makes compiled modules small: no columns in tracebacks, no docstrings of functions.

The shim's code goes to the node with each step, a part of it in srun's environment.
"""

import functools
import opcode
import sys
from types import CodeType

# Objects/locations.md in CPython, the same from 3.11 to 3.14: an entry's first byte has bit 7 set,
# its kind in bits 3 to 6, and in bits 0 to 2 its length less one.
_NO_COLUMNS, _NO_LINE = 13, 15
_UNIT, _LONGEST = 2, 8
_HAS_DOCSTRING = 0x4000000  # a flag since 3.14; before that all functions have a place for one
_LOADS = frozenset(opcode.hasconst)
_FUNCTION = 0x1 | 0x2  # CO_OPTIMIZED and CO_NEWLOCALS of `inspect`, whose import takes 5 ms


def lean(code: CodeType) -> CodeType:
    """Return code that does the same; tracebacks name its lines only."""
    consts = [lean(const) if isinstance(const, CodeType) else const for const in code.co_consts]
    if _has_docstring(code):
        consts[0] = None
    return code.replace(co_consts=tuple(consts), co_linetable=_lines(code))


def _has_docstring(code: CodeType) -> bool:
    """Tell whether the first constant is a docstring, and nothing else."""
    if sys.version_info >= (3, 14):
        has_one = bool(code.co_flags & _HAS_DOCSTRING)
    else:
        is_function = code.co_flags & _FUNCTION == _FUNCTION and not code.co_name.startswith("<")
        has_one = is_function and bool(code.co_consts) and isinstance(code.co_consts[0], str)
    return has_one and not _uses_first_constant(code.co_code)


def _uses_first_constant(instructions: bytes) -> bool:
    """A function's own text may be the same; what only looks like an instruction does no harm."""
    arguments, found = instructions[1::_UNIT], -1
    while (found := arguments.find(0, found + 1)) >= 0:
        if instructions[found * _UNIT] in _LOADS:
            return True
    return False


def _lines(code: CodeType) -> bytes:
    """Return the table of lines without columns."""
    table = []
    last = code.co_firstlineno
    for start, end, line in code.co_lines():
        further = None if line is None else line - last
        units = (end - start) // _UNIT
        while units > 0:
            table.append(_entry(min(units, _LONGEST), further))
            units -= _LONGEST
            further = None if further is None else 0
        last = last if line is None else line
    return b"".join(table)


@functools.cache  # half of the time of `lean` without it: few are different
def _entry(units: int, further: int | None) -> bytes:
    """Return the table's entry for some instructions, whose line is so much further, or none."""
    if further is None:
        return bytes([0x80 | _NO_LINE << 3 | units - 1])
    return bytes([0x80 | _NO_COLUMNS << 3 | units - 1]) + _varint(further)


def _varint(number: int) -> bytes:
    """Return a number with a sign in groups of six bits, the least significant first."""
    left = -number << 1 | 1 if number < 0 else number << 1
    groups = bytearray()
    while left > 0x3F:
        groups.append(0x40 | left & 0x3F)
        left >>= 6
    groups.append(left)
    return bytes(groups)
