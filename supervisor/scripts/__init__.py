"""The site's Lua scripts, as the supervisor sees them: their process, and what it is asked."""
