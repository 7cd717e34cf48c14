-- Global spank_options table:
--
spank_options = {
{
name = "no-memory-overcommit",
usage = "Disable memory overcommit on nodes of Slurm job",
cb = "opt_handler"
}
}

got_option = false
function opt_handler (v, arg, remote) got_option = true end

function slurm_spank_init_post_opt (spank)
--
-- Return success if we're not in local context, or the user
-- did not specify --no-memory-overcommit.
--
if spank.context == "remote" or not got_option then
return SPANK.SUCCESS
end
SPANK.log_info ("slurm_spank_init_post_opt")
--
-- Set SPANK_NO_OVERCOMMIT in the "job control" environment
--
local rc, msg = spank:job_control_setenv ("NO_OVERCOMMIT", 1, 1)
--
-- Like other lua functions, spank methods return nil and an
-- error string on failure.
--
if rc == nil then
SPANK.log_error ("Failed to propagate NO_OVERCOMMIT: %s", msg)
return SPANK.FAILURE
end
return SPANK.SUCCESS
end
