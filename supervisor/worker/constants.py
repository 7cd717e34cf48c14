"""The numbers of Slurm's Lua plugins, for the table `slurm` of a script.

None has another number in another version. `errors.txt` has Slurm's error codes; Slurm 22.05 has
few of them.
"""

import os

SUCCESS = 0

USUAL: dict[str, int | float] = {
    "SUCCESS": SUCCESS,
    "success": SUCCESS,
    "ERROR": -1,
    "FAILURE": -1,
    "NO_VAL": 0xFFFFFFFE,
    "NO_VAL8": 0xFE,
    "NO_VAL16": 0xFFFE,
    "NO_VAL64": float(0xFFFFFFFFFFFFFFFE),  # as Slurm has it: a number of Lua 5.1
    "INFINITE": 0xFFFFFFFF,
    "INFINITE8": 0xFF,
    "INFINITE16": 0xFFFF,
    "INFINITE64": float(0xFFFFFFFFFFFFFFFF),
}
"""What scripts of scrun use."""

OF_JOBS: dict[str, int | float] = {
    "ALLOC_SID_ADMIN_HOLD": 1,
    "ALLOC_SID_USER_HOLD": 2,
    "GRES_ENFORCE_BIND": 1 << 4,
    "GRES_DISABLE_BIND": 1 << 19,
    "GRES_ONE_TASK_PER_SHARING": 1 << 38,
    "GRES_MULT_TASKS_PER_SHARING": 1 << 39,
    "GRES_ALLOW_TASK_SHARING": 1 << 40,
    "JOB_SHARED_NONE": 0,
    "JOB_SHARED_OK": 1,
    "JOB_SHARED_USER": 2,
    "JOB_SHARED_MCS": 3,
    "KILL_INV_DEP": 1 << 0,
    "NO_KILL_INV_DEP": 1 << 1,
    "MAIL_JOB_BEGIN": 1 << 0,
    "MAIL_JOB_END": 1 << 1,
    "MAIL_JOB_FAIL": 1 << 2,
    "MAIL_JOB_REQUEUE": 1 << 3,
    "MAIL_JOB_TIME100": 1 << 4,
    "MAIL_JOB_TIME90": 1 << 5,
    "MAIL_JOB_TIME890": 1 << 5,  # so called by Slurm
    "MAIL_JOB_TIME80": 1 << 6,
    "MAIL_JOB_TIME50": 1 << 7,
    "MAIL_JOB_STAGE_OUT": 1 << 8,
    "MAIL_INVALID_DEPEND": 1 << 10,
    "MEM_PER_CPU": float(1 << 63),
    "NICE_OFFSET": 1 << 31,
    "SHARED_FORCE": 1 << 15,
    "SPREAD_JOB": 1 << 8,
    "USE_MIN_NODES": 1 << 9,
    "STEPMGR_ENABLED": 1 << 41,
    # from 26.05 on
    "SPREAD_SEGMENTS": 1 << 43,
    "CONSOLIDATE_SEGMENTS": 1 << 44,
    "EXPEDITED_REQUEUE": 1 << 45,
}
"""Values of a job's members, for scripts that share code with job_submit.lua."""


def errors() -> dict[str, int]:
    """Return Slurm's error codes by their names."""
    with open(os.path.join(os.path.dirname(__file__), "errors.txt"), encoding="ascii") as file:
        return {name: int(number) for name, number in map(str.split, file)}
