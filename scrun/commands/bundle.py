"""scrun bundle: make a bundle from an image on disk.

The image is in an OCI image layout, as `skopeo copy … oci:DIRECTORY:TAG` and `podman save --format
oci-dir` write it. For an ordinary user, all files belong to that user. The bundle is made in a
temporary directory beside its path, and renamed when it is complete: so an incomplete bundle never
appears, and a failure or an interrupt leaves nothing behind.

config.json is what `scrun spec` writes, with what the image's configuration says. Jobs seldom have
a terminal, so the container has none without `--tty`.
"""

import json
import os
import tempfile
from typing import Any

from scrun.cli.parse import Parsed
from scrun.commands.spec import spec
from scrun.core.errors import BundleError, ImageError, StateError, why
from scrun.core.trees import remove_tree
from scrun.images.store import ROOTFS, Defaults
from scrun.oci.image import LayoutImage, find_image
from scrun.pull.interrupts import interruptible
from scrun.pull.layout import Configuration, defaults_of, unpack
from scrun.settings.file.load import load


def run(parsed: Parsed) -> int:
    source, target = parsed.operands
    target = os.path.normpath(os.path.abspath(target))
    image = find_image(source)
    limit = load(os.environ, parsed.text("config-file")).images.unpacked_size << 20
    if os.path.lexists(target):
        raise StateError(f"{target} exists: remove it first, or name another path")
    with interruptible():
        make(image, target, limit, terminal=bool(parsed.options.get("tty")))
    return 0


def make(image: LayoutImage, target: str, limit: int = 0, *, terminal: bool) -> None:
    """Make a bundle, or leave nothing; the image may unpack to `limit` bytes; 0: any number."""
    parent, name = os.path.split(target)
    made = ""
    try:
        made = tempfile.mkdtemp(prefix=f".{name[:100]}.", dir=parent)
        os.mkdir(rootfs := os.path.join(made, ROOTFS), 0o755)
        configuration = unpack(image, rootfs, limit)
        defaults = defaults_of(image, configuration, rootfs)
        ids = (os.geteuid(), os.getegid()) if os.geteuid() else None
        config = bundle_config(defaults, configuration, spec(ids), terminal=terminal)
        with open(os.path.join(made, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file, indent=2)
        os.rename(made, target)
    except OSError as error:
        raise BundleError(f"{target}: cannot be made: {why(error)}") from error
    finally:
        if made and os.path.lexists(made):
            remove_tree(made)


_RESOLVER = "/etc/resolv.conf"
_NOTES = "org.opencontainers.image."
_PLAIN = ("architecture", "author", "created", "os", "variant")


def bundle_config(
    defaults: Defaults, configuration: Configuration, spec: dict[str, Any], *, terminal: bool
) -> dict[str, Any]:
    """Return the config.json, made of what `scrun spec` prints, which is changed."""
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
