"""Data of an experiment: generated or read, and the tokenizer of the training rows."""

from __future__ import annotations

from typing import Any

import pytest
from datasets import Dataset, concatenate_datasets

from dair_hf import DAIRConfig
from dair_hf.dialog.config import DialogConfig
from dair_hf.dialog.data import _first_dialogs, _held_out, _warn_of_shared_dialogs, load_dialogs
from dair_hf.dialog.demo.dialogs import generate_dialogs
from dair_hf.dialog.demo.names import make_names
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.dialog.rows import FEATURES
from dair_hf.dialog.task import evaluation_pairs, training_pairs
from dair_hf.dialog.tokenizer import tokenizer_for
from dair_hf.errors import DataError
from tests.fixtures.dialogs import KNOWN, SERVICES, UNSEEN, dialog_row, require_sound_rows, write_multiwoz21, write_sgd


def forms(rows: Any) -> set[str]:
    return {form.lower() for row in rows for entry in row["names"] for form in entry["forms"]}


def test_demo_rows_have_no_unseen_name() -> None:
    data = load_dialogs(DialogConfig(train_dialogs=8, test_dialogs=5))
    assert (data.name, data.pretrain) == ("generated dialogues", None)
    assert len(set(data.train["dialogue_id"])) == 8
    assert len(set(data.test["dialogue_id"])) == 5
    assert not set(data.train["row_id"]) & set(data.test["row_id"])
    unseen = {name for names in data.unseen_names.values() for name in names}
    known = {name for names in make_names("train").values() for name in names}
    assert unseen
    assert not unseen & known
    assert forms(data.train) | forms(data.test) <= known
    again = load_dialogs(DialogConfig(train_dialogs=8, test_dialogs=5))
    assert again.test._fingerprint == data.test._fingerprint


def test_validation_names_share_nothing_with_the_test() -> None:
    test, validation = (
        load_dialogs(DialogConfig(train_dialogs=4, test_dialogs=4, evaluate_on=s)) for s in ("test", "validation")
    )
    names = [{n for found in data.unseen_names.values() for n in found} for data in (test, validation)]
    assert names[0]
    assert not names[0] & names[1]
    assert not names[1] & {n for found in make_names("train").values() for n in found}
    assert test.train.to_list() == validation.train.to_list()
    assert test.test["history"][:] != validation.test["history"][:]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("public")
    return {
        "data_dir": str(write_multiwoz21(folder / "multiwoz21")),
        "sgd_dir": str(write_sgd(folder / "sgd")),
    }


def multiwoz(folders: dict[str, str], **settings: Any) -> DialogConfig:
    return DialogConfig(source="multiwoz", train_split="val", **folders, **settings)


def test_multiwoz_rows_and_names(folders: dict[str, str]) -> None:
    data = load_dialogs(multiwoz(folders, train_dialogs=4))
    assert data.name == "MultiWOZ test"
    assert data.pretrain is None
    assert len(data.train) == 8
    assert len(data.test) == 12
    assert data.train["row_id"][:3] == ["VAL0000/0", "VAL0000/1", "VAL0001/0"]
    assert forms(data.test) == set(KNOWN)
    names = {kind: set(found) for kind, found in data.unseen_names.items()}
    assert names == {
        "hotel": set(UNSEEN),
        "restaurant": set(SERVICES["test"][1][2]),
        "attraction": set(SERVICES["test"][2][2]),
        "place": set(),
    }


@pytest.mark.parametrize("evaluate_on", ["test", "validation"])
def test_sgd_as_source_renames_what_its_services_name(folders: dict[str, str], evaluate_on: str) -> None:
    config = DialogConfig(source="sgd", data_dir=folders["sgd_dir"], evaluate_on=evaluate_on)  # type: ignore[arg-type]
    dialogs = load_dialogs(config)
    split = {"test": "test", "validation": "dev"}[evaluate_on]
    assert dialogs.name == f"SGD {split}"
    unseen = {service: {name.lower() for name in names} for service, _, names in SERVICES[split]}
    for row in evaluation_pairs(dialogs, config):
        ((before,), (after,)) = (entry["values"] for view in ("state", "augmented_state") for entry in row[view])
        service = row["state"][0]["slot"].partition("-")[0].capitalize()
        assert after.lower() in unseen[service] - {before.lower()}
        assert after in row["augmented_history"][0]["text"]
    encoder = DialogEncoder(tokenizer_for([dialogs.train], config))
    pairs = training_pairs(dialogs.train, encoder, config, DAIRConfig("unused", method="dair", use_cpu=True))
    assert None not in pairs.pairs["augmented_state"]  # type: ignore[union-attr]


