"""What a container, its image and its pod are called, so that its job tells people.

conmon is told the name that the user gave (`-n`), and podman's storage (containers/storage) has
the image of each container; dockerd has a file with both. Annotations tell the rest. All of it may
come from an image, and goes into command lines and into what Slurm prints: only the plainest
characters are kept.
"""

import contextlib
import json
import os
import re
from typing import Any

import msgspec

from scrun.core.paths import read_regular
from scrun.core.pods import ANNOTATIONS as OF_PODS
from scrun.core.typed import decode_as
from scrun.model.record import CONTAINER_NAME, IMAGE_DIGEST, IMAGE_NAME, POD_NAME, Record
from scrun.oci.config import Bundle
from scrun.supervisor.containers import conmon
from scrun.supervisor.contracts.create_request import CreateRequest

UNNAMED = "scrun"

_NAME, _IMAGE, _DIGEST, _POD = CONTAINER_NAME, IMAGE_NAME, IMAGE_DIGEST, POD_NAME
_TOLD = {
    _NAME: (
        _NAME, "io.kubernetes.container.name", "io.kubernetes.cri.container-name",
        "nerdctl/name", "io.podman.compose.service", "com.docker.compose.service",
    ),
    _IMAGE: (
        _IMAGE, "io.kubernetes.cri-o.ImageName", "io.kubernetes.cri.image-name",
        "org.opencontainers.image.ref.name",
    ),
    _DIGEST: (_DIGEST,),
    _POD: (_POD, "io.kubernetes.pod.name", "io.kubernetes.cri.sandbox-name", *OF_PODS),
}  # fmt: skip
"""The first that is present counts. Measured: podman hands on no label, nor does docker."""

_ID = re.compile("[0-9a-f]{64}")  # of an engine's, which nobody has given
_INFRA = re.compile("[0-9a-f]{12}-infra")  # podman's, of the pod with this id
_AT_DIGEST = re.compile("@(sha(?:256|512):[0-9a-f]{64,128})\\Z")
_STORED = re.compile("(.*/[a-z0-9]+)-containers/([0-9a-f]{64})/userdata")
_FILES = ("containers.json", "volatile-containers.json")
_LARGEST = 8 << 20  # some 14,000 containers
_LARGEST_ENTRY = 1 << 20
_LONGEST = 64
_LONGEST_OF_IMAGE = 512  # Slurm takes comments of 1,024 bytes; our mark has up to 200


class Names(msgspec.Struct, frozen=True):
    """Names, each "" if unknown: of the characters `A-Z a-z 0-9 _ . -`, of an image `: / @ +` too.

    Attributes:
        digest: That of the image's manifest, `sha256:…`; for docker the image's id, if it was
            never in a registry.
    """

    container: str = ""
    image: str = ""
    digest: str = ""
    pod: str = ""

    @property
    def comment(self) -> str:
        """The words of a job's comment; "" or with a leading blank."""
        image = "@".join(filter(None, (self.image, self.digest)))
        words = {"image": image, "name": self.container, "pod": self.pod}
        return "".join(f" {key}={text}" for key, text in words.items() if text)

    def job_name(self, pattern: str) -> str:
        """Return the job's name, from `[slurm] job_name`."""
        short = self.image.partition("@")[0].rpartition("/")[2].replace(":", "-")
        values = {"%c": self.container, "%i": short, "%p": self.pod, "%%": "%"}
        text = re.sub("%[cip%]", lambda found: values[found[0]], pattern)
        return _plain(_NAME, text) or UNNAMED


class _DockerConfig(msgspec.Struct, rename="pascal"):
    """What a user has asked docker for."""

    image: str = ""


class _Docker(msgspec.Struct, rename="pascal"):
    """What dockerd has written of a container; `image` is its id, `config.image` its name."""

    config: _DockerConfig
    name: str = ""
    image: str = ""
    driver: str = ""


class _Repositories(msgspec.Struct, rename="pascal"):
    """The ids of docker's images, by repositories and names in them."""

    repositories: dict[str, dict[str, str]]


def recorded(record: Record) -> Names:
    """Return the names that a record has; its id counts, unless an engine has made that."""
    told = Names(*(_plain(key, record.annotations.get(key, "")) for key in _TOLD))
    if told.container or _ID.fullmatch(record.id):
        return told
    return msgspec.structs.replace(told, container=_plain(_NAME, record.id))


