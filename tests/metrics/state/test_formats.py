"""Files of predictions in the layouts of their evaluators, with the figures that these give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dair_hf.metrics.command_line import jga
from dair_hf.metrics.state.conventions import FORMAT_PRESETS
from dair_hf.metrics.state.joint_goal import joint_goal_accuracy

Json = dict[str, Any]

# Turns right, missing a value, with a wrong one, and with a slot that gold has only in the last turn.
GOLD = [
    {"hotel-area": "east", "hotel-bookday": "monday"},
    {"hotel-area": "east", "train-leaveat": "10:00"},
    {"hotel-name": "alpha-milton guest house"},
    {"hotel-area": "east", "hotel-stars": "4"},
]
PREDICTED = [
    {"hotel-area": "east", "hotel-bookday": "monday"},
    {"hotel-area": "east"},
    {"hotel-name": "worth house"},
    {"hotel-area": "east", "hotel-stars": "4"},
]


def trade(state: Json) -> list[str]:
    return [f"{slot.replace('-book', '-book ')}-{value}" for slot, value in state.items()]


def spaced(state: Json) -> list[str]:
    return [f"{slot.replace('-book', ' book ').replace('-', ' ')} {value}" for slot, value in state.items()]


def bspn(state: Json) -> str:
    text, domain = "<sos_b>", ""
    for slot, value in state.items():
        head, name = slot.replace("book", "").replace("leaveat", "leave").split("-")
        text += f" [{head}] {name} {value}" if head != domain else f" {name} {value}"
        domain = head
    return f"{text} <eos_b>"


def nested(state: Json) -> Json:
    found: Json = {"hotel": {"type": ""}}
    for slot, value in state.items():
        domain, name = slot.split("-")
        found.setdefault(domain, {})[name.replace("book", "book ").replace("leaveat", "leave at")] = value
    return found


def frames(state: Json) -> list[Json]:
    slots = {domain: {s: [v] for s, v in state.items() if s.startswith(domain)} for domain in ("hotel", "train")}
    return [{"service": domain, "state": {"slot_values": values}, "slots": []} for domain, values in slots.items()]


def t5(state: Json) -> str:
    inner = ((d, ",".join(f"[{s}][{v}]" for s, v in slots.items() if v)) for d, slots in nested(state).items())
    return ";".join(f"[{domain}]({text})" for domain, text in inner if text)


PAIRS = list(zip(PREDICTED, GOLD, strict=True))
DIALOGUES = {
    "trade": {
        "MUL0001.json": {n: {"turn_belief": trade(g), "pred_bs_ptr": trade(p)} for n, (p, g) in enumerate(PAIRS)}
    },
    "simpletod": {
        "MUL0001.json": {
            "generated_turn_belief": [[*spaced(p), "hotel type none"] for p in PREDICTED],
            "target_turn_belief": [spaced(g) for g in GOLD],
            "model_context": [""] * 4,
        }
    },
    "ubar": {"mul0001": {n: {"bspn": bspn(g), "bspn_gen": bspn(p)} for n, (p, g) in enumerate(PAIRS)}},
    "convlab": [{"utt_idx": 0, "state": nested(g), "predictions": {"state": nested(p)}} for p, g in PAIRS],
}
WORLD_LOG = [
    {
        "dialog": [
            [{"id": "task", "eval_labels": [", ".join(spaced(g))]}, {"id": "model", "text": ", ".join(spaced(p)) + ","}]
        ]
    }
    for p, g in PAIRS
]


def score(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str, str]:
    """Preset, joint goal accuracy and slot accuracy as printed, without intervals."""
    assert jga(list(arguments)) == 0
    cells = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    return cells["preset"][1], cells["joint_goal_accuracy"][-1], cells["slot_accuracy"][-1]


@pytest.mark.parametrize("name", DIALOGUES)
def test_files_with_gold_states(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (tmp_path / "file.json").write_text(json.dumps(DIALOGUES[name], indent=1 if name == "trade" else None))
    preset, accuracy, slots = score(capsys, "--format", name, "--predictions", str(tmp_path / "file.json"))
    assert (preset, accuracy) == (FORMAT_PRESETS[name], "2/4")
    # One wrong slot in each of two turns: 4 - 2/30 or 4 - 2/31 in 4.
    assert slots == ("3.933333333/4" if name == "trade" else "3.935483871/4")


def test_world_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "world_log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in WORLD_LOG))
    assert score(capsys, "--format", "parlai", "--predictions", str(log))[:2] == ("checkdst", "2/4")


def test_predictions_of_multiwoz_evaluation_against_files_of_22(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As to its evaluator, "people" is not "bookpeople", "leave" is "leaveat", and names need not be equal."""
    gold, made = tmp_path / "dialogues_001.json", tmp_path / "ubar.json"
    turns = [{"speaker": "USER", "frames": frames(state)} for state in GOLD]
    silent = {"speaker": "SYSTEM", "frames": []}
    gold.write_text(json.dumps([{"dialogue_id": "MUL0001.json", "turns": [t for u in turns for t in (u, silent)]}]))
    states = [{"hotel": {"area": "east", "day": "monday"}}, {"hotel": {"area": "east"}, "train": {"leave": "10:00"}},
              {"hotel": {"name": "the alpha-milton guest house"}}, {"hotel": {"area": "east"}}]  # fmt: skip
    made.write_text(json.dumps({"mul0001": [{"response": "", "state": state} for state in states]}))
    options = ["--format", "mwz22", "--predictions", str(made)]
    assert jga(options) == 2 and "references" in capsys.readouterr().err
    assert jga([*options, "--references", str(gold)]) == 0
    assert " 2/4" in capsys.readouterr().out.splitlines()[1]


