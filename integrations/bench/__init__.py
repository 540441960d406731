"""Measurements that users can repeat on their own prompts: ``groundspeed bench``."""
