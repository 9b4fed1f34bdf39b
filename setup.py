"""Packages of the wheel; all else is in pyproject.toml, which cannot install `recipes/` as `dair_hf.recipes`."""

from pathlib import Path

from setuptools import find_namespace_packages, setup

RECIPES = ["", ".configs", ".accelerate_configs"]
# Each metric is a folder that `evaluate` can load; its card travels with it as package data.
packages = find_namespace_packages(include=["dair_hf*"])
# An editable installation runs the recipes in their own folder, see `dair_hf.commands.train`.
if Path("recipes").is_dir():
    packages += [f"dair_hf.recipes{folder}" for folder in RECIPES]

setup(packages=packages, package_dir={"dair_hf.recipes": "recipes"})
