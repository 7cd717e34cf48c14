"""Standard output, and descriptors that lead nowhere."""

import subprocess
import sys

import pytest

SCRIPT = """
import os, subprocess
from scrun.core.output import discard
for fd in {closed}:
    os.close(fd)
discard(0, 1, 2)
left = os.listdir("/proc/self/fd")
places = [os.readlink(f"/proc/self/fd/{{fd}}") for fd in range(3)]
inherited = subprocess.run(["readlink", "/proc/self/fd/0"], stdout=subprocess.PIPE).stdout
with open({file!r}, "w") as file:
    print(places, inherited.decode().strip(), len(left), file=file)
"""


@pytest.mark.parametrize("closed", [(), (0,), (0, 1, 2)], ids=str)
def test_descriptors_that_are_closed_lead_nowhere_too(
    closed: tuple[int, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A descriptor that is closed again would be that of the next file."""
    file = tmp_path_factory.mktemp("fds") / "seen"
    script = SCRIPT.format(closed=closed, file=str(file))
    subprocess.run([sys.executable, "-c", script], check=True, stdin=subprocess.PIPE)
    nowhere = ["/dev/null"] * 3
    assert file.read_text() == f"{nowhere} /dev/null 4\n"  # and that of the listing
