"""Checks before training, training pairs and test pairs."""

from __future__ import annotations

import copy
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from dair_hf import DAIRConfig, EpochPairs
from dair_hf.dialog.config import DialogConfig
from dair_hf.dialog.data import DialogData, load_dialogs
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.dialog.readers.sgd import read_sgd
from dair_hf.dialog.renaming.entities import EntityAugmenter
from dair_hf.dialog.task import (
    base_pairs,
    base_settings,
    check_pairs,
    evaluation_pairs,
    state_evaluator,
    training_pairs,
)
from dair_hf.dialog.tokenizer import tokenizer_for
from dair_hf.errors import DataError
from dair_hf.metrics.state.belief_text import parse
from dair_hf.metrics.state.joint_goal import joint_goal_accuracy
from tests.fixtures.dialogs import write_sgd


def made(**settings: Any) -> tuple[DialogData, DialogConfig, DialogEncoder]:
    config = DialogConfig(**{"train_dialogs": 3, "test_dialogs": 3, **settings})
    dialogs = load_dialogs(config)
    limits = config.max_source_tokens, config.max_target_tokens
    return dialogs, config, DialogEncoder(tokenizer_for([dialogs.train], config), *limits, preset=config.preset)


def arguments(folder: Path | str, method: str = "dair", **settings: Any) -> DAIRConfig:
    return DAIRConfig(str(folder), method=method, use_cpu=True, **settings)


def test_sound_pairs_have_a_ceiling_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dialogs, config, encoder = made()
    ceiling = check_pairs(dialogs, config, encoder, tmp_path)
    rows = evaluation_pairs(dialogs, config)
    partners = sum(history is not None for history in rows["augmented_history"])
    assert [(view.rows, view.right) for view in ceiling.views.values()] == [(len(rows),) * 2, (partners,) * 2]
    assert ceiling.attainable.shape == (len(rows),)
    written = {name: json.loads((tmp_path / f"audit_{name}.json").read_text()) for name in ("train", "test")}
    assert written["test"]["ceiling"] == json.loads(json.dumps(ceiling.to_dict()))
    assert written["train"]["ceiling"]["original"]["right_share"] == 1.0
    assert "Audit of the test pairs" in capsys.readouterr().out
    for method, kind in (("erm", type(dialogs.train)), ("dair", EpochPairs)):
        assert isinstance(training_pairs(dialogs.train, encoder, config, arguments(tmp_path, method)), kind)


def test_each_epoch_tokenizes_the_partners_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dialogs, config, encoder = made(train_dialogs=8)
    seen: list[int] = []
    tokens = DialogEncoder._tokens

    def count(self: DialogEncoder, sources: list[str], targets: list[str]) -> Any:
        seen.append(len(sources))
        return tokens(self, sources, targets)

    monkeypatch.setattr(DialogEncoder, "_tokens", count)
    pairs = training_pairs(dialogs.train, encoder, config, arguments(tmp_path))
    for epoch in (0, 1):
        if epoch:
            seen.clear()
            pairs.set_epoch(epoch)
        partners = [history is not None for history in pairs.pairs["augmented_history"]]
        assert 0 < sum(partners) < len(dialogs.train)
        assert sum(seen) == sum(partners) + (len(dialogs.train) if epoch == 0 else 0)
        assert [ids is not None for ids in pairs.pairs["augmented_input_ids"]] == partners
    # The columns are those of encoding both views at once.
    whole = encoder(pairs.pairs[:])
    assert {name: pairs.pairs[name][:] for name in whole} == whole


def test_partners_that_are_not_redrawn_are_drawn_once(tmp_path: Path) -> None:
    dialogs, config, encoder = made()
    args = arguments(tmp_path)
    redrawn = training_pairs(dialogs.train, encoder, config, args)
    fixed = training_pairs(dialogs.train, encoder, replace(config, redraw_partners=False), args)
    assert isinstance(fixed, type(dialogs.train))
    assert fixed["augmented_input_ids"][:] == redrawn.at(0)["augmented_input_ids"][:]
    assert fixed["augmented_input_ids"][:] != redrawn.at(1)["augmented_input_ids"][:]


