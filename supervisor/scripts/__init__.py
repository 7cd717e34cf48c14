"""The site's Lua scripts: the supervisor's side of the worker process that runs them."""
