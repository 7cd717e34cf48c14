"""The environment variables about a container for a script and its commands."""

import os
from collections.abc import Mapping

from scrun.oci.config import Bundle
from scrun.settings.file.sources import real_uid
from scrun.settings.slurm.outputs import ScriptFacts, container_variables, output_variables
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.core.names import UserEntry, user_of


def script_variables(
    create_request: CreateRequest, pid: int, bundle: Bundle, record: str, job: Mapping[str, str]
) -> dict[str, str]:
    """Return the job's variables and those of scrun(1), "OUTPUT ENVIRONMENT VARIABLES"."""
    uid = real_uid(os.environ)
    user = user_of(uid) or UserEntry(str(uid), os.getgid(), str(os.getgid()))
    facts = ScriptFacts(
        oci_version=bundle.config.oci_version,
        container_id=create_request.id,
        pid=pid,
        bundle=bundle.path,
        submission_bundle=bundle.path,
        annotations=bundle.config.annotations,
        pid_file=create_request.pid_file,
        socket=os.path.realpath(os.path.join(record, "supervisor")),
        spool_dir=os.path.join(record, "spool", ""),
        submission_config_file=bundle.config_file,
        user=user.name,
        user_id=uid,
        group=user.group,
        group_id=user.gid,
        root=os.path.dirname(record),
        rootfs_path=bundle.rootfs,
        submission_rootfs_path=bundle.rootfs,
        log_file=create_request.settings.log.file or os.path.join(record, "log"),
        log_format=create_request.settings.log.format,
    )
    named = container_variables(create_request.id, bundle.path)
    return {**job, **named, **output_variables(facts)}
