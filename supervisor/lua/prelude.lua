-- The Lua side of what a scrun.lua finds. Runs once, before the script, in Lua 5.1 to 5.5.
--
-- `host` holds Python functions. They stay in the closures of this file: a script sees Lua
-- functions only. Host functions never raise; what a caller did wrong is raised here, so that
-- it has the script's line in front.

local host, constants, documents = ...
local unpack = table.unpack or unpack
local select, type, tostring, error, pcall = select, type, tostring, error, pcall
local format = string.format
local tmpfile, traceback = io.tmpfile, debug.traceback

local function text(value, name, number)
	if type(value) == "string" then return value end
	error(format("bad argument #%d to '%s' (string expected, got %s)", number, name, type(value)), 3)
end

local function message(...)
	local count = select("#", ...)
	if count == 0 then return "" end
	-- a lone string with a % in it is no format
	if count == 1 then return tostring((...)) end
	local done, result = pcall(format, ...)
	if done then return result end
	error(result, 3)
end

-- slurm

local slurm = {}
for name, value in pairs(constants) do slurm[name] = value end
for name, value in pairs(documents) do slurm[name] = value end

local levels = { [0] = "info", "verbose", "debug", "debug2", "debug3", "debug4" }

-- scrun(1) has log(MSG, LEVEL); Slurm's other Lua plugins have log(LEVEL, MSG)
function slurm.log(first, second)
	local level, words = second, first
	if type(first) == "number" and type(second) ~= "number" then level, words = first, second end
	level = math.floor(tonumber(level) or 0)
	host.log(levels[level] or (level < 0 and "error" or "debug4"), tostring(words))
end

function slurm.log_error(...) host.log("error", message(...)) end
function slurm.log_info(...) host.log("info", message(...)) end
function slurm.log_verbose(...) host.log("verbose", message(...)) end
function slurm.log_debug(...) host.log("debug", message(...)) end
function slurm.log_debug2(...) host.log("debug2", message(...)) end
function slurm.log_debug3(...) host.log("debug3", message(...)) end
function slurm.log_debug4(...) host.log("debug4", message(...)) end
slurm.error = slurm.log_error

local function run(kind, script, name)
	local failure, status, output = host.run(kind, text(script, name, 1))
	if failure then error(name .. ": " .. failure, 3) end
	return status, output
end

function slurm.allocator_command(script)
	local status, output = run("command", script, "allocator_command")
	return status, output
end

function slurm.remote_command(script)
	local status, output = run("remote", script, "remote_command")
	return status, output
end

function slurm.set_bundle_path(path)
	return host.set_path("bundle", text(path, "set_bundle_path", 1))
end

function slurm.set_root_path(path)
	return host.set_path("root", text(path, "set_root_path", 1))
end

function slurm.time_str2mins(time) return host.minutes(tostring(time)) end

_G.slurm = slurm
_G.SLURM = slurm -- the manual writes SLURM.success in places

-- What would reach around us

-- Ends the script, as any other error.
function os.exit(code)
	error(format("os.exit(%s) called: return slurm.SUCCESS or slurm.ERROR instead", tostring(code)), 2)
end

-- system(3) and popen(3) would make children that nobody could end.
function os.execute(command)
	if command == nil then return true end
	local status, output = run("command", command, "os.execute")
	if output ~= "" then host.log("info", output) end
	if _VERSION == "Lua 5.1" then return status * 256 end
	if status == 0 then return true, "exit", 0 end
	return nil, "exit", status
end

local Pipe = {}
Pipe.__index = Pipe

function Pipe:read(...) return self.file:read(...) end
function Pipe:lines(...) return self.file:lines(...) end
function Pipe:close()
	self.file:close()
	if _VERSION == "Lua 5.1" then return true end
	return self.status == 0 or nil, "exit", self.status
end

function io.popen(command, mode)
	if mode ~= nil and string.sub(text(mode, "io.popen", 2), 1, 1) ~= "r" then
		return nil, "io.popen: only mode \"r\"; slurm.allocator_command takes a here-document"
	end
	local status, output = run("output", command, "io.popen")
	local file = tmpfile()
	file:write(output)
	file:seek("set")
	return setmetatable({ file = file, status = status }, Pipe)
end

-- Anybody's upvalues, and the registry, are in its reach.
debug = { traceback = debug.traceback, getinfo = debug.getinfo, sethook = debug.sethook }
package.loaded.debug = debug
python, package.loaded.python = nil, nil

-- How the host calls

local function explain(reason)
	if type(reason) ~= "string" then reason = "error: " .. tostring(reason) end
	return reason, traceback("", 2)
end

local function guarded(called, ...)
	local arguments, count = { ... }, select("#", ...)
	local reason, trace
	local results = { xpcall(
		function() return called(unpack(arguments, 1, count)) end,
		function(raised) reason, trace = explain(raised) end
	) }
	if results[1] then return true, results[2] end
	return false, reason, trace
end

local function call(name, ...) return guarded(_G[name], ...) end

local function load_script(content, name)
	local chunk, reason = (loadstring or load)(content, name)
	if not chunk then return false, reason, "" end
	return guarded(chunk)
end

local function is_function(name) return type(_G[name]) == "function" end

return load_script, call, is_function
