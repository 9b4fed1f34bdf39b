"""Models from scratch, from a folder and with adapters, and attention that starts at neighbors."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import (
    AutoConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from dair_hf.commands.model_pairs import load_trained
from dair_hf.errors import DataError
from dair_hf.modeling import (
    ModelConfig,
    _start_at_neighbours,
    add_adapters,
    load_model,
    load_pretrained,
    load_text_classifier,
    load_tokenizer,
)
from dair_hf.vqa.models.backbone import load_backbone
from dair_hf.vqa.models.pretrained import load_generator
from tests.fixtures import saved_models, tiny
from tests.fixtures.paths import ROOT

T5 = {"model_type": "t5", "d_model": 16, "d_ff": 32, "d_kv": 8, "num_heads": 2, "num_layers": 1}
GPT2 = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
BART = {
    "model_type": "bart", "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 32,
}  # fmt: skip

# Tokens of a sequence for attention maps.
LENGTH = 7


def scratch(settings: dict[str, Any] = T5, seed: int = 0, **config: Any) -> PreTrainedModel:
    return load_model(ModelConfig(model_settings=settings, **config), tiny.tokenizer(), seed)


def same(left: torch.nn.Module, right: torch.nn.Module) -> bool:
    return tiny.distance(tiny.weights(left), tiny.weights(right)) == 0


@pytest.mark.parametrize(("settings", "encodes"), [(T5, True), (BART, True), (GPT2, False)])
def test_scratch_model_fits_the_tokenizer(settings: dict[str, Any], encodes: bool) -> None:
    model = scratch(settings)
    assert model.config.is_encoder_decoder is encodes
    assert model.get_input_embeddings().num_embeddings == tiny.VOCAB
    assert (model.config.pad_token_id, model.config.eos_token_id) == (tiny.PAD, tiny.EOS)
    assert model.config.bos_token_id == tiny.BOS
    ids = torch.tensor([[5, 6, 7]])
    outputs = model(input_ids=ids, labels=ids)
    assert outputs.logits.shape == (1, 3, tiny.VOCAB)
    assert torch.isfinite(outputs.loss)
    # Generation needs no further token ids.
    assert model.generate(ids, max_new_tokens=2, do_sample=False).shape[0] == 1


def test_scratch_weights_depend_on_the_seed_only() -> None:
    torch.manual_seed(99)
    first = scratch(seed=3)
    torch.manual_seed(7)
    assert same(first, scratch(seed=3))
    assert not same(first, scratch(seed=4))


def test_generation_settings_of_a_checkpoint_are_removed(tmp_path: Path) -> None:
    model = scratch(BART)
    settings = {"num_beams": 4, "no_repeat_ngram_size": 3, "early_stopping": True, "min_length": 5, "max_new_tokens": 9}
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    model.generation_config.forced_bos_token_id = tiny.BOS
    model.save_pretrained(tmp_path)
    loaded = load_model(ModelConfig(model_name_or_path=str(tmp_path)), tiny.tokenizer()).generation_config
    assert [getattr(loaded, name) for name in settings] == [None] * len(settings)
    assert (loaded.forced_bos_token_id, loaded.eos_token_id) == (tiny.BOS, tiny.EOS)  # special tokens are kept


def test_given_settings_override_those_of_the_tokenizer() -> None:
    assert scratch({**T5, "vocab_size": 50, "decoder_start_token_id": 2}).config.decoder_start_token_id == 2
    assert scratch({**T5, "vocab_size": 50}).get_input_embeddings().num_embeddings == 50


def test_neighbour_attention_applies_to_t5_models_from_scratch(stored: Path) -> None:
    plain, started = (dict(scratch(T5, neighbour_attention=strength).named_parameters()) for strength in (0.0, 3.0))
    changed = {name for name in plain if not torch.equal(plain[name], started[name])}
    assert changed
    assert all("relative_attention_bias" in name for name in changed)
    with pytest.raises(DataError, match="neighbour_attention"):
        scratch(GPT2, neighbour_attention=3.0)
    # A pretrained model is not changed.
    load_model(ModelConfig(model_name_or_path=str(stored), neighbour_attention=3.0), tiny.tokenizer())


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    scratch(GPT2, seed=5).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def test_model_and_tokenizer_of_a_folder(stored: Path) -> None:
    config = ModelConfig(model_name_or_path=str(stored))
    tokenizer = load_tokenizer(config)
    assert tokenizer("w4 w9").input_ids == [4, 9]
    # The seed does not affect stored weights.
    assert same(load_model(config, tokenizer, seed=1), scratch(GPT2, seed=5))


def test_the_attention_is_chosen(stored: Path) -> None:
    for settings in ({"model_settings": GPT2}, {"model_name_or_path": str(stored)}):
        for name in ("eager", "sdpa"):
            model = load_model(ModelConfig(**settings, attn_implementation=name), tiny.tokenizer())
            assert model.config._attn_implementation == name


def test_end_token_pads_if_there_is_no_padding_token(tmp_path: Path) -> None:
    inner = Tokenizer(models.WordLevel({"<end>": 0, "<unk>": 1, "a": 2}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", unk_token="<unk>").save_pretrained(tmp_path)
    scratch(GPT2).config.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(ModelConfig(model_name_or_path=str(tmp_path)))
    assert tokenizer.pad_token == "<end>"


@pytest.mark.parametrize("settings", [T5, GPT2])
def test_only_adapters_are_trained(settings: dict[str, Any]) -> None:
    model = scratch(settings, use_peft=True, lora_r=2, lora_alpha=6)
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    (lora,) = model.peft_config.values()
    assert (lora.r, lora.lora_alpha) == (2, 6)
    assert lora.task_type == ("SEQ_2_SEQ_LM" if settings is T5 else "CAUSAL_LM")
    # Initial adapters do not change the output of the base model.
    ids = torch.tensor([[5, 6, 7]])
    with_adapters, without = (m.eval()(input_ids=ids, labels=ids).logits for m in (model, scratch(settings)))
    torch.testing.assert_close(with_adapters, without, atol=1e-5, rtol=0)


@pytest.mark.parametrize("targets", [["q", "v"], ["SelfAttention.q", "SelfAttention.v", "EncDecAttention.q"]])
def test_adapters_on_named_modules(targets: list[str]) -> None:
    made = scratch(T5, use_peft=True, lora_target_modules=targets)
    names = {name for name, _ in made.named_modules() if name.endswith("lora_A")}
    assert {name.split(".")[-2] for name in names} == {"q", "v"}


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"model_settings": {"d_model": 4}}, "model_settings"),
        ({}, "model_settings"),
        ({"model_settings": {**T5, "d_modl": 8, "heads": 2}}, "model_settings: .*d_modl, heads"),
        ({"model_settings": {**T5, "d_model": "wide"}}, "model_settings"),
        ({"model_settings": {**GPT2, "n_embd": 15}}, "model_settings"),
        ({"model_settings": {"model_type": "vit"}}, "model_settings"),
        ({"model_settings": T5, "attn_implementation": "fast"}, "model_settings"),
        ({"model_settings": T5, "use_peft": True, "lora_target_modules": ["wq"]}, "lora_target_modules"),
        # peft itself would leave out a name that it does not find if it finds another.
        ({"model_settings": T5, "use_peft": True, "lora_target_modules": ["q", "wq"]}, "lora_target_modules"),
        ({"model_settings": T5, "use_peft": True, "lora_target_modules": ["layer_norm"]}, "lora_target_modules"),
        ({"model_name_or_path": "no/where"}, "model_name_or_path"),
        ({"model_name_or_path": "x", "model_settings": T5}, "model_name_or_path"),
        ({"model_settings": T5, "use_peft": True, "lora_r": -1}, "lora_r"),
        ({"model_settings": T5, "lora_alpha": 0}, "lora_alpha"),
    ],
)
def test_invalid_models_are_refused(config: dict[str, Any], field: str) -> None:
    with pytest.raises(DataError, match=f"^{field}"):
        load_model(ModelConfig(**config), tiny.tokenizer())


def test_missing_tokenizers_are_refused(tmp_path: Path) -> None:
    for config in (ModelConfig(model_settings=T5), ModelConfig(model_name_or_path=str(tmp_path))):
        with pytest.raises(DataError, match="^model_name_or_path"):
            load_tokenizer(config)


def test_pickled_weights_are_not_loaded(tmp_path: Path) -> None:
    model = scratch(GPT2)
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    tokenizer: PreTrainedTokenizerBase = tiny.tokenizer()
    with pytest.raises(DataError, match="safetensors"):
        load_model(ModelConfig(model_name_or_path=str(tmp_path)), tokenizer)


def tiny_t5(heads: int = 3) -> PreTrainedModel:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=11, d_model=12, d_kv=4, d_ff=8, num_layers=2, num_heads=heads, dropout_rate=0.0, pad_token_id=0
    )
    config.decoder_start_token_id = 0
    return T5ForConditionalGeneration._from_config(config, attn_implementation="eager").eval()


@torch.no_grad()
def attention_maps(model: PreTrainedModel) -> tuple[Any, Any]:
    ids = torch.arange(1, LENGTH + 1)[None]
    outputs = model(input_ids=ids, decoder_input_ids=ids, output_attentions=True)
    return outputs.encoder_attentions, outputs.decoder_attentions


def peak_offsets(attention: torch.Tensor, head: int, queries: range) -> set[int]:
    """Return the offsets from each query to the key that it attends to most."""
    return {int(attention[0, head, query].argmax()) - query for query in queries}


def test_two_heads_attend_to_their_neighbors_in_every_layer() -> None:
    model = tiny_t5()
    assert _start_at_neighbours(model, 30.0) == 2
    encoder, decoder = attention_maps(model)
    for layer in range(2):
        assert peak_offsets(encoder[layer], 0, range(1, LENGTH)) == {-1}
        assert peak_offsets(encoder[layer], 1, range(LENGTH - 1)) == {1}
        assert peak_offsets(decoder[layer], 0, range(1, LENGTH)) == {-1}
        assert peak_offsets(decoder[layer], 1, range(2, LENGTH)) == {-2}


def test_other_heads_of_the_first_layer_are_unchanged() -> None:
    plain, model = tiny_t5(), tiny_t5()
    _start_at_neighbours(model)
    before, after = attention_maps(plain), attention_maps(model)
    for stack in (0, 1):
        torch.testing.assert_close(before[stack][0][:, 2], after[stack][0][:, 2])
        assert (before[stack][0][:, :2] - after[stack][0][:, :2]).abs().max() > 0.1


def test_a_new_head_is_no_target_of_adapters() -> None:
    model = load_model(ModelConfig(model_settings=T5), tiny.tokenizer())
    config = ModelConfig(model_settings=T5, use_peft=True, lora_target_modules=["q", "lm_head"])
    with pytest.raises(DataError, match="lora_target_modules"):
        add_adapters(model, config, None, new_modules=["lm_head"])


BERT = {
    "model_type": "bert", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 32,
}  # fmt: skip
LABELS = ("no", "maybe", "yes")


def classifier(seed: int = 0, **config: Any) -> Any:
    return load_text_classifier(ModelConfig(**config), tiny.tokenizer(), LABELS, seed)


def saved_classifier(folder: Path, settings: dict[str, Any] = BERT, seed: int = 0) -> str:
    classifier(seed, model_settings=settings).save_pretrained(folder)
    return str(folder)


def test_classifier_from_scratch_has_the_labels() -> None:
    model = classifier(seed=3, model_settings=BERT)
    assert model.config.id2label == {0: "no", 1: "maybe", 2: "yes"} and model.config.label2id["yes"] == 2
    assert model.get_input_embeddings().num_embeddings == tiny.VOCAB
    assert model(torch.tensor([[5, 6, 7]])).logits.shape == (1, 3)
    assert same(model, classifier(seed=3, model_settings=BERT))
    assert not same(model, classifier(seed=4, model_settings=BERT))


@pytest.mark.parametrize("settings", [BERT, GPT2], ids=["bert", "gpt2"])
def test_a_loaded_classifier_gets_a_new_output_layer_only(tmp_path: Path, settings: dict[str, Any]) -> None:
    saved = classifier(seed=0, model_settings=settings)
    saved.config.pad_token_id = None
    saved.save_pretrained(tmp_path)
    loaded = classifier(seed=1, model_name_or_path=str(tmp_path))
    assert loaded.config.pad_token_id == tiny.PAD
    before, after = tiny.weights(saved), tiny.weights(loaded)
    changed = {name for name, values in after.items() if not torch.equal(values, before[name])}
    assert changed == ({"classifier.weight"} if settings is BERT else {"score.weight"})  # biases are 0 in both
    assert same(loaded, classifier(seed=1, model_name_or_path=str(tmp_path)))


def test_a_loaded_classifier_may_have_other_classes_and_no_head(tmp_path: Path) -> None:
    base = classifier(model_settings=BERT).bert
    base.save_pretrained(tmp_path)
    loaded = classifier(model_name_or_path=str(tmp_path))
    assert loaded.classifier.out_features == 3 and same(loaded.bert, base)
    other = classifier(model_settings=BERT)
    other.config.problem_type = "multi_label_classification"
    other.save_pretrained(tmp_path / "3")
    two = load_text_classifier(ModelConfig(str(tmp_path / "3")), tiny.tokenizer(), "ab")
    assert two.classifier.out_features == 2 and two.config.id2label == {0: "a", 1: "b"}
    assert two(input_ids=torch.tensor([[5]]), labels=torch.tensor([1])).loss > 0  # of one class


def test_a_classifier_without_its_weights_is_refused(tmp_path: Path) -> None:
    name = saved_classifier(tmp_path)
    file = tmp_path / "model.safetensors"
    kept = {key: values for key, values in load_file(file).items() if "encoder" not in key}
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"^model_name_or_path=.*bert\.encoder"):
        classifier(model_name_or_path=name)


def test_classifier_with_adapters_trains_the_head(tmp_path: Path) -> None:
    model = classifier(model_name_or_path=saved_classifier(tmp_path), use_peft=True, lora_target_modules=["query"])
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert any("classifier" in name for name in trained) and any("lora_A" in name for name in trained)
    assert all("lora" in name or "classifier" in name for name in trained)


@pytest.mark.parametrize("name", saved_models.BREAKAGES)
def test_broken_files_of_a_model_are_named(tmp_path: Path, name: str) -> None:
    folder = saved_models.generator(tmp_path / "model", "gpt2", shard_size="4KB")
    config = ModelConfig(model_name_or_path=str(folder))
    load_model(config, load_tokenizer(config))
    saved_models.BREAKAGES[name](folder)
    with pytest.raises(DataError, match=f"^model_name_or_path='{folder}'"):
        load_model(config, load_tokenizer(config))


def with_code(folder: Path) -> Path:
    """A model of a type that only its own code knows; the code creates the file `ran` when it runs."""
    saved_models.classifier(folder)
    settings = json.loads((folder / "config.json").read_text())
    own = {"model_type": "own", "auto_map": {"AutoConfig": "code.Own"}}
    (folder / "config.json").write_text(json.dumps({**settings, **own}))
    (folder / "code.py").write_text(
        f"open({str(folder / 'ran')!r}, 'w').close()\n"
        "from transformers import BertConfig\nclass Own(BertConfig):\n    model_type = 'own'\n"
    )
    return folder


@pytest.mark.parametrize(
    "load",
    [
        lambda name: load_trained(name),
        lambda name: load_model(ModelConfig(name), tiny.tokenizer()),
        lambda name: load_text_classifier(ModelConfig(name), tiny.tokenizer(), ["no", "yes"]),
        lambda name: load_generator(ModelConfig(name), None),
        lambda name: load_backbone(name),
    ],
)
def test_code_of_a_model_runs_only_where_a_setting_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: Callable[[str], object]
) -> None:
    folder = with_code(tmp_path / "model")
    monkeypatch.setattr("builtins.input", lambda *question: "y")
    with pytest.raises(DataError, match="custom code"):
        load(str(folder))
    assert not (folder / "ran").exists()
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    load_pretrained(AutoConfig, folder, "model", trust_remote_code=True)
    assert (folder / "ran").exists()


def test_type_of_the_weights_and_dropout_of_adapters(tmp_path: Path) -> None:
    tiny.model("gpt2", dtype=torch.bfloat16).save_pretrained(tmp_path)
    for dtype, expected in (("float32", torch.float32), ("auto", torch.bfloat16), ("float16", torch.float16)):
        assert load_model(ModelConfig(str(tmp_path), dtype=dtype), tiny.tokenizer()).dtype == expected
    adapted = load_model(ModelConfig(str(tmp_path), use_peft=True, lora_dropout=0.25), tiny.tokenizer())
    assert {m.p for name, m in adapted.named_modules() if name.endswith("lora_dropout.default")} == {0.25}


def test_the_version_of_a_model_is_that_of_its_tokenizer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder, versions = saved_models.generator(tmp_path, "gpt2"), []

    def load(kind: Any, *args: Any, **options: Any) -> Any:
        versions.append((kind.__name__, options["revision"]))
        return load_pretrained(kind, *args, **options)

    monkeypatch.setattr("dair_hf.modeling.load_pretrained", load)
    config = ModelConfig(str(folder), model_revision="v2")
    load_model(config, load_tokenizer(config))
    assert versions == [(kind, "v2") for kind in ("AutoTokenizer", "AutoConfig", "AutoModelForCausalLM")]


@pytest.mark.filterwarnings("ignore")  # of bitsandbytes
@pytest.mark.parametrize("kind", ["generator", "classifier"])
def test_4_bits(tmp_path: Path, kind: str) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=tiny.VOCAB, **sizes)).save_pretrained(tmp_path)
    config = ModelConfig(str(tmp_path), load_in_4bit=True, use_peft=True, lora_r=2)
    if kind == "generator":
        model, head = load_model(config, tiny.tokenizer()), "lm_head"
    else:
        model, head = load_text_classifier(config, tiny.tokenizer(), LABELS), "score"
    quantized = {name for name, m in model.named_modules() if isinstance(m, bitsandbytes.nn.Linear4bit)}
    assert any("q_proj" in name for name in quantized) and not any(head in name for name in quantized)
    model(input_ids=torch.tensor([[4, 5]])).logits.sum().backward()
    trained = [name for name, weight in model.named_parameters() if weight.grad is not None]
    assert trained and all("lora_" in name or head in name for name in trained)


def test_every_call_that_loads_a_model_says_whether_its_code_may_run() -> None:
    """By default transformers asks on standard input whether the code of a model may run."""
    without_code = {"GenerationConfig", "PeftConfig", "PeftModel"}
    for path in (path for folder in ("dair_hf", "recipes", "reproduction") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if (
                node.func.attr in ("from_pretrained", "from_config")
                and ast.unparse(node.func.value) not in without_code
            ):
                assert "trust_remote_code" in {keyword.arg for keyword in node.keywords}, path
