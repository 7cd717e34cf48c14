-- scrun.lua: stages a container for the nodes of its job. See scrun.lua(5).
--
-- What the nodes see at the same path stays where it is. Anything else is copied to a scratch
-- directory that they see, and the container's changes are copied back at its end.
-- The submitted bundle itself is never changed. Runs in Lua 5.1 to 5.5.
--
-- Set these two for your site.

-- Directories that the nodes have at the same path, with the same content.
local shared = { "/home", "/shared", "/software" }

-- Where copies go: on a shared file system, in which every user may make a directory (mode 1777).
local scratch = "/shared/scrun"

-- Every node has its own version of these, which the container uses.
local of_the_system = { "/dev", "/proc", "/sys", "/etc/localtime", "/etc/timezone" }

local json = require "json"

-- Helpers

-- Quote any text as one word of a shell command. Every path goes through this.
local function quote(text)
	return "'" .. string.gsub(text, "'", "'\\''") .. "'"
end

-- Run a program here, on the submit host, and return its output; raise an error if it fails.
local function run(...)
	local words = {}
	for index, word in ipairs({ ... }) do words[index] = quote(word) end
	local command = table.concat(words, " ")
	slurm.log_debug("running %s", command)
	local status, output = slurm.allocator_command(command)
	output = string.gsub(output, "%s+$", "")
	if status ~= 0 then error(string.format("%s: exit status %d: %s", command, status, output), 0) end
	return output
end

local function succeeds(...)
	return (pcall(run, ...))
end

local function read(path)
	local file = assert(io.open(path, "rb"))
	local content = file:read("*a")
	file:close()
	return content
end

local function write(path, content)
	local file = assert(io.open(path, "wb"))
	assert(file:write(content))
	assert(file:close()) -- a full disk shows here
end

