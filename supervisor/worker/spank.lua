-- The Lua side of the interface for scripts of plugstack.conf, spank-lua(8). Runs once for each
-- context, after prelude.lua, in Lua 5.1 to 5.5.
--
-- `host` has functions of the worker; `guarded`, `message` and `shown` are the prelude's. Each call
-- brings a table `state` with what the script may read: see items.py.

local host, guarded, message, shown, context, version = ...
local setmetatable, rawget, rawset, type, tonumber = setmetatable, rawget, rawset, type, tonumber
local pairs, ipairs, error, tostring = pairs, ipairs, error, tostring
local format, floor, match = string.format, math.floor, string.match
local load_text, load_any, set_globals = loadstring, load, setfenv
local globals = _G

-- these belong to scrun.lua
globals.slurm, globals.SLURM = nil, nil

local scripts, state = {}, {}
local BAD, EXISTS, MISSING = "Bad argument", "Environment variable exists",
	"No such environment variable"
local NAME_LENGTH, VALUE_LENGTH = 75, 131000

-- SPANK

local SPANK = { SUCCESS = 0, FAILURE = -1 }
-- the plugin's own returns nothing, so `return SPANK.log_error(…)` is success
function SPANK.log_error(...) host.log("error", message(...)) end
function SPANK.log_info(...) host.log("info", message(...)) end
function SPANK.log_verbose(...) host.log("verbose", message(...)) end
function SPANK.log_debug(...) host.log("debug", message(...)) end
local LEVELS = { [-1] = "error", [0] = "info", [1] = "verbose", [2] = "debug" }
function SPANK._log_msg(level, words)
	if LEVELS[tonumber(level)] then host.log(LEVELS[tonumber(level)], shown(words)) end
	if tonumber(level) == -1 then return -1 end
end
globals.SPANK = SPANK

-- The handle

local Handle = {}
local owners = setmetatable({}, { __mode = "k" }) -- the script that each handle belongs to

local function text(value, number, name)
	if type(value) == "string" then return value end
	if type(value) == "number" then return tostring(value) end
	error(format("bad argument #%d to '%s' (string expected, got %s)", number, name, type(value)), 3)
end

local function handle(value, name)
	if type(value) ~= "table" then
		error(format("call it with a colon: spank:%s(...)", name), 3)
	end
end

-- What is not a number is 0; a fraction is cut off.
local function whole(value)
	local number = tonumber(value) or 0
	return number < 0 and -floor(-number) or floor(number)
end

local function copy(list)
	local result = {}
	for key, value in pairs(list) do result[key] = value end
	return result
end

-- as in wait(2): status, exit code, or signal and whether there is a core
local function task_status(status)
	local signal = status % 128
	if signal == 0 then return status, floor(status / 256) % 256, nil, nil end
	return status, nil, signal, floor(status / 128) % 2 == 1 and 1 or nil
end

function Handle.get_item(self, name, id)
	handle(self, "get_item")
	name = text(name, 1, "get_item")
	local value = state.items[name]
	if value == nil then
		local reason = state.refused[name]
		if not reason then error(format("Invalid spank item %s", name), 2) end
		return nil, reason
	end
	if name == "S_JOB_ENV" then return copy(state.job) end
	if name == "S_TASK_EXIT_STATUS" then return task_status(value) end
	if type(value) ~= "table" then return value end
	if not match(name, "_TO_") then return copy(value) end
	if not tonumber(id) then
		error(format("bad argument #2 to 'get_item' (number expected, got %s)", type(id)), 2)
	end
	local found = value[floor(tonumber(id))]
	if found == nil then return nil, "Id/PID does not exist on this node" end
	return found
end

-- getenv, setenv and unsetenv for one of the two environments
local function environment(kind, prefix)
	local function known(self, name, called)
		handle(self, called)
		name = text(name, 1, called)
		if state.closed[kind] then return nil, state.closed[kind] end
		if name == "" or match(name, "[=%z]") then return nil, BAD end
		return name
	end
	Handle[prefix .. "getenv"] = function(self, name)
		local found, reason = known(self, name, prefix .. "getenv")
		if not found then return nil, reason end
		local value = state[kind][found]
		if value == nil then return nil, MISSING end
		return value
	end
	Handle[prefix .. "setenv"] = function(self, name, value, overwrite)
		local found, reason = known(self, name, prefix .. "setenv")
		value = text(value, 2, prefix .. "setenv")
		if not found then return nil, reason end
		if match(value, "%z") or #found + #value > VALUE_LENGTH then return nil, BAD end
		local overwrites = overwrite == true or whole(overwrite) ~= 0
		if state[kind][found] ~= nil and not overwrites then return nil, EXISTS end
		state[kind][found] = value
		host.set(kind, found, value)
		return true
	end
	Handle[prefix .. "unsetenv"] = function(self, name)
		local found, reason = known(self, name, prefix .. "unsetenv")
		if not found then return nil, reason end
		if state[kind][found] == nil then return true end
		state[kind][found] = nil
		host.unset(kind, found)
		return true
	end
