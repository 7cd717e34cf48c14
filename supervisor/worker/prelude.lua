-- The Lua side of the interface for a scrun.lua. Runs once, before the script, in Lua 5.1 to 5.5.
--
-- `host` has functions of the worker. Errors of the caller are raised here, so that the message
-- begins with the script's line. `room` and `limit` lift and set the limit of memory, which applies
-- to the script's code only (see runtime.py). Everything needed later is in locals, because a script
-- may replace any global.

local host, constants, documents, room, limit = ...
local unpack = table.unpack or unpack
local select, type, tostring, tonumber, error = select, type, tostring, tonumber, error
local pcall, xpcall, setmetatable, getmetatable = pcall, xpcall, setmetatable, getmetatable
local collectgarbage, rawget, pairs, globals = collectgarbage, rawget, pairs, _G
local format, sub, gsub, floor = string.format, string.sub, string.gsub, math.floor
local concat, sort, next = table.concat, table.sort, next
local traceback, getinfo = debug.traceback, debug.getinfo
local tmpfile, close_file, file_type = io.tmpfile, io.close, io.type
local open_file, temporary_name, remove_file = io.open, os.tmpname, os.remove
local load_chunk = loadstring or load
local before_5_2 = _VERSION == "Lua 5.1"

-- Called by the helpers of the script's functions: the script is four levels up.
local function text(value, name)
	if type(value) == "string" then return value end
	if type(value) == "number" then return tostring(value) end
	error(format("bad argument #1 to '%s' (string expected, got %s)", name, type(value)), 4)
end

-- In 5.1 __tostring may return anything.
local function shown(value)
	local words = tostring(value)
	return type(words) == "string" and words or type(value)
end

local function message(...)
	local count = select("#", ...)
	if count == 0 then return "" end
	-- a single string with a % is not a format
	if count == 1 then return shown((...)) end
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
	level = floor(tonumber(level) or 0)
	host.log(levels[level] or (level < 0 and "error" or "debug4"), shown(words))
end

function slurm.log_error(...) host.log("error", message(...)) end
function slurm.log_info(...) host.log("info", message(...)) end
function slurm.log_verbose(...) host.log("verbose", message(...)) end
function slurm.log_debug(...) host.log("debug", message(...)) end
function slurm.log_debug2(...) host.log("debug2", message(...)) end
function slurm.log_debug3(...) host.log("debug3", message(...)) end
function slurm.log_debug4(...) host.log("debug4", message(...)) end
slurm.error = slurm.log_error
slurm.log_user = slurm.log_info -- as in 24.11; the user's settings decide what is shown

local function run(kind, script, name)
	local failure, status, output = host.run(kind, text(script, name))
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

local function set_path(which, path, name)
	local failure, original = host.set_path(which, text(path, name))
	if failure then error(name .. ": " .. failure, 3) end
	return original
end

function slurm.set_bundle_path(path)
	local original = set_path("bundle", path, "set_bundle_path")
	return original
end

function slurm.set_root_path(path)
	local original = set_path("root", path, "set_root_path")
	return original
end

function slurm.time_str2mins(time)
	local minutes = host.minutes(shown(time)) -- and nothing more: it may be an argument of another
	return minutes
end

globals.slurm = slurm
globals.SLURM = slurm -- the manual writes SLURM.success in places

-- Functions of Lua that would bypass the worker

-- Ends the script like any other error.
function os.exit(code)
	error(format("os.exit(%s) called: return slurm.SUCCESS or slurm.ERROR instead", shown(code)), 2)
end

-- system(3) and popen(3) would start children that nobody could end.
function os.execute(command)
	if command == nil then return before_5_2 and 1 or true end
	local status, output = run("command", command, "os.execute")
	if output ~= "" then host.log("info", output) end
	if before_5_2 then return status * 256 end
	if status == 0 then return true, "exit", 0 end
	return nil, "exit", status
end

local Pipe = {}
Pipe.__index = Pipe

function Pipe:read(...) return self.file:read(...) end
function Pipe:lines(...) return self.file:lines(...) end
function Pipe:close()
	self.file:close()
	if before_5_2 then return true end
	return self.status == 0 or nil, "exit", self.status
end

