"""What a successor has to know of a container's request, settings and bundle, in memory.

All was read when the container was created. Since then the files may have been changed or removed,
or their file system may hang, which must end no container.
"""

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from scrun.core.typed import convert
from scrun.oci.config import Bundle, Config
from scrun.supervisor.contracts.create_request import CreateRequest

_FAST = 1  # four fifths of what the best level saves, in a third of the time


@contextmanager
def remembered(create_request: CreateRequest, bundle: Bundle) -> Iterator[int]:
    """Yield a descriptor of a file in memory with all of it."""
    known = known_of(create_request, bundle)
    memory = os.memfd_create("scrun-request", os.MFD_CLOEXEC)
    try:
        with open(memory, "wb", closefd=False) as file:
            # variables and paths need not be UTF-8; json can write and read such, msgspec cannot
            file.write(zlib.compress(json.dumps(known).encode(), _FAST))
        yield memory
    finally:
        os.close(memory)


def known_of(create_request: CreateRequest, bundle: Bundle) -> dict[str, Any]:
    """Return all of it, as `remembered` writes it."""
    return {
        "request": msgspec.to_builtins(create_request),
        "bundle": {name: getattr(bundle, name) for name in ("path", "config_file", "rootfs")},
        "config": bundle.raw,
    }


def recalled(memory: int) -> tuple[CreateRequest, Bundle]:
    """Return the request and the bundle.

    Raises:
        ValueError: It is something else.
    """
    content = os.pread(memory, os.fstat(memory).st_size, 0)
    try:
        known: dict[str, Any] = json.loads(zlib.decompress(content))
        create_request = convert(known["request"], CreateRequest)
        raw = known["config"]
        config = convert(raw, Config)
    except (zlib.error, ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
        raise ValueError(f"this is not a request: {error}") from error
    return create_request, Bundle(**known["bundle"], config=config, raw=raw)
