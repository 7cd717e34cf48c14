"""The names of spank-lua(8). It imports nothing: the Lua worker uses it, too."""

CALLBACKS = (
    "slurm_spank_init",
    "slurm_spank_slurmd_init",
    "slurm_spank_job_prolog",
    "slurm_spank_init_post_opt",
    "slurm_spank_local_user_init",
    "slurm_spank_user_init",
    "slurm_spank_task_init_privileged",
    "slurm_spank_task_init",
    "slurm_spank_task_post_fork",
    "slurm_spank_task_exit",
    "slurm_spank_job_epilog",
    "slurm_spank_slurmd_exit",
    "slurm_spank_exit",
)

VERSION_ITEMS = (
    "S_SLURM_VERSION",
    "S_SLURM_VERSION_MAJOR",
    "S_SLURM_VERSION_MINOR",
    "S_SLURM_VERSION_MICRO",
)

LOCAL_ITEMS = (
    "S_JOB_UID",
    "S_JOB_GID",
    "S_JOB_ID",
    "S_JOB_STEPID",
    "S_JOB_NNODES",
    "S_JOB_TOTAL_TASK_COUNT",
    "S_JOB_ARGV",
    "S_JOB_ENV",
)
"""The items that slurm_spank_local_user_init may also ask for."""

REMOTE_ITEMS = (
    "S_JOB_NODEID",
    "S_JOB_LOCAL_TASK_COUNT",
    "S_JOB_NCPUS",
    "S_JOB_PID_TO_GLOBAL_ID",
    "S_JOB_PID_TO_LOCAL_ID",
    "S_JOB_LOCAL_TO_GLOBAL_ID",
    "S_JOB_GLOBAL_TO_LOCAL_ID",
    "S_JOB_SUPPLEMENTARY_GIDS",
    "S_STEP_CPUS_PER_TASK",
    "S_JOB_ALLOC_CORES",
    "S_JOB_ALLOC_MEM",
    "S_STEP_ALLOC_CORES",
    "S_STEP_ALLOC_MEM",
    "S_SLURM_RESTART_COUNT",
    "S_JOB_ARRAY_ID",
    "S_JOB_ARRAY_TASK_ID",
)

TASK_ITEMS = ("S_TASK_ID", "S_TASK_GLOBAL_ID", "S_TASK_PID", "S_TASK_EXIT_STATUS")

ITEMS = (*LOCAL_ITEMS, *REMOTE_ITEMS, *TASK_ITEMS, *VERSION_ITEMS)
"""All of spank.h's `enum spank_item`."""
