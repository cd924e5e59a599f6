"""Servers for `semel check` to be tried on: right ones in several styles, wrong ones of all kinds.

Each wrong server is a right one with one thing changed, and names the probe that must notice.
"""
