"""A script that takes its time."""

from tests.harness.site import Site


def stage_slowly(site: Site, result: str = "slurm.SUCCESS") -> None:
    """Stage by a script, for three seconds."""
    script = site.base / "slow.lua"
    text = f"""function slurm_scrun_stage_in()
    slurm.allocator_command("sleep 3")
    return {result}
end
function slurm_scrun_stage_out() return slurm.SUCCESS end
"""
    script.write_text(text)
    with open(site.base / "scrun.toml", "a") as settings:
        settings.write(f'[lua]\nscript = "{script}"\n')
