"""The variables that a script, and the commands that it runs, find about a container."""

import grp
import os
import pwd
from collections.abc import Mapping

from scrun.oci.config import Bundle
from scrun.settings.outputs import Told, output_variables
from scrun.settings.quick import real_uid
from supervisor.orders import Order


def script_variables(
    order: Order, bundle: Bundle, record: str, job: Mapping[str, str]
) -> dict[str, str]:
    """Return the job's variables and those of scrun(1), "OUTPUT ENVIRONMENT VARIABLES".

    Args:
        order: What was asked for.
        bundle: The submitted bundle.
        record: The container's record directory.
        job: The job's variables (SLURM_*).
    """
    uid = real_uid(os.environ)
    try:
        entry = pwd.getpwuid(uid)
        user, gid = entry.pw_name, entry.pw_gid
    except KeyError:
        user, gid = str(uid), os.getgid()
    told = Told(
        oci_version=bundle.config.oci_version,
        container_id=order.id,
        pid=order.pid,
        bundle=bundle.path,
        submission_bundle=bundle.path,
        annotations=bundle.config.annotations,
        pid_file=order.pid_file,
        socket=os.path.realpath(os.path.join(record, "supervisor")),
        spool_dir=os.path.join(record, "spool", ""),
        submission_config_file=bundle.config_file,
        user=user,
        user_id=uid,
        group=_group_name(gid),
        group_id=gid,
        root=os.path.dirname(record),
        rootfs_path=bundle.rootfs,
        submission_rootfs_path=bundle.rootfs,
        log_file=order.settings.log.file or os.path.join(record, "log"),
        log_format=order.settings.log.format,
    )
    return {**job, **output_variables(told)}


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
