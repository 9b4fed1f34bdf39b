"""Settings, models by name, and the independent units."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dair_hf.errors import DataError
from dair_hf.modeling import ModelConfig, load_text_classifier
from dair_hf.text.task import (
    MODEL_KINDS,
    TextConfig,
    encode_rows,
    load_rows,
    text_evaluator,
    tokenizer_for,
)
from tests.fixtures import counterfactuals

SIZES = {"train": 6, "dev": 3, "test": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return counterfactuals.write(tmp_path_factory.mktemp("cad"), counterfactuals.files(SIZES))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "qa"}, "task='qa' is unknown; use one of sentiment, nli"),
        ({"model_kind": "cnn"}, "model_kind='cnn' is unknown"),
        ({"task": "nli", "revisions": "all"}, "revisions='all' is unknown"),
        ({"revisions": "premise"}, "a review has one revision, leave it out"),
        ({"pair_share": 1.5}, r"pair_share=1.5 must be in \(0, 1\]"),
        ({"min_count": 0}, "min_count=0; it must be at least 1"),
        ({"max_tokens": 7}, "max_tokens=7; it must be at least 8"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        TextConfig(**settings)


def test_pretrained_models_need_a_name_and_others_refuse_it() -> None:
    named = ModelConfig(model_name_or_path="some/model")
    assert TextConfig(model_kind="pretrained").complete(named) is named
    for kind, model in (("pretrained", ModelConfig()), ("bilstm", named)):
        with pytest.raises(DataError, match=f"model_kind={kind} and model_name_or_path=.* cannot be combined"):
            TextConfig(model_kind=kind).complete(model)


def test_rows_need_files() -> None:
    with pytest.raises(DataError, match="cad is not set; give --cad"):
        load_rows(TextConfig())


@pytest.mark.parametrize("kind", [kind for kind in MODEL_KINDS if kind != "pretrained"])
@pytest.mark.parametrize(("task", "classes"), [("sentiment", 2), ("nli", 3)])
def test_models_from_scratch_read_the_encoded_rows(folder: Path, kind: str, task: str, classes: int) -> None:
    config = TextConfig(cad=str(folder), task=task, model_kind=kind, max_tokens=40, min_count=1)
    rows = load_rows(config)
    assert {split: len(part) for split, part in rows.items()} == {
        split: size * (4 if task == "nli" else 1) for split, size in SIZES.items()
    }
    model = config.complete(ModelConfig(model_settings={"num_attention_heads": 2} if kind == "transformer" else None))
    tokenizer = tokenizer_for(rows["train"], config, model)
    encoded = encode_rows(rows["dev"], tokenizer, config)
    network = load_text_classifier(model, tokenizer, config.labels, seed=1).eval()
    assert network.config.id2label == dict(enumerate(config.labels))
    features = [{name: row[name] for name in ("input_ids", "token_type_ids") if name in row} for row in encoded]
    logits = network(**tokenizer.pad(features, return_tensors="pt")).logits
    assert logits.shape == (len(encoded), classes)
    assert (tokenizer.cls_token is not None) == (kind == "transformer")
    if kind == "transformer":
        assert (network.config.max_position_embeddings, network.config.num_attention_heads) == (40, 2)
    else:
        assert network.config.segments == len(config.texts)


def test_an_original_is_one_unit_with_all_its_revisions() -> None:
    assert text_evaluator().cluster_column(["original_id", "dialogue_id"]) == "original_id"
