"""Checks before training, training pairs and test pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dair_hf import DAIRConfig, EpochPairs
from dair_hf.dialog.data import DialogConfig, load_dialogs, tokenizer_for
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.dialog.task import check_pairs, evaluation_pairs, is_correct, training_pairs
from dair_hf.errors import DataError


def checked(folder: Path, **settings: Any) -> Any:
    config = DialogConfig(train_dialogs=3, test_dialogs=3, **settings)
    dialogs = load_dialogs(config)
    tokenizer = tokenizer_for([dialogs.train], config)
    encoder = DialogEncoder(tokenizer, config.max_source_tokens, config.max_target_tokens, preset=config.preset)
    return check_pairs(dialogs, config, encoder, folder), dialogs, config, encoder


def test_sound_pairs_have_a_ceiling_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ceiling, dialogs, config, encoder = checked(tmp_path)
    rows = evaluation_pairs(dialogs, config)
    partners = sum(history is not None for history in rows["augmented_history"])
    assert [(view.rows, view.right) for view in ceiling.views.values()] == [(len(rows),) * 2, (partners,) * 2]
    assert ceiling.attainable.shape == (len(rows),)
    written = {name: json.loads((tmp_path / f"audit_{name}.json").read_text()) for name in ("train", "test")}
    assert written["test"]["ceiling"] == json.loads(json.dumps(ceiling.to_dict()))
    assert written["train"]["ceiling"]["original"]["right_share"] == 1.0
    assert "Audit of the test pairs" in capsys.readouterr().out
    for method, kind in (("erm", type(dialogs.train)), ("dair", EpochPairs)):
        args = DAIRConfig(str(tmp_path), method=method, use_cpu=True)
        assert isinstance(training_pairs(dialogs.train, encoder, config, args), kind)


def test_targets_that_score_as_wrong_are_refused_unless_allowed(tmp_path: Path) -> None:
    # The audit is printed and written before the error.
    with pytest.raises(DataError, match=r"ceiling: only \d+ of \d+ in the original view .* raise max_target_tokens"):
        checked(tmp_path, max_target_tokens=12)
    assert json.loads((tmp_path / "audit_test.json").read_text())["ceiling"]["original"]["right_share"] < 1
    ceiling, *_ = checked(tmp_path, max_target_tokens=12, allow_low_ceiling=True)
    assert not ceiling.attainable.all()


def test_is_correct() -> None:
    references = [[{"slot": "hotel-name", "values": ["Acorn", "acorn house"]}]] * 3
    answers = ["hotel-name = Acorn", "hotel-name = acorn | acorn house", ""]
    assert is_correct(answers, references).tolist() == [True, False, False]
    assert is_correct(answers, references, preset="parlai_v22").tolist() == [False, True, False]
