"""Another user connects to every port of a supervisor, all the time: nobody is worse off.

`tools/test --nightly` has 400 of them at each port, and 200 containers.
"""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness import users
from tests.harness.adoption import UNTIL_TOLD, adopted, kill_supervisor, told
from tests.harness.life import Life
from tests.harness.site import Site
from tests.harness.strangers import KINDS, Strangers, strangers

pytestmark = pytest.mark.by_shim

COUNT = 400 if os.environ.get("SCRUN_NIGHTLY") else 40
LIVES = int(os.environ.get("SCRUN_LIVES", "6"))


def ports_of(pid: int) -> set[int]:
    """The ports at which a process listens."""
    found = set()
    with suppress(OSError):
        links = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and f"socket:[{words[9]}]" in links:
                    found.add(int(words[1].rpartition(":")[2], 16))
    return found


@contextmanager
def at_every_port(site: Site, kind: str) -> Iterator[Strangers]:
    """Have them at each port of the site's supervisors, from the moment on that it is there."""
    over = threading.Event()
    with strangers(kind, [], COUNT, tuple(users.other().prefix)) as there:

        def look() -> None:
            pids: list[int] = []
            while not over.is_set():
                pids = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
                pids = pids or site.supervisors()
                there.ports([port for pid in pids for port in ports_of(pid)])
                over.wait(0.002)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield there
        finally:
            over.set()
            thread.join()


def messages(life: Life) -> str:
    return life.site.run("logs", "--messages", life.id).stdout


@pytest.mark.covers(
    "security connect to its ports, hundreds of times: silent, with noise, with copies, again"
)
@pytest.mark.covers("security to connect to ports of a supervisor, hundreds of times")
@pytest.mark.parametrize("kind", KINDS)
def test_containers_do_not_notice(make_site: MakeSite, kind: str) -> None:
    """Each has a direct connection, and is adopted when its supervisor is killed."""
    site = make_site("slurm-user")
    said = []
    with at_every_port(site, kind):
        for _ in range(LIVES):
            life = site.shell("echo hello; exit 7").created(60).start(60)
            assert life.wait(60) == 7
            said.append(messages(life))
            life.delete(60)
        for _ in range(max(1, LIVES // 20)):
            several = [site.shell(UNTIL_TOLD).created(60).start(60) for _ in range(3)]
            for life in several:
                life.says("up", 60)
            for times in (1, 2):
                kill_supervisor(site)
                adopted(*several, times=times)
            said += map(messages, several)
            told(*several)
    assert not [text for text in said if "streams go over srun" in text]
    stranger = users.other().uid
    assert re.search(rf"not the shim's: .*\d+ of user {stranger}", "".join(said))
