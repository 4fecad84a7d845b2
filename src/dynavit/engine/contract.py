"""Loaders, tasks and evaluators: all that the loop knows about data, models and problems."""

from ..common.data import Loader as Loader
from ..common.task import Evaluator as Evaluator
from ..common.task import Task as Task