-- A command that is written to runs when it is closed: then all of its input is there.
local Input = {}
Input.__index = Input

function Input:write(...)
	for number = 1, select("#", ...) do
		local part = select(number, ...)
		if type(part) ~= "string" and type(part) ~= "number" then
			error(format("bad argument #%d to 'write' (string expected, got %s)", number, type(part)), 2)
		end
		self.file:write(part)
	end
	return self
end
function Input:flush() return true end
function Input:setvbuf() return true end
function Input:close()
	self.file:close()
	local command = format("{ %s\n} <'%s'", self.command, self.name)
	local status, output = run("command", command, "io.popen")
	remove_file(self.name)
	if output ~= "" then host.log("info", output) end
	if before_5_2 then return true end
	return status == 0 or nil, "exit", status
end

function io.popen(command, mode)
	if mode == "w" or mode == "wb" then
		local name = temporary_name() -- has no character that a shell minds
		local file, problem = open_file(name, "wb")
		if not file then return nil, problem end
		return setmetatable({ file = file, name = name, command = text(command, "io.popen") }, Input)
	end
	if mode ~= nil and mode ~= "r" and mode ~= "rb" then
		return nil, format("io.popen: %s: invalid mode", shown(mode))
	end
	local status, output = run("output", command, "io.popen")
	local file, problem = tmpfile()
	if not file then return nil, problem end
	file:write(output)
	file:seek("set")
	return setmetatable({ file = file, status = status }, Pipe)
end

function io.close(...)
	local file = ...
	if getmetatable(file) == Pipe or getmetatable(file) == Input then return file:close() end
	return close_file(...)
end

function io.type(value)
	if getmetatable(value) == Pipe or getmetatable(value) == Input then value = value.file end
	return file_type(value)
end

-- The full module reaches all upvalues, the registry, and the functions on the stack.
debug = { traceback = debug.traceback, getinfo = debug.getinfo }
package.loaded.debug = debug
python, package.loaded.python = nil, nil

-- The worker is killed at the end, which does not flush the script's output.
io.stdout:setvbuf("line")

-- Calls from the host

local function plain(value)
	if type(value) == "string" then return '"' .. gsub(sub(value, 1, 200), "%c", " ") .. '"' end
	if type(value) == "number" or type(value) == "boolean" then return tostring(value) end
	return type(value)
end

-- What is in a table that was raised: its address says nothing.
local function members(value)
	local parts, more = {}, ""
	for key, member in next, value do
		if #parts == 8 then more = ", ..." break end
		local name = type(key) == "string" and sub(key, 1, 60) or "[" .. plain(key) .. "]"
		parts[#parts + 1] = name .. " = " .. plain(member)
	end
	sort(parts)
	return "{" .. concat(parts, ", ") .. more .. "}"
end

-- Where the script was: only a text that is raised says so itself.
local function place()
	for level = 2, 30 do
		local info = getinfo(level, "Sl")
		if not info then break end
		if info.currentline > 0 and info.short_src ~= "scrun" then
			return info.short_src .. ":" .. info.currentline .. ": "
		end
	end
	return ""
end

local function explain(reason)
	local words = reason
	if type(reason) ~= "string" then
		local behind = getmetatable(reason)
		local has_words = type(behind) == "table" and rawget(behind, "__tostring")
		local is_bare = type(reason) == "table" and not has_words
		words = place() .. "error: " .. (is_bare and members(reason) or shown(reason))
	end
	return words, traceback("", 2)
end

local function guarded(called, ...)
	local arguments, count = { ... }, select("#", ...)
	local reason, trace
	local function call() return called(unpack(arguments, 1, count)) end
	local function failed(raised) reason, trace = explain(raised) end
	limit()
	local done, result = xpcall(call, failed)
	if not done then collectgarbage() end
	room()
	if done then return true, result end
	-- without memory, or after an error in an error, the handler is not called
	return false, reason or shown(result), trace or ""
end

local function call(name, ...) return guarded(rawget(globals, name), ...) end

local function load_script(content, name)
	local chunk, reason = load_chunk(content, name)
	if not chunk then return false, reason, "" end
	return guarded(chunk)
end

local function is_function(name) return type(rawget(globals, name)) == "function" end

return load_script, call, is_function, guarded, message, shown
