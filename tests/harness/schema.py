"""The state of a container, as the runtime specification defines it (runtime.md, "State")."""

STATE = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "required": ["ociVersion", "id", "status", "bundle"],
    "properties": {
        "ociVersion": {"type": "string", "pattern": r"^\d+\.\d+\.\d+"},
        "id": {"type": "string", "minLength": 1},
        "status": {"enum": ["creating", "created", "running", "stopped"]},
        "pid": {"type": "integer", "minimum": 0},
        "bundle": {"type": "string", "pattern": "^/"},
        "annotations": {
            "type": ["object", "null"],
            "propertyNames": {"minLength": 1},
            "additionalProperties": {"type": "string"},
        },
    },
    # REQUIRED on Linux while there is a process
    "if": {"properties": {"status": {"enum": ["created", "running"]}}},
    "then": {"required": ["pid"], "properties": {"pid": {"minimum": 1}}},
}
