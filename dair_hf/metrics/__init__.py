"""Metrics for `evaluate.load`: each name below is the path of a metric's folder in the installed package."""

from __future__ import annotations

import sys

from dair_hf.lazy import lazy_submodules
from dair_hf.metrics.paths import _metric_path, _MetricPaths

joint_goal_accuracy: str = _metric_path("joint_goal_accuracy")
consistency: str = _metric_path("consistency")
vqa_accuracy: str = _metric_path("vqa_accuracy")

sys.modules[__name__].__class__ = _MetricPaths

__all__ = ["consistency", "joint_goal_accuracy", "vqa_accuracy"]

__getattr__ = lazy_submodules(__name__)
