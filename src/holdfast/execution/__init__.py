"""Runs units of work on this machine or a cluster and keeps their results: atomic, checksummed, locked, resumable."""

from holdfast.execution.local import LocalExecutor
from holdfast.execution.plan import Job, plan
from holdfast.execution.scheduler import Failure, Listener, Scheduler
from holdfast.execution.store import FolderError, Store, StoreError
from holdfast.execution.task import Task

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
