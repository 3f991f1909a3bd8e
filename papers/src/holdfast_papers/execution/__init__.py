"""Runs units of work on this machine or a cluster and keeps their results: atomic, checksummed, locked, resumable.

`plan.py` lists what is to be done as `task.py`'s tasks, `scheduler.py` hands them to an executor (`executor.py` says
what that is): `local.py`, whose processes run `worker.py`, or `cluster.py`. `store.py` is where results lie,
`earlier.py` finds those of code that changed since, `check.py` compares them with others.
"""

from holdfast_papers.execution.local import LocalExecutor
from holdfast_papers.execution.plan import Job, plan
from holdfast_papers.execution.scheduler import Failure, Listener, Scheduler
from holdfast_papers.execution.store import FolderError, Store, StoreError
from holdfast_papers.execution.task import Task

__all__ = [
    "Failure",
    "FolderError",
    "Job",
    "Listener",
    "LocalExecutor",
    "Scheduler",
    "Store",
    "StoreError",
    "Task",
    "plan",
]
