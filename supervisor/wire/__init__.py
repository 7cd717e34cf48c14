"""What both ends of a node know: frames, their seals (`supervisor.shim`, the contract), rules.

RUNS IN: the shim and the supervisor. It goes to the node with the shim's code: it is written for
Python 3.6, and imports the standard library and its own folder only. Pure.
"""
