"""The other end of the shim: how the supervisor brings it to the node and talks to it.

`connection` has what engines use; `supervisor.shim` is the contract.
"""
