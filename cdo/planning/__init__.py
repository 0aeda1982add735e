"""Makes the frozen plan of a run from the words of a command and its settings.

No model is asked here. It imports the folders core, formats, content, providers and repository.
"""