local function is_below(path, directories)
	for _, directory in ipairs(directories) do
		if path == directory or string.sub(path, 1, #directory + 1) == directory .. "/" then
			return true
		end
	end
	return false
end

-- Return the real path of a path in config.json, which may be relative to the bundle.
local function resolve(path, bundle)
	if string.sub(path, 1, 1) ~= "/" then path = bundle .. "/" .. path end
	return run("readlink", "-e", "--", path)
end

-- Copy a file, or the content of a directory. `exact` removes what the source lacks.
-- A job of an ordinary user knows one user only, who has to own everything in the copy.
local function copy(from, to, is_directory, rootless, exact)
	if is_directory then from, to = from .. "/", to .. "/" end
	if succeeds("sh", "-c", "command -v rsync") then
		local options = { "rsync", "-rlptDHx" }
		if not rootless then table.insert(options, "-og") end
		if exact then table.insert(options, "--delete") end
		for _, word in ipairs({ "--", from, to }) do table.insert(options, word) end
		run((table.unpack or unpack)(options))
	else -- what was removed in the copy stays in the original then
		if is_directory then from = from .. "." end
		local owner = rootless and "--no-preserve=ownership" or "--preserve=ownership"
		run("cp", "-a", owner, "--one-file-system", "--", from, to)
	end
end

-- config.json

local function has_option(mount, wanted)
	for _, option in ipairs(mount.options or {}) do
		if option == wanted then return true end
	end
	return false
end

-- Remove the entries of a list that a function does not want to keep.
local function filter(list, keep)
	for index = #(list or {}), 1, -1 do
		if not keep(list[index]) then table.remove(list, index) end
	end
end

-- Remove what refers to this machine, its processes and its cgroups: it means nothing on a node.
local function forget_this_machine(config)
	local process, linux = config.process, config.linux or {}
	config.hooks = nil
	process.rlimits = nil -- Slurm sets limits, and the node's may be lower than these
	process.apparmorProfile, process.selinuxLabel = nil, nil
	linux.cgroupsPath, linux.resources, linux.mountLabel = nil, nil, nil -- the cgroup is the job's
	-- A network that was set up here does not exist there: the container gets the node's instead.
	filter(linux.namespaces, function(namespace)
		return not (namespace.type == "network" and namespace.path)
	end)
	for _, namespace in ipairs(linux.namespaces or {}) do namespace.path = nil end
end

-- An ordinary user starts the container on the node, in a user namespace with one user and group.
local function become_rootless(config, user_id, group_id)
	local process = config.process
	local user = process.user or {}
	config.linux = config.linux or {}
	local linux = config.linux
	linux.namespaces = linux.namespaces or {}
	local has = {}
	for _, namespace in ipairs(linux.namespaces) do has[namespace.type] = true end
	if not has.user then table.insert(linux.namespaces, { type = "user" }) end
	linux.uidMappings = { { containerID = user.uid or 0, hostID = user_id, size = 1 } }
	linux.gidMappings = { { containerID = user.gid or 0, hostID = group_id, size = 1 } }
	linux.sysctl = nil
	user.additionalGids = nil -- only root may have them
	process.oomScoreAdj = nil
	for _, mount in ipairs(config.mounts or {}) do
		-- other users and groups do not exist in the namespace
		filter(mount.options, function(option) return not string.find(option, "^[ug]id=") end)
		if mount.type == "sysfs" and not has.network then
			mount.type, mount.source = "bind", "/sys"
			mount.options = mount.options or {}
			table.insert(mount.options, 1, "rbind")
		end
	end
end

-- Remove the variables that were for scrun from the container's, and add the job's.
local function merge_environment(process, job_env)
	local job = {}
	for _, entry in ipairs(job_env) do
		local name = string.match(entry, "^(SLURM[%w_]*)=")
		if name then job[name] = entry end
	end
	process.env = process.env or {}
	filter(process.env, function(entry)
		local name = string.match(entry, "^[^=]*")
		return not (job[name] or string.find(name, "^SCRUN_"))
	end)
	local names = {}
	for name in pairs(job) do table.insert(names, name) end
	table.sort(names)
	for _, name in ipairs(names) do table.insert(process.env, job[name]) end
end

-- Make the files of one bind mount available on the node; return false if that is impossible.
local function stage_mount(mount, number, place)
	if mount.destination == "/dev/shm" then -- a tmpfs that the container engine made for itself
		mount.type, mount.source, mount.options = "tmpfs", "shm", { "nosuid", "nodev", "mode=1777" }
		return true
	end
	mount.source = resolve(mount.source, place.original)
	if is_below(mount.source, shared) or is_below(mount.source, of_the_system) then return true end
	local is_directory = succeeds("test", "-d", mount.source)
	if not is_directory and not succeeds("test", "-f", mount.source) then
		slurm.log_info("mount %s: left out: %s is a socket or device", mount.destination, mount.source)
		return false
	end
	local to = place.bundle .. "/mount-" .. number
	if is_directory then run("mkdir", "--", to) end
	copy(mount.source, to, is_directory, place.rootless)
	slurm.log_info("mount %s: %s was copied", mount.destination, mount.source)
	if not has_option(mount, "ro") then
		local copied = { from = to, to = mount.source, is_directory = is_directory }
		table.insert(place.copied, copied)
	end
	mount.source = to
	return true
end

local function stage_root(root, place)
	local original = resolve(root.path, place.original)
	root.path = original
	if not is_below(original, shared) then
		root.path = place.bundle .. "/rootfs"
		run("mkdir", "--", root.path)
		copy(original, root.path, true, place.rootless)
		slurm.log_info("root file system: %s was copied", original)
		if root.readonly ~= true then
			table.insert(place.copied, { from = root.path, to = original, is_directory = true })
		end
	end
	slurm.set_root_path(root.path)
end

-- What scrun calls

function slurm_scrun_stage_in(id, bundle, spool_dir, config_file, job_id, user_id, group_id, job_env)
	local name = string.format("%d-%s-%d", user_id, id, job_id)
	local place = {
		original = bundle,
		bundle = scratch .. "/" .. name,
		rootless = user_id ~= 0,
		copied = {}, -- what stage_out has to copy back
	}
	run("mkdir", "-p", "--", scratch)
	run("mkdir", "-m", "700", "--", place.bundle) -- fails if it exists already
	local done, reason = pcall(function()
		local config = json.decode(read(config_file))
		forget_this_machine(config)
		stage_root(config.root, place)
		local number = 0
		filter(config.mounts, function(mount)
			number = number + 1
			local is_bind = mount.type == "bind" or has_option(mount, "bind")
			return not (is_bind or has_option(mount, "rbind")) or stage_mount(mount, number, place)
		end)
		if place.rootless then become_rootless(config, user_id, group_id) end
		merge_environment(config.process, job_env)
		write(place.bundle .. "/config.json", json.encode(config))
		write(spool_dir .. "/copied.json", json.encode(place.copied))
	end)
	if not done then -- there is no stage_out after a stage_in that failed
		run("rm", "-rf", "--one-file-system", "--", place.bundle)
		error(reason, 0)
	end
	slurm.set_bundle_path(place.bundle)
	return slurm.SUCCESS
end

function slurm_scrun_stage_out(id, bundle, orig_bundle, root_path, orig_root_path, spool_dir, config_file, job_id, user_id, group_id)
	-- This is a new process: what stage_in knew is in the spool directory.
	for _, item in ipairs(json.decode(read(spool_dir .. "/copied.json"))) do
		-- After an error the copy stays where it is, and the message names it.
		copy(item.from, item.to, item.is_directory, user_id ~= 0, true)
	end
	run("rm", "-rf", "--one-file-system", "--", bundle)
	return slurm.SUCCESS
end

return slurm.SUCCESS
