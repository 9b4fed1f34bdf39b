"""Settings, token ids of paired texts, and models by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from dair_hf.errors import DataError
from dair_hf.modeling import ModelConfig, load_text_classifier
from dair_hf.text.encoding import ClassifierEncoder, plain_text
from dair_hf.text.task import SCRATCH, TextConfig, classifier_tokenizer, encode_rows, load_rows
from dair_hf.word_tokenizer import build_word_tokenizer
from tests.fixtures import counterfactuals

SIZES = {"train": 6, "dev": 3, "test": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return counterfactuals.write(tmp_path_factory.mktemp("cad"), counterfactuals.files(SIZES))


def test_pretrained_models_need_a_name_and_others_refuse_it() -> None:
    named = ModelConfig(model_name_or_path="some/model")
    assert TextConfig("cad.zip", model_kind="pretrained").complete(named) is named
    for kind, model in (("pretrained", ModelConfig()), ("bilstm", named)):
        with pytest.raises(DataError, match="model_name_or_path"):
            TextConfig("cad.zip", model_kind=kind).complete(model)


def test_vocabulary_is_of_originals_and_revisions() -> None:
    rows = Dataset.from_dict(
        {
            "text": ["good film", "good film", "rare br"],
            "augmented_text": ["bad film", "<br />bad plot", None],
            "label": [1, 1, 0],
        }
    )

    def words(**settings: Any) -> set[str]:
        return set(classifier_tokenizer(rows, TextConfig("cad.zip", **settings), ModelConfig()).get_vocab())

    # "good" occurs twice, but in one text of two rows; "br" is a word, its tag is not.
    assert words(min_count=2) == {"<pad>", "<unk>", "film", "bad"}
    every = {"<pad>", "<unk>", "<s>", "</s>", "film", "bad", "good", "rare", "br", "plot"}
    assert words(min_count=1, model_kind="transformer") == every


@pytest.mark.parametrize("kind", SCRATCH)
@pytest.mark.parametrize(("task", "classes"), [("sentiment", 2), ("nli", 3)])
def test_models_from_scratch_read_the_encoded_rows(folder: Path, kind: str, task: str, classes: int) -> None:
    config = TextConfig(cad=str(folder), task=task, model_kind=kind, min_count=1)
    rows = load_rows(config)
    assert {split: len(part) for split, part in rows.items()} == {
        split: size * (4 if task == "nli" else 1) for split, size in SIZES.items()
    }
    model = config.complete(ModelConfig(model_settings={"num_attention_heads": 2} if kind == "transformer" else None))
    tokenizer = classifier_tokenizer(rows["train"], config, model)
    encoded = encode_rows(rows["dev"], tokenizer, config)
    network = load_text_classifier(model, tokenizer, config.labels, seed=1).eval()
    assert network.config.id2label == dict(enumerate(config.labels))
    features = [{name: row[name] for name in ("input_ids", "token_type_ids") if name in row} for row in encoded]
    logits = network(**tokenizer.pad(features, return_tensors="pt")).logits
    assert logits.shape == (len(encoded), classes)
    assert (tokenizer.cls_token is not None) == (kind == "transformer")
    if kind == "transformer":
        assert (network.config.max_position_embeddings, network.config.num_attention_heads) == (400, 2)
    else:
        assert network.config.segments == len(config.texts)


def test_rows_are_cut_at_the_limit_of_the_model(folder: Path) -> None:
    config = TextConfig(cad=str(folder), min_count=1)
    rows = load_rows(config)["train"]
    tokenizer = classifier_tokenizer(rows, config, ModelConfig())
    whole = encode_rows(rows, tokenizer, config)["input_ids"][:]
    assert max(map(len, whole)) > 3
    tokenizer.model_max_length = 3
    assert encode_rows(rows, tokenizer, config)["input_ids"][:] == [ids[:3] for ids in whole]


WORDS = "a b c d"  # ids 2 to 5


def encode(rows: dict[str, list[str | None]], *texts: str, limit: int = 9, delimiters: bool = False) -> Dataset:
    tokenizer = build_word_tokenizer([WORDS], min_count=1, delimiters=delimiters)
    return Dataset.from_dict(rows).map(ClassifierEncoder(tokenizer, texts, limit), batched=True)


def test_line_breaks_are_spaces_and_the_rest_is_kept() -> None:
    assert plain_text('<br /><br />"A"\x85 <br/> b<br />c') == '  "A"\x85 <br/> b c'


def test_both_views_of_one_text() -> None:
    rows = {"text": ["A<br />b.", "d", "..."], "augmented_text": ["a c", None, "zebra b"], "label": [0, 1, 0]}
    encoded = encode(rows, "text")
    assert encoded["input_ids"][:] == [[2, 3], [5], [1]]  # a text without words is one unknown word
    assert encoded["augmented_input_ids"][:] == [[2, 4], None, [1, 3]]
    assert set(encoded.column_names) == {*rows, "input_ids", "augmented_input_ids"}


def test_two_texts_have_types_and_lose_the_end_of_the_longer() -> None:
    rows = {"premise": ["a b c d", "a"], "hypothesis": ["b a", "b"]}
    rows |= {"augmented_premise": ["a", None], "augmented_hypothesis": ["", None]}
    encoded = encode(rows, "premise", "hypothesis", limit=5)
    assert encoded["input_ids"][:] == [[2, 3, 4, 3, 2], [2, 3]]
    assert encoded["token_type_ids"][:] == [[0, 0, 0, 1, 1], [0, 1]]
    assert encoded["augmented_input_ids"][:] == [[2], None]
    assert encoded["augmented_token_type_ids"][:] == [[0], None]
    delimited = encode(rows, "premise", "hypothesis", limit=5, delimiters=True)
    assert delimited["input_ids"][:] == [[2, 4, 3, 5, 3], [2, 4, 3, 5, 3]]
    assert delimited["token_type_ids"][:] == [[0, 0, 0, 1, 1]] * 2