def find_names(create_request: CreateRequest, bundle: Bundle, caller: int) -> dict[str, str]:
    """Find out how a container is called, as annotations for its record.

    Reads files of its engine's, which may hang.

    Args:
        caller: The pid of its `create`; 0 if that is not known.
    """
    told = {
        key: next((text for name in names if (text := bundle.config.annotations.get(name))), "")
        for key, names in _TOLD.items()
    }
    stored = _stored(bundle.path, create_request.id) or _of_docker(bundle, create_request.id)
    name = ""
    if conmon.calls(create_request.child_env.environment):
        name = conmon.name_of_container(caller)
    told[_NAME] = name or (stored and stored.container) or told[_NAME]
    if stored and stored.image:
        told[_IMAGE], told[_DIGEST] = stored.image, stored.digest
    if _INFRA.fullmatch(told[_NAME]) and bundle.config.hostname:
        told[_NAME] = told[_POD] = bundle.config.hostname
    if found := _AT_DIGEST.search(told[_IMAGE][-_LONGEST_OF_IMAGE:]):
        told[_IMAGE], told[_DIGEST] = told[_IMAGE][: -len(found[0])], found[1]
    if _ID.fullmatch(told[_POD]):
        told[_POD] = ""
    plain = {key: _plain(key, text) for key, text in told.items()}
    # what config.json says under our own names is kept in no other form
    return {key: text for key, text in plain.items() if text or key in bundle.config.annotations}


def _stored(bundle: str, container: str) -> Names | None:
    """Return what podman's storage says of a container; None if it is not podman's."""
    found = _STORED.fullmatch(bundle)
    if not found or found[2] != container:
        return None
    store = found[1]
    for name in _FILES:
        known = _entry(f"{store}-containers/{name}", container)
        with contextlib.suppress(
            ValueError, LookupError, TypeError, AttributeError, RecursionError
        ):
            told = json.loads(known["metadata"]) if "metadata" in known else {}
            names, image = known.get("names") or [""], told.get("image-name") or ""
            if known:
                digest = _entry(f"{store}-images/images.json", str(known.get("image")))
                return Names(str(names[0]), str(image), str(digest.get("digest", "")))
    return Names()


def _of_docker(bundle: Bundle, container: str) -> Names | None:
    """Return what dockerd has written down of a container; None if it is not docker's.

    Its bundle does not say where, but mounts a file from there.
    """
    end = f"/containers/{container}/hostname"
    mounts = (mount.source for mount in bundle.config.mounts if mount.source.endswith(end))
    place = next((source.removesuffix(end) for source in mounts), None)
    if place is None:
        return None
    with contextlib.suppress(OSError, msgspec.DecodeError):
        content = read_regular(f"{place}/containers/{container}/config.v2.json", _LARGEST)
        known = decode_as(content, _Docker)
        digest = _registered(place, known.driver, known.image) or known.image
        return Names(known.name.removeprefix("/"), known.config.image, digest)
    return None


def _registered(place: str, driver: str, image: str) -> str:
    """Return the digest by which a registry knows an image of docker's; "" if none does."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        path = f"{place}/image/{os.path.basename(driver)}/repositories.json"
        for names in decode_as(read_regular(path, _LARGEST), _Repositories).repositories.values():
            for name, of_image in names.items():
                if of_image == image and "@" in name:
                    return name.partition("@")[2]
    return ""


def _entry(path: str, key: str) -> dict[str, Any]:
    """Return the entry with an id in a file of containers/storage, without parsing the others."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        content = read_regular(path, _LARGEST)
        begin = content.find(b'{"id":"%s"' % os.fsencode(key))
        if begin >= 0:
            text = content[begin : begin + _LARGEST_ENTRY].decode(errors="replace")
            entry: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]
            return entry
    return {}


def _plain(key: str, text: str) -> str:
    """Return a name with other characters replaced, and nothing that looks like an option."""
    if key == _DIGEST:
        return text if _AT_DIGEST.fullmatch(f"@{text[:_LONGEST_OF_IMAGE]}") else ""
    longest, more = (_LONGEST_OF_IMAGE, ":/@+") if key == _IMAGE else (_LONGEST, "")
    plain = re.sub(f"[^A-Za-z0-9_.{more}-]+", "_", text[: 2 * longest])
    return plain.lstrip("-_.")[:longest].rstrip("-_.")
