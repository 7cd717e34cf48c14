"""The network that docker makes for a container: its interfaces are put into the anchor's.

config.json has a new network namespace, and a hook of dockerd's, to be called with a process in
that. It is called with the anchor, which docker takes for the container. No other hook is called
for a container in a job.
"""

import json
import os

import trio

from scrun.core.errors import EngineError
from scrun.core.paths import python_code
from scrun.oci.config import Bundle, Hook
from scrun.oci.signals import its_end
from scrun.supervisor.children.processes import ChildEnv, answer_of
from scrun.supervisor.core.threads import in_thread

_HOOK = "libnetwork-setkey"
_CALL = "import os; os.execv(sys.argv[1], sys.argv[2:])"
_PATIENCE = 20.0
_LOOPBACK = "lo"


def hook_of(bundle: Bundle) -> Hook | None:
    """Return docker's hook; None without one."""
    return next((hook for hook in bundle.config.hooks.prestart if hook.args[:1] == [_HOOK]), None)


async def made_network(
    container: str, bundle: Bundle, hook: Hook, anchor: int, child_env: ChildEnv
) -> str:
    """Let dockerd make the network of a container, whose anchor has the pid `anchor`.

    Returns:
        The network namespace, if there is anything in it: `--network none` has nothing.

    Raises:
        EngineError: dockerd could not do it.
    """
    state = {
        "ociVersion": bundle.config.oci_version,
        "id": container,
        "status": "creating",
        "pid": anchor,
        "bundle": bundle.path,
    }
    words = python_code(_CALL, hook.path, *hook.args)  # it goes by the name that it is called by
    readable, writable = os.pipe()
    try:
        os.write(writable, json.dumps(state).encode())
        os.close(writable)
        with trio.move_on_after(hook.timeout or _PATIENCE) as patience:
            status, said = await answer_of(words, child_env, stdin=readable)
        if patience.cancelled_caught:
            raise EngineError(f"docker's network: {_HOOK} did not end")
    finally:
        os.close(readable)
    if status:
        why = (said.strip().splitlines() or [f"it {its_end(status)}"])[-1]
        raise EngineError(f"docker's network: {_HOOK}: {why}")
    return f"/proc/{anchor}/ns/net" if await in_thread(has_interface, anchor) else ""


def has_interface(process: int) -> bool:
    """Tell whether a process' network has anything but a loopback (proc(5)). Blocks.

    Raises:
        OSError: It has gone.
    """
    with open(f"/proc/{process}/net/dev") as lines:
        names = [line.partition(":")[0].strip() for line in lines if ":" in line]
    return any(name != _LOOPBACK for name in names)
