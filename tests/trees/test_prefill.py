"""Prompts that are prefilled as trees: the same answers as without, for prompts of any lengths."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from dair_hf import DataError
from dair_hf.evaluation import generation, prediction
from dair_hf.evaluation.generation import AnswerGenerator, _pad_left
from dair_hf.evaluation.generation_settings import effective_config
from dair_hf.trees import prefill
from dair_hf.trees.forest import pad_right
from dair_hf.trees.prefill import PromptTrees, nodes_of_neighbours, require_prefill, trees_are_exact
from tests.fixtures import tiny
from tests.fixtures.dialog_rows import dialog_rows
from tests.trees.test_exactness import build


@pytest.mark.parametrize("name", ["llama", "gpt2", "phi"])
@pytest.mark.parametrize(("related", "nodes_at_once"), [(1, 20), (3, 1024), (16, 1024)])
def test_answers_are_those_of_separate_prompts(
    name: str, related: int, nodes_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "RELATED", related)
    monkeypatch.setattr(prefill, "GROWTH", 3)  # the buffers of the cache grow several times
    monkeypatch.setattr(prefill, "_node_limit", lambda model: nodes_at_once)
    model: Any = build(name)
    model.generation_config.eos_token_id = None
    random = np.random.default_rng(0)
    history = random.integers(4, tiny.VOCAB, 12).tolist()
    prompts = [
        [*history[: random.integers(0, 12)], *random.integers(4, tiny.VOCAB, random.integers(1, 5)).tolist()]
        for _ in range(8)
    ]
    prompts += [[5], prompts[0]]
    settings = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": tiny.PAD}
    with torch.inference_mode():
        inputs = _pad_left([{"input_ids": prompt} for prompt in prompts], tiny.PAD)
        expected = model.generate(**inputs, **settings)
        cache = PromptTrees(model, prompts).cache(np.arange(10), range(10), inputs["input_ids"].shape[1])
        found = model.generate(**inputs, past_key_values=cache, **settings)
    assert torch.equal(found, expected)
    assert len(set(map(tuple, found[:, -10:].tolist()))) > 2


def evaluated(folder: Path, data: Any, model: Any, **settings: Any) -> tuple[list[str], int]:
    """Return the answers of `evaluate_pairs`, and the number of tokens that the model computed."""
    made = tiny.trainer(folder, "gpt2", data, model=model, sample_loss="causal", **settings)
    tokens = 0

    def count(module: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        nonlocal tokens
        tokens += named["input_ids"].numel()

    hook = model.register_forward_pre_hook(count, with_kwargs=True)
    answers: list[str] = []

    def judge(said: list[str], wanted: list[str]) -> list[bool]:
        answers.extend(said)
        return [a == b for a, b in zip(said, wanted, strict=True)]

    made.evaluate_pairs(data, judge, max_new_tokens=6)
    hook.remove()
    return answers, tokens


@pytest.mark.parametrize("answers_at_once", [None, 3])
def test_trainer_reads_common_prefixes_once(answers_at_once: int | None, tmp_path: Path) -> None:
    """Fewer tokens are computed, those of the probe included."""
    data = long_dialogs(20)
    settings: dict[str, Any] = {"per_device_eval_batch_size": 2, "generation_batch_size": answers_at_once}
    expected, read = evaluated(tmp_path / "rows", data, build("gpt2"), **settings)
    found, read_in_trees = evaluated(tmp_path / "trees", data, build("gpt2"), share_prefixes="dialogue_id", **settings)
    assert found == expected
    assert len(set(found)) > 1
    assert read_in_trees < 0.8 * read


def test_stop_strings_end_answers_of_trees(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The tokenizer of the trainer finds them."""
    data, model = long_dialogs(4), build("gpt2")
    model.generation_config.update(pad_token_id=tiny.PAD, eos_token_id=tiny.EOS)
    free, _ = evaluated(tmp_path / "free", data, model)
    common = Counter(word for answer in free for word in answer.split()[:-1] if len(word) == 3).most_common(1)[0][0]
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens(["abcdef"])  # with which transformers probes it
    model.generation_config.stop_strings = [common]
    expected, _ = evaluated(tmp_path / "rows", data, model, processing_class=tokenizer)
    found, _ = evaluated(tmp_path / "trees", data, model, processing_class=tokenizer, share_prefixes="dialogue_id")
    words = [answer.split() for answer in free]
    assert expected == [" ".join(w[: w.index(common) + 1] if common in w else w) for w in words] != free
    assert found == expected
    assert "read one by one" not in caplog.text


