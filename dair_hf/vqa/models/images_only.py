"""Processors for images and text of models that also take videos, where nothing that handles videos is installed."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer
from transformers.image_processing_base import ImageProcessingMixin
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING, processor_class_from_name
from transformers.models.auto.video_processing_auto import get_video_processor_config
from transformers.processing_utils import ProcessorMixin
from transformers.utils import PushToHubMixin

VIDEOS = "video_processor"
LOADERS = {"image_processor": AutoImageProcessor, "tokenizer": AutoTokenizer}


class UnusedVideoProcessor(PushToHubMixin):
    """The settings of a video processor, kept to be stored with a processor, and read by it.

    Args:
        settings: As published.

    Example:
        >>> UnusedVideoProcessor({"fps": 1}).fps
        1
    """

    _auto_class = None
    model_input_names: tuple[str, ...] = ()

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "settings":  # what copying and unpickling ask for
            raise AttributeError(name)
        return self.settings.get(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse videos.

        Raises:
            ImportError: Always.
        """
        raise ImportError("videos need torchvision; install the one that belongs to your build of torch")

    def to_dict(self) -> dict[str, Any]:
        """The settings, as they were published."""
        return dict(self.settings)


def takes_videos(name: str, trust_remote_code: bool = False) -> bool:
    """Whether a published processor has a part for videos and otherwise an image processor and a tokenizer."""
    found = _processor_class(name, trust_remote_code)
    return found is not None and set(found.get_attributes()) == {*LOADERS, VIDEOS}


def images_only_processor(name: str, trust_remote_code: bool = False) -> Any:
    """The processor of a model that also takes videos, without its part for them.

    Since transformers 5 every image processor has a version that needs Pillow alone, but video processors need
    torchvision. The result is of the published class and treats images and text as it would with torchvision, but for
    the arithmetic of resizing.

    Args:
        name: A model for which `takes_videos` holds: name on the Hub or folder.
        trust_remote_code: As in `from_pretrained`.

    Returns:
        The processor; its `video_processor` is an `UnusedVideoProcessor`.

    Raises:
        ImportError: A package besides torchvision is missing.
    """
    published = _processor_class(name, trust_remote_code)
    assert published is not None

    class ImagesOnly(published):  # type: ignore[valid-type, misc]
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            # Without torchvision the library knows no class at all that a video processor could be of.
            return None if argument_name == VIDEOS else super().check_argument_for_proper_class(argument_name, argument)

    parts = [
        UnusedVideoProcessor(get_video_processor_config(name))
        if part == VIDEOS
        else LOADERS[part].from_pretrained(name, trust_remote_code=trust_remote_code)
        for part in published.get_attributes()
    ]
    settings, options = published.get_processor_dict(name)
    processor = ImagesOnly.from_args_and_dict(parts, settings, **options)
    processor.__class__ = published  # it is checked; what is stored and sent to worker processes is the published class
    return processor


def _processor_class(name: str, trust_remote_code: bool) -> Any:
    """The class that the files of a processor name, else that of the model's configuration; None: there is none."""
    for read in (ProcessorMixin.get_processor_dict, ImageProcessingMixin.get_image_processor_dict):
        try:
            published = read(name)[0].get("processor_class")
        except OSError:
            continue
        if published is not None:
            return processor_class_from_name(published)
    return PROCESSOR_MAPPING.get(type(AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)))
