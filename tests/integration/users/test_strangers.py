"""Another user connects to every port of a supervisor, all the time: nobody is worse off.

`tools/test --nightly` has 400 of them at each port, and 200 containers.
"""

import os
import re
from collections.abc import Callable

import pytest

from tests.conftest import MakeSite
from tests.harness import users
from tests.harness.adoption import UNTIL_TOLD, adopted, kill_supervisor, told
from tests.harness.life import Life
from tests.harness.site import Site
from tests.harness.strangers import KINDS, at_every_port

pytestmark = pytest.mark.by_shim

COUNT = 400 if os.environ.get("SCRUN_NIGHTLY") else 40
LIVES = int(os.environ.get("SCRUN_LIVES", "6"))


def supervisors_of(site: Site) -> Callable[[], list[int]]:
    """Return what returns their pids, and looks for others when all of these have gone."""
    there: list[int] = []

    def look() -> list[int]:
        there[:] = [pid for pid in there if os.path.exists(f"/proc/{pid}")] or site.supervisors()
        return there

    return look


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
    with at_every_port(kind, COUNT, supervisors_of(site), tuple(users.other().prefix)):
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