def test_base_with_scrambled_names_of_any_slot(tmp_path: Path) -> None:
    """The slots of SGD are not those of the experiment, and yet its names are scrambled."""
    write_sgd(tmp_path)
    rows = read_sgd(tmp_path, "train")[0]
    config = DialogConfig()
    encoder = DialogEncoder(tokenizer_for([rows], config), causal=True)
    plain = base_pairs(rows, encoder, config, arguments(tmp_path, "erm"))
    assert plain.column_names == [*rows.column_names, "input_ids", "attention_mask", "labels"]
    pairs = base_pairs(rows, encoder, config, arguments(tmp_path, "da"))
    assert pairs["input_ids"][:] == plain["input_ids"][:]
    for row in pairs:
        name, new = row["state"][0]["values"][0], row["augmented_state"][0]["values"][0]
        assert name != new and sorted(name.lower().replace(" ", "")) == sorted(new.lower().replace(" ", ""))
        text = encoder.tokenizer.decode(row["augmented_input_ids"])
        assert new.lower() in text and name.lower() not in text


# Field of `DialogConfig` -> another value.
OTHER_SETTINGS: dict[str, Any] = {
    "source": "multiwoz", "data_dir": "elsewhere", "sgd_dir": "elsewhere", "demo_domains": ["hotel"], "demo_names": 60,
    "demo_areas": True, "demo_annotation_errors": 0.5, "train_split": "val", "test_split": "val", "train_dialogs": 3,
    "test_dialogs": 3, "evaluate_on": "validation", "gold_states": True,
    "covariant_only": False, "previous_state": True, "redraw_partners": False, "pair_share": 0.5, "preset": "trade",
    "allow_low_ceiling": True, "lower_case": True, "max_source_tokens": 9,
    "max_target_tokens": 9, "pretrain": {"max_steps": 3},
}  # fmt: skip
MODEL_COLUMNS = [f"{view}{name}" for view in ("", "augmented_") for name in ("input_ids", "labels")]


@pytest.mark.parametrize("method", ["erm", "da"])
def test_settings_of_a_base_are_those_that_change_its_rows(tmp_path: Path, method: str) -> None:
    """The rows themselves are the oracle, except for `preset`, which changes targets of some states only."""
    rows = read_sgd(write_sgd(tmp_path), "train")[0]
    tokenizer = tokenizer_for([rows], DialogConfig())

    def found(config: DialogConfig) -> tuple[Any, Any]:
        limits = config.max_source_tokens, config.max_target_tokens
        encoder = DialogEncoder(tokenizer, *limits, preset=config.preset, lower_case=config.lower_case)
        pairs = base_pairs(rows, encoder, config, arguments(tmp_path, method))
        columns = [pairs[name][:] for name in MODEL_COLUMNS if name in pairs.features]
        return base_settings(rows, encoder, config, arguments(tmp_path, method)), columns

    config = DialogConfig()
    settings, pairs = found(config)
    assert len(pairs) == (2 if method == "erm" else 4)
    for name in (field.name for field in fields(DialogConfig)):
        other = copy.copy(config)
        assert getattr(other, name) != OTHER_SETTINGS[name]
        setattr(other, name, OTHER_SETTINGS[name])  # unchecked: also settings that are refused together
        other_settings, other_pairs = found(other)
        assert pairs == other_pairs or settings != other_settings, name
        if name not in ("preset", "covariant_only", "lower_case"):
            assert (settings == other_settings) == (pairs == other_pairs), name


def test_settings_of_a_base_follow_the_content_of_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = read_sgd(write_sgd(tmp_path / "one"), "train")[0]
    encoder, config = DialogEncoder(tokenizer_for([rows], DialogConfig())), DialogConfig()

    def settings(dialogs: Any, seed: int = 0, method: str = "da") -> Any:
        return base_settings(dialogs, encoder, config, arguments("out", method, seed=seed))

    assert settings(read_sgd(write_sgd(tmp_path / "other"), "train")[0]) == settings(rows)
    assert settings(read_sgd(tmp_path / "other", "dev")[0]) != settings(rows)
    assert settings(rows, seed=1) != settings(rows)
    before = settings(rows)
    monkeypatch.setattr(EntityAugmenter, "revision", EntityAugmenter.revision + 1)
    assert settings(rows) != before
    assert settings(rows, seed=1, method="erm") == settings(rows, method="erm") != settings(rows)


def test_targets_that_score_as_wrong_are_refused_unless_allowed(tmp_path: Path) -> None:
    dialogs, config, encoder = made(max_target_tokens=12)
    # The audit is printed and written before the error.
    with pytest.raises(DataError, match=r"ceiling: only \d+ of \d+ in the original view .* raise max_target_tokens"):
        check_pairs(dialogs, config, encoder, tmp_path)
    assert json.loads((tmp_path / "audit_test.json").read_text())["ceiling"]["original"]["right_share"] < 1
    ceiling = check_pairs(dialogs, replace(config, allow_low_ceiling=True), encoder, tmp_path)
    assert not ceiling.attainable.all()


