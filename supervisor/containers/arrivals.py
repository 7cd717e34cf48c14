"""Containers that are about to be adopted: who needs one waits for it."""

import contextlib
import math
import os
from collections.abc import Container as In
from collections.abc import Mapping

import trio

from scrun.core.errors import ScrunError
from scrun.core.pods import named_pod
from scrun.model.adoption import is_on_its_way
from scrun.model.record import read_record
from scrun.oci.config import Config
from scrun.oci.ids import is_id
from scrun.supervisor.containers.container import Container
from scrun.supervisor.containers.inherited import InheritedContainer
from scrun.supervisor.containers.pods import named_anchors
from scrun.supervisor.core.threads import in_thread

_ARRIVING = 60.0
_PAUSE = 0.05


class Arrivals:
    """See the module."""

    def __init__(self, root: str, known: Mapping[str, Container]) -> None:
        """Prepare.

        Args:
            root: The directory of the records.
            known: The containers of this supervisor, by id.
        """
        self._root = root
        self._known = known

    async def of(self, container: str, patience: float = math.inf) -> None:
        """Wait for a container that is about to be adopted; return at once for others.

        Args:
            container: Its id.
            patience: Seconds to wait until it can be worked with, once it is ours.
        """
        directory = os.path.join(self._root, container)
        with trio.move_on_after(_ARRIVING), contextlib.suppress(ScrunError, OSError):
            while is_id(container) and container not in self._known:
                if not await in_thread(is_on_its_way, directory):
                    break  # or it has arrived meanwhile
                await trio.sleep(_PAUSE)
        known = self._known.get(container)
        if isinstance(known, InheritedContainer):
            with trio.move_on_after(patience):
                await known.there.wait()

    async def of_pod(self, config: Config) -> None:
        """Wait for the containers of a config.json's pod that are about to be adopted."""
        if named_pod(config.annotations) or [*named_anchors(config)]:
            adopted = (one for one in self._known.values() if isinstance(one, InheritedContainer))
            arriving = {container.id for container in adopted if not container.joined.is_set()}
            here = self._known.keys() - arriving  # only the others' records have to be read
            for container in await in_thread(on_their_way, self._root, config, here, arriving):
                await self.of(container)
                if isinstance(known := self._known.get(container), InheritedContainer):
                    await known.joined.wait()


def on_their_way(root: str, config: Config, here: In[str], arriving: In[str]) -> list[str]:
    """Return the containers of a config.json's pod whose supervisor has died and that live.

    Args:
        root: The directory of the records.
        config: The config.json.
        here: Those that are not: they are ours.
        arriving: Those that are being adopted.
    """
    pod = named_pod(config.annotations)
    anchors = {anchor for _, anchor in named_anchors(config)}
    found = []
    for name in filter(is_id, os.listdir(root)):
        if name in here:
            continue
        directory = os.path.join(root, name)
        with contextlib.suppress(ScrunError, OSError):
            if name in arriving or is_on_its_way(directory):
                record = read_record(directory)
                its = (name, named_pod(record.annotations))
                if record.pid in anchors or (pod is not None and pod in its):
                    found.append(name)
    return found
