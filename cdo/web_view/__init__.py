"""Shows sessions in the browser of the person at this machine, live; takes what the person may change, by forms.

`guard` decides who is answered, `stream` follows sessions, `pages` makes the pages, `server` is the HTTP server. It
shows sessions of any process, and changes none by itself.
"""
