"""Makes the config.json of a bundle of an image (conversion.md of the image specification)."""

import os
from typing import Any

from scrun.core.errors import ImageError
from scrun.images.store import ROOTFS, Defaults
from scrun.pull.layout import Configuration

_RESOLVER = "/etc/resolv.conf"
_NOTES = "org.opencontainers.image."
_PLAIN = ("architecture", "author", "created", "os", "variant")


def bundle_config(
    defaults: Defaults, configuration: Configuration, spec: dict[str, Any], *, terminal: bool
) -> dict[str, Any]:
    """Return the config.json.

    `spec` comes from `scrun spec`; it is changed. `terminal` says whether the program has a
    terminal.

    Raises:
        ImageError: The image's user is unknown.
    """
    if defaults.unknown_user:
        raise ImageError(defaults.unknown_user)
    process = spec["process"]
    named = {entry.partition("=")[0] for entry in defaults.env}
    process["env"] = [
        *(each for each in process["env"] if each.partition("=")[0] not in named),
        *defaults.env,
    ]
    process["args"] = [*defaults.entrypoint, *defaults.cmd] or ["sh"]
    process["cwd"] = defaults.cwd
    process["terminal"] = terminal
    process["user"] = {"uid": defaults.uid, "gid": defaults.gid}
    if defaults.groups:
        process["user"]["additionalGids"] = list(defaults.groups)
    spec["root"] = {"path": ROOTFS, "readonly": False}
    if os.path.exists(_RESOLVER):  # the container has the node's network
        options = ["rbind", "ro"]
        mount = {"destination": _RESOLVER, "type": "bind", "source": _RESOLVER, "options": options}
        spec["mounts"].append(mount)
    spec["annotations"] = _annotations(configuration)
    return spec


def _annotations(configuration: Configuration) -> dict[str, str]:
    """Return what the image says of itself; its labels count more."""
    whole, run = configuration
    found = {_NOTES + key: whole[key] for key in _PLAIN if isinstance(whole.get(key), str)}
    if isinstance(signal := run.get("StopSignal"), str):
        found[f"{_NOTES}stopSignal"] = signal
    if isinstance(ports := run.get("ExposedPorts"), dict):
        found[f"{_NOTES}exposedPorts"] = ",".join(sorted(ports))
    if isinstance(labels := run.get("Labels"), dict):
        found.update({key: value for key, value in labels.items() if isinstance(value, str)})
    return {key: value for key, value in found.items() if key}
