"""Processors of models that also take videos, for installations without torchvision."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer
from transformers.image_processing_base import ImageProcessingMixin
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING, processor_class_from_name
from transformers.models.auto.video_processing_auto import get_video_processor_config
from transformers.processing_utils import ProcessorMixin
from transformers.utils import PushToHubMixin

from dair_hf.modeling import load_pretrained

VIDEOS = "video_processor"
LOADERS = {"image_processor": AutoImageProcessor, "tokenizer": AutoTokenizer}


class UnusedVideoProcessor(PushToHubMixin):
    """Settings of a video processor, which its processor reads and saves; it cannot process videos."""

    _auto_class = None
    model_input_names: tuple[str, ...] = ()

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "settings":  # looked up when copying and unpickling
            raise AttributeError(name)
        return self.settings.get(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an ImportError."""
        raise ImportError("videos need torchvision; install the version for your build of torch")

    def to_dict(self) -> dict[str, Any]:
        """Return the published settings."""
        return dict(self.settings)


def takes_videos(name: str, trust_remote_code: bool = False) -> bool:
    """Tell whether a published processor consists of an image processor, a tokenizer and a video processor."""
    published = _processor_class(name, trust_remote_code)
    return published is not None and set(published.get_attributes()) == {*LOADERS, VIDEOS}


def images_only_processor(name: str, trust_remote_code: bool = False) -> Any:
    """Load the processor of a model that also takes videos, without its video processor.

    Since transformers 5 every image processor has a version that needs only Pillow, but video processors need
    torchvision. The result has the published class and handles images and text as with torchvision, except for the
    arithmetic of resizing.
    """
    published = _processor_class(name, trust_remote_code)
    assert published is not None

    class ImagesOnly(published):  # type: ignore[valid-type, misc]
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            # Without torchvision, transformers has no class to check a video processor against.
            return None if argument_name == VIDEOS else super().check_argument_for_proper_class(argument_name, argument)

    parts = [
        UnusedVideoProcessor(get_video_processor_config(name))
        if part == VIDEOS
        else load_pretrained(LOADERS[part], name, part, trust_remote_code)
        for part in published.get_attributes()
    ]
    settings, options = published.get_processor_dict(name)
    processor = ImagesOnly.from_args_and_dict(parts, settings, **options)
    processor.__class__ = published  # the check is done; saving and pickling need the published class
    return processor


def _processor_class(name: str, trust_remote_code: bool) -> Any:
    """Return the class that the processor files name, else that of the model configuration, or None."""
    for read in (ProcessorMixin.get_processor_dict, ImageProcessingMixin.get_image_processor_dict):
        try:
            published = read(name)[0].get("processor_class")
        except OSError:
            continue
        if published is not None:
            return processor_class_from_name(published)
    return PROCESSOR_MAPPING.get(
        type(load_pretrained(AutoConfig, name, f"model_name_or_path={name!r}", trust_remote_code))
    )