def long_dialogs(dialogs: int, turns: int = 7) -> datasets.Dataset:
    """Return turns of six tokens and the first one of twenty, each with a target of one token."""
    random = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for dialog in range(dialogs):
        history = random.integers(4, tiny.VOCAB, 20 + 6 * turns).tolist()
        for turn in range(turns):
            ids = [*history[: 20 + 6 * turn], 5 + turn]
            labels = [*[-100] * (len(ids) - 1), ids[-1]]
            rows.append({"dialogue_id": f"D{dialog}", "input_ids": ids, "labels": labels})
    return with_partner(rows)


def with_partner(rows: list[dict[str, Any]]) -> datasets.Dataset:
    """Return rows of which the first one has a partner, the same view but for its first token."""
    for row in rows:
        row |= {"augmented_input_ids": None, "augmented_labels": None}
    ids = rows[0]["input_ids"]
    rows[0] |= {"augmented_input_ids": [9 - (ids[0] == 9), *ids[1:]], "augmented_labels": rows[0]["labels"]}
    return datasets.Dataset.from_list(rows)


@pytest.mark.parametrize("instruction", [0, 30])
def test_memory_is_limited_in_tokens(instruction: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values of trees and of answers; an instruction is repeated where a tree of all rows is cut."""
    random = np.random.default_rng(0)
    start = random.integers(4, tiny.VOCAB, instruction).tolist()
    rows = [{"input_ids": [*start, *random.integers(4, tiny.VOCAB, 60 - instruction).tolist()]} for _ in range(60)]
    data = with_partner([{**row, "labels": [*[-100] * 59, 5], "dialogue_id": "a"} for row in rows])
    kept: list[int] = []
    written: list[int] = []

    class Recorded(PromptTrees):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            kept.append(sum(layers[0][0].shape[1] for layers in self._states))

        def cache(self, rows: Any, part: Any, columns: int) -> Any:
            written.append(len(part) * columns)
            return super().cache(rows, part, columns)

    monkeypatch.setattr(prefill, "PromptTrees", Recorded)
    monkeypatch.setattr(prefill, "nodes_at_once", lambda model: 100)
    model = build("gpt2")
    model.generation_config.eos_token_id = None
    found, _ = evaluated(tmp_path, data, model, share_prefixes="dialogue_id", per_device_eval_batch_size=4)
    assert len(found) == 61
    kept.pop(0)  # the tree with which the model is tried
    assert max(kept) <= 1.1 * 2 * 4 * 60  # cuts of a tree are estimated
    assert max(written) <= 2 * 4 * 60
    assert sum(kept) / len(kept) > 0.7 * 2 * 4 * 60  # which is used


@pytest.mark.parametrize(("limit", "cut"), [(1024, 2), (34, 2), (33, 18)])
def test_nodes_of_neighbours_are_those_that_trees_add(limit: int, cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "_node_limit", lambda model: limit)
    """Prompts that share fewer than 16 tokens with the one before begin a tree, and so does what exceeds the limit."""
    common = list(range(30))
    ends = [[*common[:15], 93, 94], common, [*common[:16], 91, 92], [7], [*common[:20], 90], [*common[:20], 90, 91]]
    order, nodes = nodes_of_neighbours([np.array(ids) for ids in ends], None)
    assert order.tolist() == [1, 4, 5, 2, 0, 3]
    assert nodes[:, 0].tolist() == [30, 1, 1, cut, 17, 1]
    assert nodes[:, 1].tolist() == [30, 21, 22, 18, 17, 1]
    assert prefill._related(*pad_right(ends), limit).tolist() == (
        [1, 0, 0, 2, 0, 0] if cut == 2 else [2, 0, 1, 3, 0, 0]
    )


def test_flex_attention_has_a_limit_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    assert prefill._node_limit(model) == 1024
    monkeypatch.setattr(model.config, "_attn_implementation", "flex_attention")
    assert prefill._node_limit(model) == 8192


def test_all_ranks_read_prompts_one_by_one_if_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data, model = dialog_rows(dialogs=2), build("gpt2")
    expected, _ = evaluated(tmp_path / "rows", data, model)
    of_another_rank = ({}, False, "the cache of another rank differs")
    gather = prediction.gather_object
    monkeypatch.setattr(
        prediction,
        "gather_object",
        lambda mine: [*gather(mine), of_another_rank] if len(mine[0]) == 3 else gather(mine),
    )
    monkeypatch.setattr(AnswerGenerator, "from_trees", None)
    found, _ = evaluated(tmp_path / "trees", data, model, share_prefixes="dialogue_id")
    assert found == expected
    assert caplog.text.count("share_prefixes: prompts are read one by one: the cache of another rank differs") == 1


@pytest.mark.parametrize("where", ["tree", "cache"])
def test_a_lack_of_memory_is_not_taken_for_inexactness(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("gpt2")
    forward = model.forward

    @functools.wraps(forward)
    def fails(**inputs: Any) -> Any:
        mask = inputs.get("attention_mask")
        if mask is not None and mask.ndim == 4:
            if where == "tree" or inputs["use_cache"]:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(**inputs)

    monkeypatch.setattr(model, "forward", fails)
    with pytest.raises(torch.OutOfMemoryError):
        trees_are_exact(model, np.arange(4, 24), tiny.PAD)


@pytest.mark.parametrize("settings", [{}, {"min_new_tokens": 4}, {"generation_config": GenerationConfig()}])
def test_answers_that_have_ended_leave_the_batch(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "STAGE", 3)
    monkeypatch.setattr(prefill, "GROWTH", 2)
    monkeypatch.setattr(prefill, "RELATED", 1)
    model: Any = build("llama")
    model.generation_config.eos_token_id = [6, 9, 11]
    random = np.random.default_rng(0)
    prompts = [random.integers(4, tiny.VOCAB, random.integers(1, 9)).tolist() for _ in range(30)]
    views = [{"input_ids": [*prompt, 5], "labels": [*[-100] * len(prompt), 5]} for prompt in prompts]
    arguments = {"max_new_tokens": 14, **settings}
    generator = AnswerGenerator(model, dict, torch.device("cpu"), tiny.PAD, arguments, 2)
    rows: list[int] = []
    model.register_forward_pre_hook(lambda _, args, named: rows.append(len(named["input_ids"])), with_kwargs=True)
    expected = [generator([view])[0] for view in views]
    lengths = sorted(map(len, expected))
    rows.clear()
    batches = np.split(np.arange(30), [10, 20])
    assert generator.from_trees(generator.shared_prompts(views), batches) == expected
    assert len(set(lengths)) > 2
    assert lengths[-1] > 6  # more than two stages
    assert (set(rows) - {1} == {10}) == ("min_new_tokens" in settings)  # then all rows stay to the end


def test_a_padding_token_within_an_answer_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "STAGE", 3)
    monkeypatch.setattr(prefill, "RELATED", 1)
    model: Any = build("llama")
    model.generation_config.eos_token_id = [6]
    views = [{"input_ids": [4 + number, 8, 5], "labels": [-100, -100, 5]} for number in range(12)]
    arguments = {"max_new_tokens": 14}
    free = AnswerGenerator(model, dict, torch.device("cpu"), tiny.PAD, arguments, 2)(views)
    common = Counter(token for answer in free for token in answer[:-1]).most_common(1)[0][0]
    generator = AnswerGenerator(model, dict, torch.device("cpu"), common, arguments, 2)
    expected = [generator([view])[0] for view in views]
    assert sum(common in answer for answer in expected) > 3
    assert generator.from_trees(generator.shared_prompts(views), [np.arange(12)]) == expected


def require_with(model: Any, **settings: Any) -> None:
    arguments = {"max_new_tokens": 4, **settings}
    require_prefill(model, effective_config(model, arguments), arguments)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"num_beams": 2}, "answers are generated by beam_search"),
        ({"use_cache": False}, "use_cache=False"),
        ({"guidance_scale": 1.5}, "guidance_scale=1.5"),
        ({"cache_implementation": "static"}, "cache_implementation='static'"),
        ({"assistant_model": "another"}, "generate is given assistant_model"),
        ({"stop_strings": ["."], "eos_token_id": None}, "eos_token_id"),
        ({"token_healing": True, "tokenizer": tiny.tokenizer()}, "token_healing=True"),
        # In batches of other padding or order, other answers:
        ({"do_sample": True}, "by sample"),
        ({"max_new_tokens": None, "max_length": 20}, "max_new_tokens"),
        ({"min_length": 9}, "min_length=9"),
        ({"repetition_penalty": 1.2}, "repetition_penalty=1.2"),
    ],
)
def test_other_strategies_read_prompts_one_by_one(settings: dict[str, Any], reason: str) -> None:
    model = build("llama")
    require_with(model)
    require_with(model, generation_config=GenerationConfig(eos_token_id=[2, 3], min_new_tokens=2))
    require_with(model, stop_strings=["."], tokenizer=tiny.tokenizer())
    with pytest.raises(DataError, match=reason):
        require_with(model, **settings)
    if all(hasattr(model.generation_config, name) for name in settings):
        model.generation_config.update(**settings)
        with pytest.raises(DataError):
            require_prefill(model, effective_config(model, {}), {})


@pytest.mark.parametrize("prompt", [[], [5] * 65, None])
def test_unusual_prompts_are_all_read_one_by_one(prompt: list[int] | None) -> None:
    """One empty prompt, one beyond the positions of the model, one with a gap in its mask."""
    views = [{"input_ids": [5, 6, 7], "labels": [-100, -100, 7]}]
    generator = AnswerGenerator(build("gpt2"), dict, torch.device("cpu"), tiny.PAD, {"max_new_tokens": 3}, 2)
    assert [prompt.tolist() for prompt in generator.shared_prompts(views)] == [[5, 6]]
    if prompt is None:
        other = {"input_ids": [5, 6, 7], "attention_mask": [0, 1, 1], "labels": [-100, -100, 7]}
    else:
        other = {"input_ids": [*prompt, 7], "labels": [*[-100] * len(prompt), 7]}
    with pytest.raises(DataError, match="is empty, too long, or has gaps"):
        generator.shared_prompts([*views, other])


@pytest.mark.parametrize("name", ["mistral", "gemma3", "mamba"])
def test_windows_and_recurrent_models_are_read_one_by_one(name: str) -> None:
    with pytest.raises(DataError, match="has layers that do not attend to all tokens"):
        require_with(build(name))


@pytest.mark.parametrize("length", [1, 2, 16, 63])
def test_exact_models_pass_the_probe(length: int) -> None:
    assert trees_are_exact(build("gpt2"), np.arange(length) % tiny.VOCAB, tiny.PAD)


def test_caches_of_another_kind_are_found_by_a_probe(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A model whose trees are exact, but which loses the positions of a cache."""
    model = build("llama")
    forward = model.forward

    @functools.wraps(forward)
    def without_positions(**inputs: Any) -> Any:
        if len(inputs["input_ids"]) > 1 and inputs["input_ids"].shape[1] == 1:
            inputs["position_ids"] = torch.zeros_like(inputs["position_ids"])
        return forward(**inputs)

    monkeypatch.setattr(model, "forward", without_positions)
    assert not trees_are_exact(model, np.arange(4, 24), tiny.PAD)
    assert "cannot continue prompts from prefix trees (logits differ" in caplog.text


def test_large_trees_are_cut_where_least_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """All prompts begin with one instruction; a dense mask of their whole tree would take too much memory."""
    random = np.random.default_rng(0)
    start = random.integers(4, tiny.VOCAB, 20).tolist()
    prompts = [[*start, *[4 + dialog] * 10, *[10 + turn] * 5] for turn in range(4) for dialog in range(6)]
    sizes: list[int] = []
    attention_inputs = prefill.attention_inputs

    def record(tree: Any, model: Any) -> dict[str, Any]:
        sizes.append(len(tree.ends))
        return attention_inputs(tree, model)

    monkeypatch.setattr(prefill, "attention_inputs", record)
    monkeypatch.setattr(prefill, "_node_limit", lambda model: 110)
    PromptTrees(build("llama"), prompts)
    assert max(sizes) <= 110
    assert sum(sizes) == 2 * 20 + 6 * (10 + 4 * 5)  # three dialogues a tree, none of them cut


def test_inexact_models_read_prompts_one_by_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data, model = dialog_rows(dialogs=2), build("falcon_alibi")
    expected, _ = evaluated(tmp_path / "rows", data, model)
    found, _ = evaluated(tmp_path / "trees", data, model, share_prefixes="dialogue_id")
    assert found == expected
    assert "read one by one: share_prefixes and FalconForCausalLM cannot be combined: it cannot run" in caplog.text
