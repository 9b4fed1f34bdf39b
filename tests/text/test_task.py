"""Settings, few partners, and correctness in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dair_hf.errors import DataError
from dair_hf.evaluation.answers import same_classes
from dair_hf.evaluation.evaluator import PairEvaluator, TwoWayEvaluator
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


def test_the_other_direction_is_that_of_swapped_views() -> None:
    generator = np.random.default_rng(0)
    answers, references = generator.integers(0, 2, (2, 2, 60))
    clusters = [str(row // 3) for row in range(60)]
    long = np.arange(60) % 2 == 0
    options: dict[str, Any] = {"clusters": clusters, "subsets": {"long": long}, "n_bootstrap": 50}
    found = TwoWayEvaluator(same_classes)(*map(list, (*answers, *references)), **options)
    forth = PairEvaluator(same_classes)(*map(list, (*answers, *references)), **options)
    back = PairEvaluator(same_classes)(*map(list, (*answers[::-1], *references[::-1])), **options)
    assert {key: found[key] for key in forth} == forth
    for prefix in ("", "long_"):
        for key in ("cm", "cm_numerator", "cm_denominator"):
            assert found[f"{prefix}reverse_{key}"] == back[prefix + key]
        mean = (found[f"{prefix}original_accuracy"] + found[f"{prefix}augmented_accuracy"]) / 2
        assert found[f"{prefix}both_views_accuracy"] == pytest.approx(mean, abs=1e-12)
        assert found[f"{prefix}reverse_cm_low"] <= found[f"{prefix}reverse_cm"] <= found[f"{prefix}reverse_cm_high"]
    assert found["reverse_cm"] != found["cm"]
    added = {"reverse_cm", "both_views_accuracy"}
    expected = {f"{prefix}{key}{end}" for prefix in ("", "long_") for key in added for end in ("", "_low", "_high")}
    expected |= {f"{prefix}reverse_cm_{end}" for prefix in ("", "long_") for end in ("numerator", "denominator")}
    assert set(found) - set(forth) == expected


def test_rows_without_a_partner_are_left_out_of_both_directions() -> None:
    found = TwoWayEvaluator(same_classes)([1, 0, 1], [1, 1, None], [1, 1, 1], [1, 1, None], n_bootstrap=0)
    assert (found["reverse_cm_numerator"], found["reverse_cm_denominator"], found["pairs"]) == (1, 2, 2)
    assert (found["reverse_cm"], found["both_views_accuracy"]) == (0.5, 0.75)


def test_every_partner_is_a_pair_in_both_directions() -> None:
    answers = {1: [1, 1, None], 2: [0, 1, 1]}
    found = TwoWayEvaluator(same_classes)([1, 0, 1], answers, [1, 1, 1], {1: [1, 1, None], 2: [1] * 3}, n_bootstrap=0)
    # Row 0: right, and right and wrong; row 1: wrong, and right twice; row 2: right, and right in its second partner.
    assert (found["cm_numerator"], found["cm_denominator"]) == (2, 3)
    assert (found["reverse_cm_numerator"], found["reverse_cm_denominator"]) == (2, 4)
    assert found["both_views_accuracy"] == (1.0 + 0.5 + 0.5 + 0.5 + 1.0) / 5


def test_a_subset_may_not_be_called_reverse() -> None:
    with pytest.raises(DataError, match="'reverse' adds the metric 'reverse_cm'"):
        TwoWayEvaluator(same_classes)([1], [1], [1], [1], subsets={"reverse": [True]}, n_bootstrap=0)


def test_an_original_is_resampled_with_all_its_revisions() -> None:
    assert text_evaluator().cluster_column(["original_id", "dialogue_id"]) == "original_id"
