"""Known loads for a container of busybox."""

MIB = 1 << 20


def spin(seconds: float) -> str:
    """Return a shell's script that uses so much processor time, as proc(5) counts it."""
    fields = " ".join(["_"] * 13)
    return (
        f"while read -r {fields} user system _ </proc/$$/stat; "
        f"[ $((user + system)) -lt {seconds * 100:.0f} ]; do "
        "i=0; while [ $i -lt 9999 ]; do i=$((i + 1)); done; done"
    )


def fill(mib: int) -> str:
    """Return a shell's command that uses so much memory."""
    return f"dd if=/dev/zero of=/dev/null bs={mib}M count=1 2>/dev/null"


def hold(mib: int, seconds: float) -> str:
    """Return a shell's command that uses so much memory for so long: whoever looks sees it."""
    return f"dd if=/dev/zero bs={mib}M count=1 2>/dev/null | sleep {seconds}"


TELL = (
    f"read -r {' '.join(['_'] * 13)} user system its_user its_system _ </proc/$$/stat; "
    "echo $((user + system + its_user + its_system))"
)
"""A shell's script that says what it and its children have used so far, in hundredths of seconds.

proc(5) counts, and not who is tested.
"""