def test_test_dialogues_that_are_training_dialogues_are_counted(
    folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("dair_hf.dialog.data.logger.warning", said.append)
    demo = load_dialogs(DialogConfig(train_dialogs=8, test_dialogs=5))
    _warn_of_shared_dialogs(demo.train, demo.test)
    assert said == []
    copied = _first_dialogs(demo.train, 2).map(lambda row: {"dialogue_id": f"copy of {row['dialogue_id']}"})
    _warn_of_shared_dialogs(demo.train, concatenate_datasets([demo.test, copied]))
    first = demo.train["dialogue_id"][0]
    assert said == [
        f"2 of 7 test dialogues are also training dialogues, such as 'copy of {first}': their results are not those of "
        "new dialogues; check the splits of the data"
    ]
    said.clear()
    load_dialogs(multiwoz(folders, train_dialogs=2))  # the fixture has the same dialogues in both splits
    assert len(said) == 1 and " of 6 test dialogues are also training dialogues" in said[0]


def test_validation_holds_dialogues_out_and_takes_other_names(folders: dict[str, str]) -> None:
    data = load_dialogs(multiwoz(folders, evaluate_on="validation"))
    assert data.name == "MultiWOZ val, last tenth"
    assert list(dict.fromkeys(data.train["dialogue_id"])) == [f"VAL{index:04d}" for index in range(5)]
    assert data.test["row_id"][:] == ["VAL0005/0", "VAL0005/1"]
    assert set(data.unseen_names["hotel"]) == set(SERVICES["dev"][0][2])


def test_rows_for_pretraining_are_from_the_training_split(folders: dict[str, str]) -> None:
    data = load_dialogs(multiwoz(folders, pretrain={"max_steps": 1}))
    assert data.pretrain is not None
    require_sound_rows(data.pretrain)
    spoken = " ".join(turn["text"] for row in data.pretrain for turn in row["history"])
    assert "Aspen Lodge" in spoken
    assert not any(name in spoken for name in UNSEEN)


def named_rows(sentences: list[str], name: str) -> Dataset:
    """One dialogue a sentence, each with one mention of `name`."""
    table = []
    for index, text in enumerate(sentences):
        names, mentions = ([("hotel-name", name, [name])], [(0, name, name)]) if name in text else ([], [])
        table.append(dialog_row([text], {}, names, mentions, f"D{index}"))
    return Dataset.from_list(table, features=FEATURES)


def test_a_word_of_a_name_is_one_token_if_it_is_frequent_in_sentences() -> None:
    # "house" occurs 20 times outside names and 20 times inside, "lodge" 19 times outside.
    rows = named_rows(
        ["is oak house free"] * 20 + ["any house there"] * 20 + ["any lodge there"] * 19 + ["the oak lodge"] * 2,
        "oak house",
    )
    tokenizer = tokenizer_for([rows], DialogConfig(max_source_tokens=77))
    assert tokenizer.model_max_length == 77
    assert tokenizer.tokenize("any house") == ["▁any", "▁house"]
    assert tokenizer.tokenize("any oak") == ["▁any", "▁o", "a", "k"]
    fewer = tokenizer_for([rows.select(range(39))], DialogConfig())
    assert fewer.tokenize("any house") == ["▁any", "▁h", "o", "u", "s", "e"]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"source": "multiwoz"}, ["source", "--data_dir", "--sgd_dir"]),
        ({"source": "multiwoz", "data_dir": "x"}, ["--sgd_dir"]),
        ({"source": "woz2"}, ["--data_dir"]),
        ({"source": "woz2", "data_dir": "x", "pretrain": {"max_steps": 1}}, ["--sgd_dir"]),
        # Settings that the source would ignore.
        ({"data_dir": "x", "sgd_dir": "y"}, ["data_dir", "sgd_dir"]),
        ({"pretrain": {"max_steps": 3}}, ["pretrain"]),
        ({"source": "woz2", "data_dir": "x", "demo_areas": True}, ["demo_areas"]),
        ({"source": "woz2", "data_dir": "x", "demo_names": 15, "demo_domains": ["hotel"]},
         ["demo_domains", "demo_names"]),
        ({"preset": "best"}, ["preset"]),
    ],
)  # fmt: skip
def test_refused_settings(settings: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(DataError) as refused:
        DialogConfig(**settings)
    assert all(name in str(refused.value) for name in names)


@pytest.mark.parametrize(("train", "test"), [("test", "test"), ("val", "dev"), ("all", "all")])
def test_training_on_the_test_split_is_refused(folders: dict[str, str], train: str, test: str) -> None:
    settings = {"source": "multiwoz", **folders, "train_split": train, "test_split": test}
    with pytest.raises(DataError, match=f"train_split='{train}' and '{test}'"):
        DialogConfig(**settings)
    # Validation holds dialogues out, and generated dialogues have no such splits.
    DialogConfig(**settings, evaluate_on="validation")
    DialogConfig(train_split=train, test_split=test)


def test_misleading_names_in_the_test_only() -> None:
    config = DialogConfig(
        train_dialogs=40, test_dialogs=40, demo_domains=["restaurant"], demo_names=15, demo_areas=True,
        demo_annotation_errors=0.3,
    )  # fmt: skip
    dialogs = load_dialogs(config)
    assert "augmented_2_state" not in dialogs.train.column_names
    asked: dict[str, list[bool]] = {"train": [], "test": []}
    for split, rows in (("train", dialogs.train), ("test", dialogs.test)):
        for row in rows:
            state = {entry["slot"]: entry["values"][0] for entry in row["state"]}
            assert {slot.split("-")[0] for slot in state} <= {"restaurant", "taxi"}
            if "restaurant-area" in state:
                texts = " ".join(turn["text"] for turn in row["history"])
                asked[split].append(f" in the {state['restaurant-area']} " in texts)
    assert all(asked["test"]) and 0.5 < sum(asked["train"]) / len(asked["train"]) < 0.9
    misleading = [row for row in dialogs.test if row["augmented_2_state"] is not None]
    assert 10 < len(misleading) < len(dialogs.test)
    pairs = evaluation_pairs(dialogs, config)
    encoded = pairs.map(DialogEncoder(tokenizer_for([dialogs.train], config)), batched=True)
    for row in encoded:
        assert (row["augmented_2_input_ids"] is None) == (row["augmented_2_history"] is None)
        if row["augmented_2_labels"] is not None:
            assert row["augmented_2_labels"] != row["labels"]


def test_the_least_settings_of_generated_dialogues_suffice() -> None:
    for settings in ({"demo_names": 4}, {"demo_names": 15, "demo_areas": True}):
        load_dialogs(DialogConfig(train_dialogs=60, test_dialogs=20, **settings))  # type: ignore[arg-type]


def test_held_out_is_a_tenth_of_the_dialogues() -> None:
    rows = generate_dialogs(30, names=make_names("train"), seed=0)
    kept, rest = _held_out(rows)
    assert len(set(kept["dialogue_id"])) == 27
    assert kept["row_id"][:] + rest["row_id"][:] == rows["row_id"][:]
    assert not set(kept["dialogue_id"]) & set(rest["dialogue_id"])


def test_first_dialogs_returns_whole_dialogues_in_any_order_of_rows() -> None:
    rows = generate_dialogs(4, names=make_names("train"), seed=0)
    order = list(range(0, len(rows), 2)) + list(range(1, len(rows), 2))
    mixed = rows.select(order)
    kept = _first_dialogs(mixed, 2)
    wanted = set(list(dict.fromkeys(mixed["dialogue_id"]))[:2])
    assert sorted(kept["row_id"]) == sorted(row["row_id"] for row in rows if row["dialogue_id"] in wanted)
    assert _first_dialogs(rows, 99)["row_id"] == rows["row_id"]
    assert _first_dialogs(rows, None) is rows
