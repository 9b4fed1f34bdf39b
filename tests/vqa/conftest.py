"""Models with their processors in folders, saved once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dair_hf.modeling import ModelConfig
from tests.fixtures import vision_language as vl


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ModelConfig]:
    """Return a function that saves a model with its processor to a folder, and names this in settings."""
    makers = {"vilt": vl.vilt, **vl.DECODERS, **vl.ENCODER_DECODERS}
    folders: dict[str, str] = {}

    def config(name: str, **settings: Any) -> ModelConfig:
        if name not in folders:
            folders[name] = vl.stored(makers[name], tmp_path_factory.mktemp(name))
        return ModelConfig(model_name_or_path=folders[name], **settings)

    return config
