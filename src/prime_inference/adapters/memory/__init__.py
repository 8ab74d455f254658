"""Ports held in this process's memory."""
