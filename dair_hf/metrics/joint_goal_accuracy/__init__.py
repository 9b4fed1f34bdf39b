"""The folder that `evaluate.load(dair_hf.metrics.joint_goal_accuracy)` reads; `python -m` runs it on JSON lines."""
