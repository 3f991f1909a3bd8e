"""The `holdfast` command: one file a subcommand, put together by `app.py`.

Shared: `_model.py` (MODEL), `_screen.py` (how wide, names shown as text, progress, Ctrl-C), `_plots.py`, `_files.py` (files of
numbers). Other distributions add commands by entry points of the group "holdfast.commands".

Exit codes: 0, it ran; 1, it ran and the answer is bad; 2, it could not run; 130, stopped by Ctrl-C.
"""
