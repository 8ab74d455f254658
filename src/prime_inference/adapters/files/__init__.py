"""Ports held in files of the state folder of one machine."""
