"""From the words of a command and its settings to the frozen plan of a run.

No model is asked here. It imports the folders of nouns, formats, content, providers and repository.
"""