# Four rows; the third has no partner. Answers and references of both views, and the dialogues.
ANSWERS = ["hotel-name = oak inn", "", "train-day = monday", "hotel-name = inn oak"]
AUGMENTED = ["hotel-name = fig", "hotel-name = fir", None, ""]
GOLD = ["oak inn", "", "monday", "oak inn"]
AUGMENTED_GOLD = ["fir", "fir", None, "elm"]
DIALOGUES = ["A", "A", "B", "C"]


def column(value: str | None) -> Any:
    if value is None:
        return None
    slot = "train-day" if value == "monday" else "hotel-name"
    return [{"slot": slot, "values": [value]}] if value else []


@pytest.mark.parametrize("preset", ["any_of", "parlai_v22", "dair_released", "sgd_fuzzy", "mwzeval"])
def test_the_accuracy_of_a_preset_is_that_of_the_metric(preset: str) -> None:
    metrics = state_evaluator(preset)(
        ANSWERS, AUGMENTED, [*map(column, GOLD)], [*map(column, AUGMENTED_GOLD)],
        clusters=DIALOGUES, subsets={"known": [True, True, True, False]},
    )  # fmt: skip
    views = {
        "original": (ANSWERS, GOLD),
        # The row without a partner counts with its original.
        "augmented": ([AUGMENTED[0], AUGMENTED[1], ANSWERS[2], AUGMENTED[3]], ["fir", "fir", "monday", "elm"]),
    }
    for view, (answers, gold) in views.items():
        for prefix, rows in (("", range(4)), ("known_", (0, 1, 2))):
            expected = joint_goal_accuracy(
                [{"row_id": f"{DIALOGUES[row]}/{row}", "state": parse(answers[row] or "")} for row in rows],
                [{"row_id": f"{DIALOGUES[row]}/{row}", "state": column(gold[row])} for row in rows],
                preset=preset,
            )
            for end in ("", "_low", "_high"):
                found = metrics[f"{prefix}{view}_{state_evaluator(preset).accuracy_key}{end}"]
                right = expected[f"joint_goal_accuracy{end}"]
                assert found == pytest.approx(right, nan_ok=True), (view, prefix, end)


def test_figures_of_pairs_decide_for_every_row() -> None:
    found = {
        preset: state_evaluator(preset)(ANSWERS, AUGMENTED, [*map(column, GOLD)], [*map(column, AUGMENTED_GOLD)])
        for preset in ("any_of", "parlai_v22", "sgd_fuzzy")
    }
    # Right by rows: 0, 1, 2 of the originals (1 has an empty state), and "inn oak" if the order does not matter.
    assert {preset: metrics["original_joint_goal_accuracy"] for preset, metrics in found.items()} == {
        "any_of": 0.75, "parlai_v22": 0.75, "sgd_fuzzy": 1.0,
    }  # fmt: skip
    # The preset skips row 1, whose answer is empty.
    assert found["parlai_v22"]["original_preset_joint_goal_accuracy"] == pytest.approx(2 / 3)
    # "fig" and "fir" share two of three letters: (0.67 + 1 + 1 + 0) / 4.
    assert found["sgd_fuzzy"]["augmented_preset_joint_goal_accuracy"] == pytest.approx(2.67 / 4)
    assert found["sgd_fuzzy"]["augmented_joint_goal_accuracy"] == 0.5
    assert not [key for key in found["any_of"] if "preset" in key]
    assert state_evaluator("dair_released").preset == "dair_released(consistency_slots=all, empty_answer=score)"


def test_dialogues_keep_their_partners_in_every_epoch_or_in_none(tmp_path: Path) -> None:
    dialogs, config, encoder = made(train_dialogs=10, pair_share=0.3)
    pairs, of_seed = (training_pairs(dialogs.train, encoder, config, arguments(tmp_path, seed=s)) for s in (42, 7))
    kept = []
    for drawn, epoch in ((pairs, 0), (pairs, 1), (of_seed, 0)):
        drawn.set_epoch(epoch)
        rows = drawn.pairs
        assert [ids is None for ids in rows["augmented_labels"]] == [h is None for h in rows["augmented_history"]]
        kept.append({row["dialogue_id"] for row in rows if row["augmented_history"] is not None})
    assert [len(dialogues) for dialogues in kept] == [3, 3, 3] and kept[0] == kept[1] != kept[2]
