-- The part of `posix` (luaposix) that scripts for spank-lua use most. In the local and the allocator
-- context the process has the job's environment (spank(7)), so scripts change it with setenv. The
-- module in C would change only the worker's.

local host, shown = ...
local type, error, format = type, error, string.format

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

package.loaded.posix = posix
