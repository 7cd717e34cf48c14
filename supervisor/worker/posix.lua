-- The part of `posix` (luaposix) that scripts for spank-lua use most. In the local and the allocator
-- context the process has the job's environment (spank(7)), so scripts change it with setenv. The
-- module in C would change only the worker's.

local host, shown = ...
local type, error, format = type, error, string.format
local setmetatable, pcall, require, tonumber, ipairs = setmetatable, pcall, require, tonumber, ipairs

local posix = {}

local function text(value, name)
	if type(value) == "string" or type(value) == "number" then return shown(value) end
	error(format("bad argument to '%s' (string expected, got %s)", name, type(value)), 3)
end

function posix.getenv(name) return (host.getenv(text(name, "getenv"))) end

function posix.setenv(name, value, overwrite)
	name = text(name, "setenv")
	if value == nil then host.unset("job", name) return 0 end
	if overwrite == false or overwrite == 0 then
		if host.getenv(name) then return 0 end
	end
	host.set("job", name, text(value, "setenv"))
	return 0
end

function posix.unsetenv(name) host.unset("job", text(name, "unsetenv")) return 0 end

function posix.getpid(what)
	local ids = { pid = host.id("pid"), ppid = host.id("ppid"), uid = host.id("uid"),
		euid = host.id("euid"), gid = host.id("gid"), egid = host.id("egid") }
	if what == nil then return ids end
	if what:sub(1, 1) == "%" then error("posix.getpid: a name expected, as in \"pid\"", 2) end
	return ids[what]
end

function posix.uname(what)
	return (host.uname(what == nil and "%s %n %r %v %m" or text(what, "uname")))
end

function posix.basename(path) return (text(path, "basename"):gsub("/+$", ""):match("[^/]*$")) end
function posix.dirname(path) return text(path, "dirname"):match("^(.+)/[^/]*$") or "." end

-- Of files: 0, or nil, a message and a number; as in luaposix, a mode is "rwxr-x---" or "750".
local function of_file(name, ...)
	local result, message, number = host.file(name, ...)
	if message then return nil, message, number end
	return result
end

local function bits(mode, name)
	mode = text(mode, name)
	if mode:match("^[0-7]+$") then return tonumber(mode, 8) end
	if not mode:match("^[r-][w-][x-][r-][w-][x-][r-][w-][x-]$") then
		error(format("posix.%s: %s: a mode expected, as in \"rwxr-x---\" or \"750\"", name, mode), 3)
	end
	local number = 0
	for letter in mode:gmatch(".") do number = number * 2 + (letter == "-" and 0 or 1) end
	return number
end

for _, name in ipairs({ "mkdir", "rmdir", "unlink" }) do
	posix[name] = function(path) return of_file(name, text(path, name)) end
end
function posix.chmod(path, mode) return of_file("chmod", text(path, "chmod"), bits(mode, "chmod")) end
function posix.access(path, mode)
	return of_file("access", text(path, "access"), mode == nil and "f" or text(mode, "access"))
end
function posix.getcwd() return of_file("getcwd") end

function posix.stat(path, member)
	local values, message, number = of_file("stat", text(path, "stat"))
	if not values then return nil, message, number end
	local found, index = {}, 0
	for _, name in ipairs({ "dev", "ino", "nlink", "uid", "gid", "size", "atime", "mtime", "ctime" }) do
		index = index + 1
		found[name] = values[index]
	end
	found.type, found.mode = values[10], values[11]
	if member ~= nil then return found[text(member, "stat")] end
	return found
end

local ident = "slurm"
function posix.openlog(name) ident = text(name, "openlog") return 1 end
function posix.closelog() ident = "slurm" return 1 end
function posix.syslog(level, words)
	host.syslog(ident, tonumber(level) or 6, text(words, "syslog"))
	return 1
end
for level, name in ipairs({ "EMERG", "ALERT", "CRIT", "ERR", "WARNING", "NOTICE", "INFO", "DEBUG" }) do
	posix["LOG_" .. name] = level - 1
end

-- The rest is that of the site's luaposix, which is loaded when something of it is asked for. Its
-- error is raised there: without the package a script that needs no more goes on.
local real
setmetatable(posix, {
	__index = function(_, name)
		if real == nil then
			package.loaded.posix = nil
			local done, found = pcall(require, "posix")
			package.loaded.posix = posix
			if not done then
				error(format("posix.%s: %s", shown(name), shown(found):match("^[^\n]*")), 2)
			end
			real = found
		end
		return real[name]
	end,
})
package.loaded.posix = posix