# Form of one item -> a format that reads it.
STATE = {"hotel-area": "east", "hotel-name": "warkworth house", "train-leaveat": "10:00"}
FENCED = f"```json\n{json.dumps(STATE)}\n```"
FORMS = [
    ("trade", trade(STATE)),
    ("trade", [slot.split("-") + [value] for slot, value in STATE.items()]),
    ("simpletod", " , ".join(spaced(STATE))),
    ("simpletod", f"<|belief|> {' , '.join(spaced(STATE))} <|endofbelief|>"),
    ("parlai", ", ".join(spaced(STATE)) + ","),
    ("ubar", bspn(STATE)),
    ("ubar", bspn(STATE).removeprefix("<sos_b> ").removesuffix(" <eos_b>")),
    ("convlab", t5(STATE)),
    ("convlab", nested(STATE)),
    ("mwz22", frames(STATE)),
    ("mwz22", {"slots_values_name": list(STATE), "slots_values_list": [[value] for value in STATE.values()]}),
    ("trade", {"hotel": {"book": {"booked": [], "day": ""}, "semi": {"area": "east", "name": "warkworth house"}},
               "train": {"book": {"booked": []}, "semi": {"leaveAt": "10:00"}}}),
    ("trade", {slot.replace("-", "_"): value for slot, value in STATE.items()}),
    ("trade", {slot.title().replace("Leaveat", "LeaveAt"): value for slot, value in STATE.items()}),
    ("json", {**STATE, "hotel-stars": None}),
    ("json", FENCED),
    ("json", json.dumps(STATE)),
    ("json", str(STATE)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_forms_of_a_state(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, form: Any) -> None:
    dialogue = "MUL0001" if name == "json" else "mul0001.json"
    for file, state in (("r", STATE), ("p", form)):
        key = {"r": "state", "p": "prediction"}[file]
        item = {"dialogue_id": dialogue if file == "p" else "MUL0001", "turn_id": 3, key: state}
        (tmp_path / file).write_text(json.dumps(item) + "\n")
    files = ["--predictions", str(tmp_path / "p"), "--references", str(tmp_path / "r")]
    assert score(capsys, *files, "--format", name, "--preset", "any_of")[1] == "1/1"


@pytest.mark.parametrize(
    ("name", "gold", "form", "expected"),
    [
        ("simpletod", {"hotel-name": "a, b"}, ["hotel name a, b"], "1/1"),
        ("convlab", {"hotel-stars": "4"}, "[hotel]([area][],[stars][4])", "1/1"),
        ("trade", {"hotel-area": "east"}, ["hotel-area-east", "hotel-name-"], "0/1"),
        ("ubar", {"hotel-area": "east"}, "[hotel] area east name", "0/1"),
        ("json", {"hotel-area": "east"}, '{"hotel-area": "west", "hotel-area": "east"}', "0/1"),
    ],
)
def test_odd_forms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, gold: Json, form: Any, expected: str
) -> None:
    (tmp_path / "r").write_text(json.dumps({"dialogue_id": "M", "turn_id": 0, "state": gold}))
    (tmp_path / "p").write_text(json.dumps({"dialogue_id": "M", "turn_id": 0, "prediction": form}))
    files = ["--predictions", str(tmp_path / "p"), "--references", str(tmp_path / "r")]
    assert score(capsys, *files, "--format", name, "--preset", "any_of")[1] == expected


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("convlab", [{"state": nested(STATE)}]),
        ("convlab", [{"state": nested(STATE), "predictions": {}}]),
        ("convlab", [{"state": nested(STATE), "predictions": {"state": ["hotel area east"]}}]),
        ("trade", [{"state": trade(STATE), "turn_belief": trade(STATE), "pred_bs_ptr": None}]),
        ("trade", [{"turn_id": 0, "turn_belief": trade(STATE), "pred_bs_ptr": trade(STATE)}] * 2),
        ("ubar", [{"M": {"0": {"bspn": "hotel area east", "bspn_gen": bspn(STATE)}}}]),
        ("simpletod", [{"M": {"generated_turn_belief": [[]], "target_turn_belief": [[], []]}}]),
        ("parlai", [{"dialog": [[{"eval_labels": ["", "hotel area east"]}, {"text": ""}]]}]),
    ],
)
def test_files_that_would_be_misread_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, lines: list[Json]
) -> None:
    (tmp_path / "p").write_text("\r\n\r\n".join(map(json.dumps, lines)))
    assert jga(["--predictions", str(tmp_path / "p"), "--format", name]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1


@pytest.mark.parametrize("name", [name for name in FORMAT_PRESETS if name != "json"])
def test_text_of_another_format_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (tmp_path / "r").write_text(json.dumps({"state": STATE}))
    (tmp_path / "p").write_text(json.dumps({"prediction": "area: east; stars: 4"}))
    files = ["--predictions", str(tmp_path / "p"), "--references", str(tmp_path / "r")]
    assert jga([*files, "--format", name]) == 2
    assert capsys.readouterr().out == ""


def figures(predicted: list[Json], gold: list[Json], **settings: Any) -> Json:
    rows = [
        [{"row_id": f"MUL0001/{number}", "state": state} for number, state in enumerate(states)]
        for states in (predicted, gold)
    ]
    return joint_goal_accuracy(*rows, intervals=False, **settings)


def test_average_goal_and_slot_accuracy() -> None:
    result = figures([*PREDICTED, {"hotel-area": "west"}], [*GOLD, {}])
    # Shares of right gold slots 1, 1/2, 0 and 1; the turn without a gold slot does not count.
    assert (result["average_goal_accuracy_numerator"], result["average_goal_accuracy_denominator"]) == (2.5, 4)
    # MultiWOZ has 31 slots; one is wrong in each of three of five turns.
    assert result["slot_accuracy"] == pytest.approx(1 - 3 / 31 / 5)
    # One domain: the slots of gold, and what the turn predicts beside them.
    result = figures([{"hotel-area": "east", "hotel-type": "a", "hotel-stars": "4"}], [{"hotel-area": "east"}])
    assert result["slot_accuracy"] == pytest.approx(1 / 3)
    bus = figures([*PREDICTED, {"bus-day": "monday"}], [*GOLD, {"bus-day": "friday"}])
    assert bus["slot_accuracy"] == pytest.approx(1 - (2 / 31 + 1 / 32) / 5)


@pytest.mark.parametrize(
    ("slot", "predicted", "gold", "right"),
    [
        ("hotel-type", "4", "hotel", True),
        ("attraction-type", "science", "museum", False),
        ("attraction-type", "science", "gallery", True),  # both are corrected to none, which remains a value
        ("restaurant-area", "cent", "centre", True),
        ("restaurant-area", "center", "centre", False),  # the table of typos is never used
        ("train-day", "we", "wednesday", True),
    ],
)
def test_default_cleaning_of_simpletod(slot: str, predicted: str, gold: str, right: bool) -> None:
    result = figures([{slot: predicted}], [{slot: gold}], preset="simpletod_default_cleaning")
    assert result["joint_goal_accuracy"] == right


def test_label_maps_of_trippy(tmp_path: Path) -> None:
    path = tmp_path / "multiwoz21.json"
    path.write_text(
        json.dumps({"label_maps": {"guest house": ["guesthouse", "bed-and-breakfast"], "lion-inn": ["inn"]}})
    )
    gold = [{"hotel-type": value} for value in ("guest house", "guest house", "guest house", "lion - inn")]
    predicted = [{"hotel-type": value} for value in ("guesthouse", "bed - and - breakfast", "hotel", "inn")]
    assert figures(predicted, gold, preset="trippy", label_maps=str(path))["joint_goal_accuracy"] == pytest.approx(
        3 / 4
    )
    assert figures(predicted, gold, preset="trippy")["joint_goal_accuracy"] == 0.0
    gold, predicted = [{"hotel-type": "guest house"}], [{"hotel-type": "bed-and-breakfast"}]
    for preset in ("any_of", "convlab3", "trippy"):
        assert figures(predicted, gold, preset=preset, label_maps=str(path))["joint_goal_accuracy"] == 1.0
