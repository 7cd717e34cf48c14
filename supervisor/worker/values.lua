-- The Lua part of `values`, for 5.1 to 5.5. It uses only locals: a script may replace any global,
-- and the methods of strings.

local compute = ...
local error, getmetatable, setmetatable = error, getmetatable, setmetatable
local rawget, tostring, type = rawget, tostring, type

local metatables = {}
local active = {}

-- The shape is a field, not the identity of the metatable: scripts that copy tables deeply may
-- copy metatables as well.
local function memory(value)
    local meta = getmetatable(value)
    if type(meta) == "table" then
        return rawget(meta, "__shape"), rawget(meta, "__array")
    end
end

local function metatable(shape, is_array)
    local meta = metatables[shape]
    if not meta then
        meta = { __shape = shape, __array = is_array }
        metatables[shape] = meta
    end
    return meta
end

local function array(into, shape, count, ...)
    if not into then
        return setmetatable({ ... }, metatable(shape, true))
    end
    local values = { ... }
    for i = 1, #values do
        into[count + i] = values[i]
    end
    return into
end

local function object(into, shape, ...)
    into = into or setmetatable({}, metatable(shape, false))
    local flat = { ... }
    for i = 1, #flat, 2 do
        into[flat[i]] = flat[i + 1]
    end
    return into
end

local function marker(name, shape, wanted)
    return function(value)
        if value == nil then
            value = {}
        end
        local known, is_array = memory(value)
        if type(value) ~= "table" or type(known) == "string" then
            error(name .. ": a table is needed", 2)
        end
        if is_array ~= wanted then
            setmetatable(value, metatable(shape, wanted))
        end
        return value
    end
end

local null = setmetatable({}, {
    __shape = "null",
    __name = "null",
    __tostring = function() return "null" end,
    __newindex = function() error("null has no members", 2) end,
    __eq = function(a, b) return memory(a) == "null" and memory(b) == "null" end,
})

local integers = { __shape = "integer", __name = "integer" }

local function digits(value)
    if type(value) == "table" and memory(value) == "integer" then
        return tostring(rawget(value, 1))
    end
    return tostring(value)
end

integers.__tostring = digits
integers.__concat = function(a, b) return digits(a) .. digits(b) end
integers.__newindex = function() error("an integer has no members", 2) end
integers.__eq = function(a, b)
    return memory(a) == "integer" and memory(b) == "integer" and digits(a) == digits(b)
end

local function operation(name)
    integers["__" .. name] = function(a, b)
        local ok, result = compute(name, a, b)
        if not ok then
            error(result, 2)
        end
        return result
    end
end

for _, name in ipairs({ "add", "sub", "mul", "div", "mod", "idiv", "pow", "lt", "le" }) do
    operation(name)
end
integers.__unm = function(a)
    local ok, result = compute("sub", 0, a)
    if not ok then
        error(result, 2)
    end
    return result
end

return {
    array = array,
    object = object,
    mark_array = marker("json.array", 0, true),
    mark_object = marker("json.object", 1, false),
    null = null,
    integer = function(text) return setmetatable({ text }, integers) end,
    reset = function() active = {} end,
    enter = function(value)
        local shape = memory(value)
        if shape == "null" then
            return "null"
        elseif shape == "integer" then
            return digits(value)
        elseif active[value] then
            return "cycle"
        end
        active[value] = true
        return type(shape) == "number" and shape or nil
    end,
    leave = function(value) active[value] = nil end,
    type = function(value) return type(value) end,
    -- from 5.3 on integers are integers; before, all numbers are doubles
    least = math.mininteger or -2 ^ 53,
    most = math.maxinteger or 2 ^ 53,
}