end
environment("job", "")
environment("control", "job_control_")

-- Options

-- Return the members of an option, checked.
local function members(option, env)
	if type(option) ~= "table" then
		error(format("spank option: table expected, got %s", type(option)), 0)
	end
	local words = {}
	for _, member in ipairs({ "name", "usage" }) do
		local kind = type(option[member])
		if kind ~= "string" and kind ~= "number" then
			error(format("spank option: Required field \"%s\" missing from spank option table", member), 0)
		end
		words[member] = tostring(option[member])
	end
	if not match(words.name, "^%w[%w_.-]*$") or #words.name > NAME_LENGTH then
		error(format("spank option: %s: not a valid name of an option", words.name), 0)
	end
	-- a boolean in the manual
	local takes = option.has_arg == true and 1 or whole(option.has_arg)
	if takes < 0 or takes > 2 then error("spank option: has_arg: 0, 1 or 2 expected", 0) end
	if option.cb ~= nil and type(env[option.cb]) ~= "function" then
		error(format("Unable to find spank option cb function %s", shown(option.cb)), 0)
	end
	return words.name, words.usage, takes, shown(option.arginfo or ""),
		option.cb and shown(option.cb) or "", whole(option.val)
end

local function described(option, env) host.register(members(option, env)) end

function Handle.register_option(self, option)
	handle(self, "register_option")
	if not state.registers then return nil, BAD end
	described(option, owners[self])
	return true
end

function Handle.getopt(self, option)
	handle(self, "getopt")
	local name = members(option, owners[self])
	if not state.asks then return nil, "Item not available from this callback" end
	local given = state.given[name]
	if given == nil then return nil, "Option unused" end
	return given
end

-- Each script has its own globals

local function new_globals()
	local env = setmetatable({}, { __index = globals })
	rawset(env, "_G", env)
	return env
end

local function load_script(content, name)
	local env = new_globals()
	local chunk, reason
	if set_globals then
		chunk, reason = load_text(content, name)
		if chunk then set_globals(chunk, env) end
	else
		chunk, reason = load_any(content, name, "t", env)
	end
	scripts[#scripts + 1] = env
	if not chunk then return false, reason, "" end
	return guarded(chunk)
end

local function options_of(index)
	return guarded(function()
		local listed = rawget(scripts[index], "spank_options")
		if listed == nil then return end
		if type(listed) ~= "table" then error("spank_options: table expected", 0) end
		-- its keys may be names, whose order nobody knows
		local count = #listed
		for _, option in ipairs(listed) do described(option, scripts[index]) end
		for key, option in pairs(listed) do
			local is_told = type(key) == "number" and key % 1 == 0 and key >= 1 and key <= count
			if not is_told then described(option, scripts[index]) end
		end
	end)
end

local function callbacks(index)
	local found = {}
	for name, value in pairs(scripts[index]) do
		-- to call what is not a function is an error, when it is called
		if type(name) == "string" and value ~= nil and match(name, "^slurm_spank_") then
			found[#found + 1] = name
		end
	end
	return found
end

local function begin(values) state = values end

local function call(index, name, arguments)
	local env = scripts[index]
	local called = rawget(env, name)
	local spank = setmetatable({
		context = context,
		slurm_version = version,
		args = copy(arguments),
	}, { __index = Handle })
	owners[spank] = env
	return guarded(called, spank)
end

local function call_back(index, name, val, argument, remote)
	return guarded(scripts[index][name], val, argument, remote)
end

-- Of a phase what is below 0 is a failure, of an option's function what is not 0.
local function failed(result, of_option)
	local number = whole(result)
	if number < 0 or (of_option and number ~= 0) then return format("%d", number) end
end

return load_script, options_of, callbacks, begin, call, call_back, failed
