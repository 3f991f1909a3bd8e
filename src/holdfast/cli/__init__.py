"""The `holdfast` command: one file a subcommand, put together by `app.py`.

Shared: `_model.py` (MODEL), `_options.py`, `_screen.py` (how wide), `_text.py` (names shown as text), `_bar.py` (progress),
`_interrupt.py` (Ctrl-C), `_plot.py`, `_data_file.py` and `_kernel_file.py` (files of numbers). Other distributions add
commands by entry points of the group "holdfast.commands".

Exit codes: 0, it ran; 1, it ran and the answer is bad; 2, it could not run; 130, stopped by Ctrl-C.
"""
