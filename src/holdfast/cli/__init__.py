"""The `holdfast` command: one file a subcommand, put together by `app.py`.

Shared: `model.py` (MODEL), `options.py`, `screen.py` (how wide), `text.py` (names shown as text), `bar.py` (progress),
`interrupt.py` (Ctrl-C), `plot.py`, `data_file.py` and `kernel_file.py` (files of numbers). Other distributions add
commands by entry points of the group "holdfast.commands".

Exit codes: 0, it ran; 1, it ran and the answer is bad; 2, it could not run; 130, stopped by Ctrl-C.
"""
