"""Files that survive a crash, and locks between processes.

Sessions and other files that must last are written here: whole or not at all, in folders reached through no symlink.
It knows nothing of sessions. It imports core.
"""
