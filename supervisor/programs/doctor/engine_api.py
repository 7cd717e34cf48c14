"""The check of Docker's API, served by podman: one container, made as clients make them."""

import http.client
import io
import json
import os
import tarfile
import uuid
from functools import partial

from scrun.commands.install import API
from scrun.core.errors import ScrunError
from scrun.install import service
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.programs.doctor.call import Check, DoctorCall, one
from scrun.supervisor.programs.doctor.containers import own_root, write_bundle
from scrun.supervisor.programs.doctor.findings import Finding, ok, warn
from scrun.supervisor.programs.doctor.machine import targets

_LIFE = 100.0
_AGAIN = "run `scrun install docker-api` again"


class _NotDone(Exception):
    """A request failed; the message has the engine's words."""


async def _api(call: DoctorCall) -> Finding:
    if not any(target.has(API) for target in targets(call)):
        return ok("not installed (`scrun install docker-api`)")
    try:
        path = service.socket_path(call.environment, os.geteuid())
    except ScrunError as error:
        return warn(str(error), _AGAIN)
    there = service.url(path)
    if why := await in_thread(partial(service.answers, path), abandon=True):
        return warn(f"{there}: {why}", _AGAIN)
    if call.by_slurm and call.parsed.options.get("no-job"):
        return ok(f"{there} answers")
    if not call.root:
        return warn(f"{there} answers, and no container was tried", "correct the failures above")
    async with own_root(call) as root:
        try:
            status = await in_thread(partial(_try, path, root), abandon=True)
        except (OSError, ValueError, LookupError, http.client.HTTPException, _NotDone) as error:
            text = str(error) or type(error).__name__
            return warn(f"{there} answers, but runs no container: {text}", "correct that")
    if status:
        return warn(f"{there}: a container ended with {status}", "see the check `container`")
    return ok(f"{there} answers, and a container ran to its end")


def _try(path: str, root: str) -> int:
    """Run a container of this machine's `true` by the API; return its status. Blocks.

    Raises:
        _NotDone: The engine refuses.
        OSError: It does not answer.
        http.client.HTTPException, ValueError, LookupError: Its answer is another.
    """
    bundle = write_bundle(root, "true")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(os.path.join(bundle, "rootfs"), ".")
    name = f"localhost/scrun-doctor-{uuid.uuid4().hex}"
    image = f"/images/create?fromSrc=-&repo={name}&tag=latest"
    _ask(path, "POST", image, packed.getvalue(), "application/x-tar")
    try:
        wanted = {"Image": name, "Cmd": ["true"], "HostConfig": {"NetworkMode": "host"}}
        body = json.dumps(wanted).encode()
        made = json.loads(_ask(path, "POST", "/containers/create", body))["Id"]
        try:
            _ask(path, "POST", f"/containers/{made}/start")
            return int(json.loads(_ask(path, "POST", f"/containers/{made}/wait"))["StatusCode"])
        finally:
            _ask(path, "DELETE", f"/containers/{made}?force=true")
    finally:
        _ask(path, "DELETE", f"/images/{name}?force=true")


def _ask(
    path: str, method: str, what: str, body: bytes | None = None, kind: str = "application/json"
) -> bytes:
    api = service.Api(path, _LIFE)
    try:
        status, text = api.ask(method, f"/v1.40{what}", body, kind)
    finally:
        api.close()
    if status >= http.client.BAD_REQUEST:
        raise _NotDone(text.decode(errors="replace").strip())
    return text


CHECKS = (Check((API,), one(_api), deadline=150),)
