"""Threads: deadlines of calls, and what the child of a fork makes anew."""
