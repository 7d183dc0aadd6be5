"""What can be asked of a daemon: one table of calls, what goes over the wire, and who may."""
