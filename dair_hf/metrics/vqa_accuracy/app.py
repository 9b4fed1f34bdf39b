"""Page of this metric as a Space on the Hub."""

from pathlib import Path

import evaluate
from evaluate.utils import launch_gradio_widget

if __name__ == "__main__":
    launch_gradio_widget(evaluate.load(str(Path(__file__).with_name("vqa_accuracy.py"))))
