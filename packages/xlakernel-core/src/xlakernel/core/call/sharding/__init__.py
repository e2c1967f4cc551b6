"""Calls on several devices."""
