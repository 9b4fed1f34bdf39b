"""Text data given to a trainer as they are: encoded as by hand, trained, answered and reported."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from peft import LoraConfig, PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig, TaskType, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    set_seed,
)

from dair_hf import DAIRTrainer, DataError, PairCollator
from dair_hf.data.texts.forms import CHATS, CLASSES, view_of
from dair_hf.evaluation.evaluator import PairEvaluator
from tests.fixtures import chats, saved_models, tiny

PAIRS: list[dict[str, Any]] = [
    {
        "row_id": "a",
        "prompt": "w4 w5 w6",
        "completion": "w7",
        "augmented_prompt": "w8",
        "augmented_completion": "w9 w10",
    },
    {"row_id": "b", "prompt": "w11", "completion": "w12 w13", "augmented_prompt": None, "augmented_completion": None},
]
CHAT = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "bc"}]
LONGER = [*CHAT, {"role": "user", "content": "d?"}, {"role": "assistant", "content": "e"}]
CLASSES_OF_TEXTS: list[dict[str, Any]] = [
    {"row_id": "a", "text": "w4 w5", "label": "yes", "augmented_text": "w6", "augmented_label": "no"},
    {"row_id": "b", "text": "w7", "label": "no", "augmented_text": None, "augmented_label": None},
]


def rows_of(rows: list[dict[str, Any]], times: int = 1) -> datasets.Dataset:
    many = [
        {**row, "row_id": f"{row['row_id']}{copy}" if times > 1 else row["row_id"]}
        for copy in range(times)
        for row in rows
    ]
    return datasets.Dataset.from_list(many)


def bert(**settings: Any) -> BertForSequenceClassification:
    set_seed(0)
    return BertForSequenceClassification(saved_models.bert_config(**settings))


def trainer(folder: Path, model: Any, data: Any = None, tokenizer: Any = None, **settings: Any) -> DAIRTrainer:
    fields = set(tiny.DAIRConfig.__dataclass_fields__)
    return DAIRTrainer(
        model,
        tiny.config(folder, **{name: value for name, value in settings.items() if name in fields}),
        train_dataset=data,
        processing_class=tiny.tokenizer() if tokenizer is None else tokenizer,
        **{name: value for name, value in settings.items() if name not in fields},
    )


@pytest.mark.parametrize(("kind", "names"), [("t5", ("source", "target")), ("llama", ("prompt", "completion"))])
def test_prompts_and_completions_are_encoded_as_by_hand(tmp_path: Path, kind: str, names: tuple[str, str]) -> None:
    renamed = {"prompt": names[0], "completion": names[1]}
    renamed |= {f"augmented_{old}": f"augmented_{new}" for old, new in renamed.items()}
    made = trainer(tmp_path, tiny.model(kind), rows_of(PAIRS).rename_columns(renamed)).train_dataset
    end = [tiny.EOS]
    by_hand = [
        tiny.view(kind, [4, 5, 6], [7, *end]),
        tiny.view(kind, [8], [9, 10, *end]),
        tiny.view(kind, [11], [12, 13, *end]),
    ]
    for name in ("input_ids", "attention_mask", "labels"):
        assert made[name][:] == [by_hand[0][name], by_hand[2][name]]
        assert made[f"augmented_{name}"][:] == [by_hand[1][name], None]


def test_classes_by_name_and_pairs_of_texts(tmp_path: Path) -> None:
    made = trainer(tmp_path, bert(), rows_of(CLASSES_OF_TEXTS)).train_dataset
    assert made["input_ids"][:] == [[4, 5], [7]] and made["augmented_input_ids"][:] == [[6], None]
    assert made["labels"][:] == [1, 0] and made["augmented_labels"][:] == [0, None]
    assert "label" not in made.column_names and made["text"][0] == "w4 w5"
    pairs = [{"row_id": "a", "text": "w4", "text_pair": "w5", "label": 1.5, "augmented_text_pair": "w6"}]
    regression = trainer(tmp_path, bert(num_labels=1, id2label=None, label2id=None), rows_of(pairs)).train_dataset
    assert regression["input_ids"][0] == [4, 5] and regression["augmented_input_ids"][0] == [4, 6]
    assert regression["labels"][:] == [1.5] and "augmented_labels" not in regression.column_names
    with pytest.raises(DataError, match="row 'a', column 'label'"):
        trainer(tmp_path, bert(), rows_of([{**CLASSES_OF_TEXTS[0], "label": "maybe"}]))


CLASS = datasets.ClassLabel(names=["no", "yes"])
SWAPPED = datasets.ClassLabel(names=["Yes", "No"])


@pytest.mark.parametrize(
    ("label", "partner", "model", "column"),
    [
        (CLASS, SWAPPED, {"id2label": None, "label2id": None}, "augmented_label"),
        (SWAPPED, SWAPPED, {}, "label"),
        (CLASS, CLASS, {}, None),
        (SWAPPED, SWAPPED, {"id2label": None, "label2id": None}, None),
    ],
)
def test_classes_with_two_numbers_are_refused(
    tmp_path: Path, label: Any, partner: Any, model: dict[str, Any], column: str | None
) -> None:
    rows = datasets.Dataset.from_list([{"text": "w4", "label": 1, "augmented_text": "w6", "augmented_label": 0}])
    rows = rows.cast_column("label", label).cast_column("augmented_label", partner)
    if column is None:
        trainer(tmp_path, bert(**model), rows)
        return
    with pytest.raises(DataError, match=f"train_dataset, column '{column}'"):
        trainer(tmp_path, bert(**model), rows)
    if column == "label":
        with pytest.raises(DataError, match="test_dataset, column 'label'"):
            trainer(tmp_path, bert(**model)).predict(rows)
    numbers = {"no": 0, "yes": 1}
    for name in ("label", "augmented_label"):
        rows = rows.align_labels_with_mapping(numbers, name)
    trainer(tmp_path, bert(**model), rows)


def test_texts_under_other_names_are_refused_before_training(tmp_path: Path) -> None:
    texts = {f"{prefix}text": f"{prefix}sentence" for prefix in ("", "augmented_")}
    rows = rows_of(CLASSES_OF_TEXTS).rename_columns(texts)
    with pytest.raises(DataError, match="train_dataset: .* input_ids"):
        trainer(tmp_path, bert(), rows, method="erm").train()

    def encode(batch: dict[str, list[Any]]) -> dict[str, Any]:
        return {"input_ids": [[4]] * len(batch["sentence"]), "labels": [0] * len(batch["sentence"])}

    collated: list[Any] = []
    for others in (
        {"train": rows.with_transform(encode), "remove_unused_columns": False},
        {"train": rows, "data_collator": lambda views: collated.append(views), "remove_unused_columns": False},
        {
            "train": rows.rename_columns(
                {f"{prefix}sentence": f"{prefix}inputs_embeds" for prefix in ("", "augmented_")}
            )
        },
    ):
        data = others.pop("train")
        assert trainer(tmp_path, bert(), data, method="erm", **others).train_dataset is data


def test_rows_without_names_are_called_by_their_number_in_batches(tmp_path: Path) -> None:
    nameless = rows_of(CLASSES_OF_TEXTS, 4).remove_columns("row_id")
    nameless = nameless.map(lambda row, number: {"text": f"w{4 + number}"}, with_indices=True)
    shuffled = trainer(tmp_path, bert(), nameless, method="erm", per_device_train_batch_size=8)
    (batch,) = shuffled.get_train_dataloader()
    assert [int(number) for number in batch["row_id"]] == [ids[0] - 4 for ids in batch["input_ids"][:, 0].tolist()]
    assert batch["row_id"] != sorted(batch["row_id"]), "the case must hold another order"
    assert trainer(tmp_path, bert(), rows_of(CLASSES_OF_TEXTS)).train_dataset["row_id"][:] == ["a", "b"]


def test_a_classifier_is_trained_evaluated_and_reported_without_more_arguments(tmp_path: Path) -> None:
    rows = rows_of(CLASSES_OF_TEXTS, 8)
    made = trainer(tmp_path, bert(), rows, method="da", learning_rate=0.05, num_train_epochs=10)
    made.train()
    metrics = made.evaluate_pairs(rows, intervals=False)
    assert metrics["original_accuracy"] == metrics["cm"] == 1.0 and metrics["pairs"] == 8
    flipped = rows.map(lambda row: {"label": {"yes": "no", "no": "yes"}[row["label"]]})
    assert made.evaluate_pairs(flipped, intervals=False)["original_accuracy"] == 0.0
    assert made.predict(rows).label_ids.tolist() == [1, 0] * 8
    report = made.pair_report(rows, folder=tmp_path / "report")
    # The same object that was trained on: the history of training counts.
    assert report.summary["pairs"] == 8 and report.summary["steps_per_pair"] == 10


@pytest.mark.parametrize("value", [[1.0, 0.0, float("nan")], [1.0, 0.0, 1.5], [1.0, -100.0, 0.0], [1.0, 0.0]])
def test_labels_of_several_classes_are_zero_to_one(tmp_path: Path, value: list[float]) -> None:
    names = {"id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
    made = trainer(tmp_path, bert(problem_type="multi_label_classification", **names))
    sound = {
        "row_id": "a",
        "text": "w4",
        "label": [1.0, 0.0, 0.25],
        "augmented_text": "w5",
        "augmented_label": [0, 1, 1],
    }
    encoded = made.tokenize(datasets.Dataset.from_list([sound]))
    assert (encoded["labels"][0], encoded["augmented_labels"][0]) == ([1.0, 0.0, 0.25], [0.0, 1.0, 1.0])
    for column in ("label", "augmented_label"):
        rows = datasets.Dataset.from_list([sound, {**sound, "row_id": "b", column: value}])
        with pytest.raises(DataError, match=f"row 'b', column '{column}': "):
            made.tokenize(rows)


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_answers_are_compared_with_completions(tmp_path: Path, kind: str) -> None:
    rows = rows_of(PAIRS, 8)
    made = trainer(tmp_path, tiny.model(kind), rows, method="da", learning_rate=0.02, num_train_epochs=25)
    made.train()
    file = tmp_path / "predictions.jsonl"
    metrics = made.evaluate_pairs(rows, intervals=False, predictions_file=file)
    assert metrics["original_accuracy"] == metrics["cm"] == 1.0
    assert '"reference": "w9 w10"' in file.read_text()
    never = made.evaluate_pairs(rows, lambda answers, references: [False] * len(answers), intervals=False)
    assert never["original_accuracy"] == 0.0
    assert made.evaluate(rows)["eval_loss"] < 0.5


@pytest.mark.parametrize(("kind", "names"), [("t5", ("source", "target")), ("llama", ("prompt", "completion"))])
def test_references_of_partners_without_a_target_are_those_of_their_originals(
    tmp_path: Path, kind: str, names: tuple[str, str]
) -> None:
    prompt, completion = names
    rows = datasets.Dataset.from_list(
        [
            {prompt: "w4", completion: "w5", f"augmented_{prompt}": "w6", f"augmented_2_{prompt}": "w7"},
            {prompt: "w8", completion: "w9  w10", f"augmented_{prompt}": None, f"augmented_2_{prompt}": "w11"},
        ]
    )
    seen: list[str] = []

    def correct(predictions: list[str], references: list[str]) -> list[bool]:
        seen.extend(references)
        return [True] * len(references)

    made = trainer(tmp_path, tiny.model(kind))
    # Views in order: both originals, the first partner of row 0, the second ones of both. The text keeps its spaces.
    wanted = ["w5", "w9  w10", "w5", "w5", "w9  w10"]
    made.evaluate_pairs(rows, PairEvaluator(correct, references=completion), intervals=False, max_new_tokens=2)
    assert seen == wanted
    seen.clear()
    made.evaluate_pairs(rows, correct, intervals=False, max_new_tokens=2)
    assert [text.split() for text in seen] == [text.split() for text in wanted]
    seen.clear()
    evaluator = PairEvaluator(correct, references=completion)
    report = made.pair_report(rows, evaluator, folder=tmp_path / "report", texts=[*names], max_new_tokens=2)
    assert seen == wanted
    fields = {(field["original"], field["augmented"]) for pair in report.worst for field in pair["fields"]
              if field["name"] == completion}  # fmt: skip
    assert fields == {("w5", "w5"), ("w9  w10", "w9  w10")}
    with pytest.raises(DataError, match="augmented_kind"):
        other = rows.add_column("kind", ["a", "b"])
        made.evaluate_pairs(other, PairEvaluator(correct, references="kind"), intervals=False)


def chat_rows() -> datasets.Dataset:
    other_answer = [*CHAT, LONGER[2], {**LONGER[3], "content": "gh"}]
    other_question = [{"role": "user", "content": "f?"}, *CHAT[1:]]
    chats = (("a", LONGER, other_answer), ("b", CHAT, other_question), ("c", [*CHAT, LONGER[2]], None))
    names = ("row_id", "messages", "augmented_messages")
    return datasets.Dataset.from_list([dict(zip(names, chat, strict=True)) for chat in chats])


def test_all_turns_are_trained_and_the_last_one_is_answered(tmp_path: Path) -> None:
    tokenizer = chats.tokenizer()
    made = trainer(tmp_path, chats.llama(tokenizer), chat_rows(), tokenizer)
    train = made.train_dataset
    learned = ["".join(tokenizer.decode([token]) for token in labels if token != -100) for labels in train["labels"][:]]
    assert learned == ["bc<|im_end|>e<|im_end|>", "bc<|im_end|>", "bc<|im_end|>"]
    seen: list[Any] = []

    def correct(predictions: list[str], references: list[str]) -> list[bool]:
        seen.append(references)
        return [True] * len(references)

    made.evaluate_pairs(chat_rows(), correct, intervals=False)
    assert seen[0] == ["e", "bc", "bc", "gh", "bc"]
    made.compute_metrics = lambda prediction: seen.append(prediction.label_ids) or {}
    both = chat_rows().select([0, 1])  # the last one ends with the user
    made.evaluate(both)
    turns = [[tokenizer.decode(row[row != -100]) for row in ids] for ids in (seen[1], made.predict(both).label_ids)]
    assert turns == [["e<|im_end|>", "bc<|im_end|>"]] * 2
    # The prompt ends where the last turn begins, whatever follows it.
    answered = made._text_rows.for_answers(train, "rows")
    prompts = [
        tokenizer.decode([token for token, label in zip(ids, labels, strict=True) if label == -100])
        for ids, labels in zip(answered["input_ids"], answered["labels"], strict=True)
    ]
    assert [prompt.count("<|im_start|>assistant\n") for prompt in prompts] == [2, 1, 1]
    assert all(prompt.endswith("<|im_start|>assistant\n") for prompt in prompts)


def test_streams_are_encoded_as_they_are_read(tmp_path: Path) -> None:
    stream = rows_of(PAIRS, 4).to_iterable_dataset()
    of_stream = trainer(tmp_path, tiny.model("llama"), stream, method="da", max_steps=2, dataloader_num_workers=0)
    of_stream.train()
    row = next(iter(of_stream.train_dataset))
    assert row["input_ids"] == [4, 5, 6, 7, tiny.EOS] and row["augmented_labels"] == [-100, 9, 10, tiny.EOS]
    assert tiny.distance(tiny.weights(of_stream.model), tiny.weights(tiny.model("llama"))) > 0


@pytest.mark.parametrize("format", ["torch", "numpy", "pandas"])
def test_rows_of_any_format_are_encoded(tmp_path: Path, format: str) -> None:
    rows = datasets.Dataset.from_list([{"text": "w4", "label": 1, "augmented_text": "w5 w6", "augmented_label": 0}])
    expected = trainer(tmp_path, bert(), rows).train_dataset[:]
    assert trainer(tmp_path, bert(), rows.with_format(format)).train_dataset[:] == expected


def test_lists_are_not_kept(tmp_path: Path) -> None:
    made = trainer(tmp_path, tiny.model("llama"), rows_of(PAIRS))
    for _ in range(2):
        made.evaluate_pairs(rows_of(PAIRS).to_list(), intervals=False)
    gc.collect()
    assert len(made._text_rows._encoded) == 1 and len(made._text_rows._origins) == 1


def test_prompts_lose_their_beginning_and_targets_their_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = trainer(tmp_path, tiny.model("llama"), rows_of(PAIRS), max_length=4)
    assert made.train_dataset["input_ids"][:] == [[5, 6, 7, tiny.EOS], [11, 12, 13, tiny.EOS]]
    shorter = trainer(tmp_path, tiny.model("llama"), rows_of(PAIRS), max_length=3)
    assert shorter.train_dataset["input_ids"][:] == [[6, 7, tiny.EOS], [11, 12, tiny.EOS]]
    with pytest.raises(DataError, match=r"dataset: row 'a': .* max_length=3"):
        shorter.evaluate_pairs(rows_of(PAIRS))
    assert made.evaluate_pairs(rows_of(PAIRS), intervals=False)["rows"] == 2
    long = rows_of([PAIRS[0] | {"completion": "w7 " * 40}])  # by default, the model's positions are the limit
    with pytest.raises(DataError, match=r"row 'a': .* max_length=32"):
        trainer(tmp_path, tiny.model("llama")).evaluate_pairs(long)
    made.args.max_length = 3  # the rows are already cut
    with pytest.raises(DataError, match="max_length: expected 4"):
        made.train()
    with pytest.raises(DataError, match="max_length=33"):
        trainer(tmp_path, tiny.model("llama"), rows_of(PAIRS), max_length=33)


def warned(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if word in record.getMessage()]


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_empty_prompts_and_completions_are_counted(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    whole = {**PAIRS[0], "row_id": "whole"}
    rows = [
        whole,
        {**whole, "row_id": "a", "completion": ""},
        {**whole, "row_id": "b", "augmented_completion": " \n"},
        {**whole, "row_id": "c", "prompt": "\t"},
        *({**whole, "row_id": f"more{number}", "completion": ""} for number in range(2)),
        PAIRS[1] | {"row_id": "no partner"},
    ]
    trainer(tmp_path, tiny.model(kind), rows_of(rows)).get_train_dataloader()
    (target,), (prompt,) = warned(caplog, "empty target"), warned(caplog, "empty input")
    assert target.startswith("train_dataset: 4 of 7 rows, such as row 'a', row 'b', row 'more0', have an empty target")
    assert prompt.startswith("train_dataset: 1 of 7 rows, such as row 'c', have an empty input")
    caplog.clear()
    trainer(tmp_path, tiny.model(kind), rows_of([whole, rows[-1]])).get_train_dataloader()
    assert warned(caplog, "empty") == []


@pytest.mark.parametrize("streams", [False, True])
def test_a_row_without_a_token_to_learn_has_no_target(tmp_path: Path, streams: bool) -> None:
    rows = rows_of([PAIRS[0], PAIRS[0] | {"row_id": "b", "prompt": " ", "completion": ""}])
    data = rows.to_iterable_dataset() if streams else rows
    made = list(trainer(tmp_path, tiny.model("llama"), data, max_steps=1).train_dataset)
    assert [label != -100 for label in made[1]["labels"][1:]] == []
    # An encoder-decoder learns the end of the empty answer.
    assert trainer(tmp_path, tiny.model("t5"), rows).train_dataset["labels"][1] == [tiny.EOS]


def test_a_long_chat_is_cut_on_the_side_of_the_tokenizer(tmp_path: Path) -> None:
    tokenizer, rows = chats.tokenizer(), chat_rows().remove_columns("augmented_messages")
    with pytest.raises(DataError, match="row 'a'"):  # no answer is left
        trainer(tmp_path, chats.llama(tokenizer), rows, tokenizer, max_length=10)
    tokenizer.truncation_side = "left"
    made = trainer(tmp_path, chats.llama(tokenizer), rows.select([0]), tokenizer, max_length=10).train_dataset
    assert len(made["input_ids"][0]) == 10 and tokenizer.eos_token_id in made["labels"][0]


def test_texts_that_someone_else_reads_are_left_alone(tmp_path: Path) -> None:
    """Token ids win over texts, and a collator that names its columns over the trainer."""

    class Reader:
        columns = ("text",)

        def __call__(self, views: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
            return {}

    rows = rows_of(CLASSES_OF_TEXTS)
    encoded = trainer(tmp_path, bert(), rows).train_dataset
    assert trainer(tmp_path, bert(), encoded).train_dataset is encoded
    own = datasets.Dataset.from_list([{"row_id": "a", "text": "w4", "label": 0, "labels": 0, "augmented_text": "w5"}])
    assert trainer(tmp_path, bert(), own, data_collator=PairCollator(Reader())).train_dataset is own


@pytest.mark.parametrize(
    ("model", "data", "settings", "message"),
    [
        (bert, rows_of(PAIRS), {}, "BertForSequence"),
        (lambda: tiny.model("llama"), rows_of(CLASSES_OF_TEXTS), {}, "prompt and completion, or messages, or source"),
        (lambda: tiny.model("t5"), chat_rows(), {}, "T5ForConditionalGeneration is not decoder-only"),
        (lambda: tiny.model("llama"), rows_of([{**PAIRS[0], "messages": CHAT}]), {}, "one form"),
        (bert, rows_of(CLASSES_OF_TEXTS), {"sample_loss": "soft_score"}, "soft_score"),
    ],
)
def test_data_that_do_not_fit_are_refused(
    tmp_path: Path, model: Callable[[], Any], data: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError) as refused:
        trainer(tmp_path, model(), data, **settings)
    assert message in str(refused.value)


def test_texts_need_a_tokenizer_which_pads_with_its_end_token_if_it_must(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="train_dataset has columns of text"):
        DAIRTrainer(bert(), tiny.config(tmp_path), train_dataset=rows_of(CLASSES_OF_TEXTS))
    tokenizer = tiny.tokenizer()
    tokenizer.pad_token = None
    trainer(tmp_path, tiny.model("llama"), rows_of(PAIRS), tokenizer)
    assert tokenizer.pad_token_id == tiny.EOS
    assert CLASSES.needed == ("text", "label")


def test_of_a_completion_of_several_turns_the_last_one_is_answered(tmp_path: Path) -> None:
    """Turns of the prompt are not learned."""
    tokenizer = chats.tokenizer()
    partner = [*CHAT, {"role": "user", "content": "f?"}]
    row = {"prompt": LONGER[:1], "completion": LONGER[1:], "augmented_prompt": partner}
    rows = datasets.Dataset.from_list([row])
    made = trainer(tmp_path, chats.llama(tokenizer), rows, tokenizer)
    for column in ("labels", "augmented_labels"):
        learned = tokenizer.decode([token for token in made.train_dataset[column][0] if token != -100])
        assert learned == "bc<|im_end|>e<|im_end|>"
    seen: list[list[str]] = []
    made.evaluate_pairs(rows, lambda p, r: [seen.append(r) is None] * len(r), intervals=False)
    assert seen == [["e", "e"]]


def test_calls_of_tools_keep_their_own_arguments() -> None:
    calls = [{"function": {"name": name, "arguments": {argument: 1}}} for name, argument in (("f", "x"), ("g", "y"))]
    rows = datasets.Dataset.from_list([{"messages": [{"role": "assistant", "tool_calls": [call]}]} for call in calls])
    assert [view_of(row, CHATS, 0, "")["messages"][0]["tool_calls"] for row in rows] == [[call] for call in calls]


def test_tools_of_a_partner(tmp_path: Path) -> None:
    template = "{% if tools %}{% for t in tools %}{{ t['name'] + ' ' + (t | length | string) }}{% endfor %}{% endif %}"
    tokenizer = chats.tokenizer(template + chats.CHATML)
    add, neg = [{"name": "add", "size": 2}], [{"name": "neg"}]
    rows = [
        {"messages": CHAT, "tools": add, "augmented_messages": CHAT, "augmented_tools": neg},
        {"messages": CHAT, "tools": add, "augmented_messages": CHAT, "augmented_tools": None},
    ]
    as_text = [{**row, "tools": json.dumps(add), "augmented_tools": row["augmented_tools"] and json.dumps(neg)}
               for row in rows]  # fmt: skip
    for data in (rows, as_text):
        made = trainer(tmp_path, chats.llama(tokenizer), datasets.Dataset.from_list(data), tokenizer)
        heads = [
            tokenizer.decode(ids).split("<|im_start|>")[0]
            for name in ("input_ids", "augmented_input_ids")
            for ids in made.train_dataset[name][:]
        ]
        assert heads == ["add 2", "add 2", "neg 1", "add 2"]
    for wrong, message in (("{", "column 'tools'"), ('"x"', "column 'tools'")):
        with pytest.raises(DataError, match=message):
            trainer(tmp_path, chats.llama(tokenizer), datasets.Dataset.from_list([{**as_text[0], "tools": wrong}]),
                    tokenizer)  # fmt: skip


def test_nothing_is_put_between_a_prompt_and_its_completion(tmp_path: Path) -> None:
    """Tokenizers in the style of SentencePiece put a space before each text."""
    inner = Tokenizer(models.BPE({name: at for at, name in enumerate(["<pad>", "</s>", "▁", *"abc:678"])}, []))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    inner.decoder = decoders.Metaspace(prepend_scheme="always", split=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="</s>")
    rows = [
        {"prompt": "a:", "completion": "6", "augmented_prompt": "b:", "augmented_completion": " 7"},
        {"prompt": "a: ", "completion": "6</s>", "augmented_prompt": "c", "augmented_completion": "ab"},
    ]
    made = trainer(tmp_path, chats.llama(tokenizer), datasets.Dataset.from_list(rows), tokenizer)
    texts = [tokenizer.convert_ids_to_tokens(ids) for name in ("", "augmented_")
             for ids in made.train_dataset[f"{name}input_ids"][:]]  # fmt: skip
    assert ["".join(text).replace("▁", " ") for text in texts] == [" a:6</s>", " a: 6</s>", " b: 7</s>", " cab</s>"]


@pytest.mark.parametrize("kind", ["gpt2", "t5", "bert"])
def test_the_loss_of_a_row_does_not_depend_on_the_side_of_padding(tmp_path: Path, kind: str) -> None:
    """Padding on the left would shift absolute positions of GPT-2 and BERT, and the labels of T5."""
    losses = []
    rows = CLASSES_OF_TEXTS if kind == "bert" else PAIRS
    for side in ("right", "left"):
        tokenizer = tiny.tokenizer()
        tokenizer.padding_side = side
        made = trainer(tmp_path, bert() if kind == "bert" else tiny.model(kind), rows_of(rows), tokenizer)
        losses.append(made.evaluate(made.train_dataset)["eval_loss"])
        assert tokenizer.padding_side == side
    assert losses[0] == losses[1]


@pytest.mark.parametrize("settings", [{"modules_to_save": ["lm_head"]}, {"target_modules": ["q_proj", "lm_head"]}])
def test_adapters_of_the_output_layer_train(tmp_path: Path, settings: dict[str, Any]) -> None:
    tokenizer = chats.tokenizer()
    config = LoraConfig(**{"target_modules": ["q_proj"], "r": 2, **settings})
    adapted: Any = get_peft_model(chats.llama(tokenizer), config)
    before = {name: value.detach().clone() for name, value in adapted.named_parameters() if value.requires_grad}
    trainer(tmp_path, adapted, rows_of(PAIRS), tokenizer, max_steps=2).train()
    changed = {name for name, value in adapted.named_parameters() if name in before and (value != before[name]).any()}
    assert any("lm_head" in name for name in changed)


@pytest.mark.parametrize("adapter", [PromptTuningConfig, PromptEncoderConfig])
def test_virtual_tokens_of_decoder_only_models_are_refused(tmp_path: Path, adapter: Any) -> None:
    settings = adapter(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=3)
    adapted: Any = get_peft_model(tiny.model("llama"), settings)
    with pytest.raises(DataError) as refused:
        trainer(tmp_path, adapted, rows_of(PAIRS))
    assert str(refused.value).startswith(f"{settings.peft_type.value}: virtual tokens")


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_prefix_tuning_learns_the_own_loss_and_answers_as_row_by_row(tmp_path: Path, kind: str) -> None:
    """The remedy for prompt tuning. The first row has all positions of GPT-2 that the prefix leaves free."""
    adapter = PrefixTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=3)
    adapted: Any = get_peft_model(tiny.model(kind), adapter)
    with torch.no_grad():
        for weight in adapted.parameters():
            weight += 0.5 * torch.randn_like(weight)
    rows = rows_of([{**PAIRS[0], "prompt": " ".join(f"w{4 + at % 9}" for at in range(40))}, PAIRS[1]])
    made = trainer(tmp_path, adapted, rows, max_steps=1)
    made.train()
    assert [len(ids) for ids in made.train_dataset["input_ids"][:]] == [32 - 3, 4]

    adapted.eval()
    tokenizer = tiny.tokenizer()
    file = tmp_path / "predictions.jsonl"
    for row in made.train_dataset:
        own = adapted(input_ids=torch.tensor([row["input_ids"]]), labels=torch.tensor([row["labels"]])).loss
        count = sum(label != -100 for label in row["labels"])
        loss = made.evaluate(datasets.Dataset.from_list([row]).select_columns(["input_ids", "labels"]))["eval_loss"]
        assert loss == pytest.approx(own.item() * count)
    made.evaluate_pairs(rows_of(PAIRS), predictions_file=file, max_new_tokens=5, intervals=False)
    lines = map(json.loads, file.read_text().splitlines())
    found = {(line["row_id"], line["variant"]): line["prediction"] for line in lines}
    for view, prompt in {("a", "original"): "w4 w5 w6", ("a", "augmented"): "w8", ("b", "original"): "w11"}.items():
        ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
        answer = adapted.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False)
        assert tokenizer.decode(answer[0, ids.shape[1] :], skip_special_tokens=True) == found[view]


def test_virtual_tokens_of_classifiers(tmp_path: Path) -> None:
    """BERT reads its first token; Llama would read its last one, where a padded row has padding."""
    set_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = LlamaConfig(vocab_size=tiny.VOCAB, pad_token_id=tiny.PAD, **sizes)
    adapter = PromptTuningConfig(task_type=TaskType.SEQ_CLS, num_virtual_tokens=3)
    llama, encoder = (get_peft_model(model, adapter) for model in (LlamaForSequenceClassification(config), bert()))
    numbers = [{**row, "label": 0, "augmented_label": row["augmented_text"] and 1} for row in CLASSES_OF_TEXTS]
    with pytest.raises(DataError, match="virtual tokens"):
        trainer(tmp_path, llama, rows_of(numbers))
    trainer(tmp_path, encoder, rows_of(numbers), max_steps=1).train()
