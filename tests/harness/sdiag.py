"""What slurmctld is asked, as sdiag(1) counts it."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.harness.cluster import slurm
from tests.harness.users import User

# what the daemons of nodes ask, and sdiag itself
_NOT_A_USERS = re.compile("MESSAGE_|REQUEST_(STEP_COMPLETE|COMPLETE_PROLOG|STATS_INFO)")
_LINE = re.compile(r"^\t(\S+) +\( *(\d+)\) count:(\d+)", re.MULTILINE)


@contextmanager
def requests(user: User) -> Iterator[Counter[str]]:
    """Count what a user asks while the block runs, by type; nobody else may ask meanwhile.

    sdiag knows types and users, but not both at once: so the sums are compared. Of root's the
    daemons ask a part.
    """
    slurm("sdiag", "--reset")
    found: Counter[str] = Counter()
    yield found
    types, _, rest = slurm("sdiag").partition("by user")
    users, _, _ = rest.partition("Pending RPC")
    of_type = {name: int(count) for name, _, count in _LINE.findall(types)}
    found.update({name: n for name, n in of_type.items() if not _NOT_A_USERS.match(name)})
    of_user = {int(uid): int(count) for _, uid, count in _LINE.findall(users)}
    if user.uid:
        assert found.total() == of_user.get(user.uid, 0), types + users
